"""The commands in the documents are run, and what they print is what the documents show.

A fenced block `console` holds commands after `$ ` and their output. A document's blocks run in order in one folder of
their own. Numbers (and whether one is shown as `at least`, or `>`), addresses, units, bars and the width of gaps may
differ; `...` stands for any text, alone on a line for any lines. `<!-- long -->` before a block leaves it to `--long`;
`<!-- not run: REASON -->` leaves it out.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (long|not run: [^>]+) -->\n+)?^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command and the output that a document shows."""

    command: str
    output: list[str]
    long: bool


def shown(text: str) -> Iterator[Shown]:
    """The commands of a document that can be run, in order."""
    for mark, block in BLOCK.findall(text):
        if mark.startswith("not run"):
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.replace("\\\n", "").partition("\n")
            yield Shown(command, [line for line in output.splitlines() if line.strip()], mark == "long")


#: A page that had left the page cache gives a table a column more, which the documents do not show.
FROM_DISK = re.compile(r"\b[1-9][\d,]* from disk|FROM DISK")

_TOKENS = re.compile(r"(?P<dots>\.\.\.)|(?P<bar>[█▏▎▍▌▋▊▉]+)|(?P<address>\b[0-9a-f]{12,16}\b)|"
                     r"(?P<number>\d[\d,]*(?:\.\d+)*)|(?P<unit>\b(?:B|[KMGT]iB|ns|us|ms|s|min)\b)|"
                     r"(?P<gap>\s+)")  # fmt: skip
_ANY = {"dots": ".*?", "bar": "[█▏▎▍▌▋▊▉]+", "address": "[0-9a-f]{12,16}",
        "number": r"(?:at least |>)?\d[\d,]*(?:\.\d+)*",
        "unit": r"(?:B|[KMGT]iB|ns|us|ms|s|min)", "gap": r"\s+"}  # fmt: skip


def pattern(line: str) -> str:
    """A regular expression for a line that differs from this one in nothing but what may differ."""
    found, at = "", 0
    for token in _TOKENS.finditer(line.strip()):
        found += re.escape(line.strip()[at : token.start()]) + _ANY[str(token.lastgroup)]
        at = token.end()
    return found + re.escape(line.strip()[at:])


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether the printed lines are the expected ones."""
    lines = "".join("(?:.*\n)*?" if line.strip() == "..." else rf"\s*{pattern(line)}\s*\n" for line in expected)
    return re.fullmatch(lines, "".join(f"{line}\n" for line in printed if line.strip())) is not None


def test_what_may_differ_is_all_that_may_differ():
    assert matches(["peak 24.7 MiB; 3,507 faults"], ["peak 9 KiB;   12 faults"])
    assert matches(["a", "...", "z"], ["a", "b", "c", "z"])
    assert matches(["peak 24.7 MiB"], ["peak at least 24.7 MiB"])
    assert matches(["4 KiB  24.7 MiB"], ["4 KiB  >24.7 MiB"])
    assert matches(["7f0000001234 ffffffff817554ea x"], ["555e19e8a018 00007f501e92d110 x"])
    assert matches(["/usr/.../x.so 5 ███▎"], ["/usr/lib/deep/x.so 71 █"])
    assert not matches(["peak 24.7 MiB"], ["peak of 24.7 MiB"])
    assert not matches(["a", "z"], ["a", "b", "z"])
    assert not matches(["a"], ["a", "b"])


@pytest.mark.timeout(600)  # one test runs all commands of a document
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_print_what_the_document_shows(document, tmp_path, request):
    commands = list(shown(document.read_text("utf-8")))
    if not commands:
        return
    if not sys.platform.startswith("linux"):
        pytest.skip("only on Linux: the outputs are those of Linux")
    if os.geteuid() != 0:
        pytest.skip("needs root: the outputs are those that root sees")
    wanted = [part for part in commands if request.config.getoption("--long") or not part.long]
    for attempt in range(3):  # a machine may evict pages at any time; what the commands read has just come back
        (folder := tmp_path / str(attempt)).mkdir()
        wrong, printed = first_difference(wanted, folder)
        if not (wrong and FROM_DISK.search(printed)):
            break
    assert not wrong, wrong


def first_difference(commands: list[Shown], folder: Path) -> tuple[str, str]:
    """Runs commands there up to the first one that prints what is not shown: that, and all that was printed."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "300",
                   "PYTHONIOENCODING": "utf-8"}  # fmt: skip
    said = ""
    for part in commands:
        done = subprocess.run(
            ["bash", "-c", part.command], cwd=folder, env=environment, timeout=110, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        printed = done.stdout.decode("utf-8", "backslashreplace")
        said += printed
        if not matches(part.output, printed.splitlines()):
            return "\n".join([f"$ {part.command}", printed, "-- but shown:", *part.output]), said
    return "", said


@pytest.mark.parametrize("number", range(3))
def test_python_of_the_recipes_runs(number, tmp_path):
    pages = "".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "recipes").glob("*.md")))
    blocks = re.findall(r"^```python\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3, "each block has a test"
    if not sys.platform.startswith("linux"):
        pytest.skip("only on Linux: the recipes are written for it")
    done = subprocess.run(
        [sys.executable, "-c", blocks[number]], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr

"""Source lines and inlined functions of native code, by the package, by each tool, from a separate debug file."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from wstrace.errors import Unavailable
from wstrace.places import MappedFile, SourceLine
from wstrace_plugins.symbols import resolver, source_lines
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.resolver import ImageResolver

CODE = """static volatile char memory[100];
static inline __attribute__((always_inline)) void inlined(int n) {
    memory[n] = 1;
}
__attribute__((noinline)) int outer(int n) {
    inlined(n);
    return memory[n + 1];
}
int main(void) { return outer(3); }
"""
NO_SYMBOLIC = importlib.util.find_spec("symbolic") is None
WAYS = [
    pytest.param("symbolic", marks=pytest.mark.skipif(NO_SYMBOLIC, reason="needs symbolic")),
    *(
        pytest.param(tool, marks=pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}"))
        for tool in ("llvm-symbolizer", "addr2line")
    ),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    (tmp_path / "code.c").write_text(CODE)
    subprocess.run(["gcc", "-g", "-O1", "-Wl,--build-id=sha1", "-o", "program", "code.c"], cwd=tmp_path, check=True)
    return tmp_path / "program"


def offset_of_store(program: Path) -> int:
    """The offset in the file of the instruction that stores to memory, in `outer`."""
    listing = subprocess.run(
        ["objdump", "-d", "--disassemble=outer", program], capture_output=True, text=True, check=True
    )
    [line] = [line for line in listing.stdout.splitlines() if "movb" in line]
    return int(line.split(":")[0], 16)  # .text of a PIE lies at its own offset


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "symbolic":
        monkeypatch.setitem(sys.modules, "symbolic", None)
        own = [tool for tool in source_lines._TOOLS if tool[0] == request.param]
        monkeypatch.setattr(source_lines, "_TOOLS", own)
    return str(request.param)


def asked(program: Path, offset: int, build_id: str = "") -> tuple[SourceLine, ...]:
    [found] = ImageResolver().lines(MappedFile(str(program), build_id=build_id), np.array([offset], "<u8"))
    return found


def test_an_inlined_function_and_its_caller(program: Path, way: str) -> None:
    found = asked(program, offset_of_store(program))
    assert [(one.function, Path(one.file).name, one.line) for one in found] == [
        ("inlined", "code.c", 3), ("outer", "code.c", 6)
    ]  # fmt: skip


def test_a_place_without_lines_costs_the_others_none(program: Path, way: str) -> None:
    header = subprocess.run(["readelf", "-h", program], capture_output=True, text=True, check=True).stdout
    start = int(header.split("Entry point address:")[1].split()[0], 16)
    offsets = np.array([start, offset_of_store(program)], "<u8")
    lines = ImageResolver().lines(MappedFile(str(program)), offsets)
    assert [[one.line for one in found] for found in lines] == [[], [3, 6]]


@pytest.mark.skipif(not any(map(shutil.which, ("llvm-symbolizer", "addr2line"))), reason="needs addr2line")
def test_where_a_limit_leaves_symbolic_too_little_room_a_tool_reads_the_lines(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it gets no memory, symbolic ends the process (SIGABRT)."""
    asked_for = []

    class Limited:
        def room(self, least: int, what: str) -> int:
            asked_for.append(least)
            raise Unavailable(f"too little for {what}")

    monkeypatch.setitem(sys.modules, "symbolic", types.SimpleNamespace())
    monkeypatch.setattr(source_lines, "own_platform", Limited, raising=False)
    found = asked(program, offset_of_store(program))
    assert [one.function for one in found] == ["inlined", "outer"]
    assert asked_for == [(16 << 20) + 8 * program.stat().st_size]


def test_what_has_no_lines_gives_none(program: Path, way: str) -> None:
    offset = offset_of_store(program)
    subprocess.run(["strip", "-g", program], check=True)
    assert asked(program, offset) == ()
    assert asked(program.parent / "absent", offset) == ()
    assert asked(program, offset, build_id="00" * 20) == ()


def test_a_separate_debug_file_by_build_id(program: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offset, folder = offset_of_store(program), program.parent
    subprocess.run(["objcopy", "--only-keep-debug", "program", "program.debug"], cwd=folder, check=True)
    subprocess.run(["strip", program], check=True)
    monkeypatch.setattr(resolver, "DEBUG_FILE", f"{folder}/program.debug{{0:.0}}{{1:.0}}")
    assert [one.line for one in asked(program, offset)] == [3, 6]
    other = folder / "other"  # another build at that place is not believed
    subprocess.run(["gcc", "-g", "-O0", "-Wl,--build-id=sha1", "-o", other, folder / "code.c"], check=True)
    shutil.copy(other, folder / "program.debug")
    assert asked(program, offset) == ()


def test_a_file_cut_off_anywhere_gives_lines_or_none(program: Path, way: str) -> None:
    offset, data = offset_of_store(program), program.read_bytes()
    cut = program.parent / "cut"
    for size in range(64, len(data), len(data) // 12):
        cut.write_bytes(data[:size])
        with ImageFile(str(cut)) as file:
            assert len(source_lines.source_lines(file, [offset])) == 1


@pytest.mark.skipif(NO_SYMBOLIC, reason="needs symbolic")
def test_the_table_of_a_file_is_made_once(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import symbolic.debuginfo

    made, make = [], symbolic.debuginfo.Object.make_symcache
    monkeypatch.setattr(symbolic.debuginfo.Object, "make_symcache", lambda self: made.append(self) or make(self))
    address = offset_of_store(program)
    with ImageFile(str(program)) as file:
        told = [source_lines.source_lines(file, [address]) for _ in range(3)]
    assert told[0][0][0].line == 3
    assert told == told[:1] * 3
    assert len(made) == 1
    for number in range(2 * source_lines._MOST_TABLES):
        shutil.copy(program, tmp_path / f"copy{number}")
        with ImageFile(str(tmp_path / f"copy{number}")) as file:
            assert source_lines.source_lines(file, [address]) == told[0]
    assert len(source_lines._tables) == source_lines._MOST_TABLES


@pytest.mark.skipif(NO_SYMBOLIC, reason="needs symbolic")
def test_an_interpreter_that_has_read_lines_ends_without_a_word(program: Path) -> None:
    """Also where somebody still has the modules when the interpreter empties them, symbolic's before ours."""
    code = (
        "import sys, wstrace_plugins.symbols.image as image, wstrace_plugins.symbols.source_lines as lines\n"
        "with image.ImageFile(sys.argv[1]) as file: lines.source_lines(file, [int(sys.argv[2])])\n"
        "assert lines._tables\n"
        "sys.kept = lines, sys.modules['symbolic.utils']"
    )
    words = [sys.executable, "-c", code, str(program), str(offset_of_store(program))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")

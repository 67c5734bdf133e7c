"""Blame of real programs that bring known pages by known lines; totals as the kernel's of a stopped process."""

import contextlib
import http.client
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer, begun, wstrace
from kit.object_stores import free_port
from kit.recorded_run import record
from kit.stopped_process import rollup, stopped

from wstrace import open_trace
from wstrace.analysis.unshared import Unshared
from wstrace.cli import main
from wstrace.session import Session

TRUTH = Path(__file__).with_name("blame_truth.py")
MIB = 1 << 20
#: each of the program's regions
REGION = 1024 * mmap.PAGESIZE

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="lines and losses of content need root on Linux"
    ),
    pytest.mark.usefixtures("full_level", "python_stacks"),
]


@pytest.fixture(scope="module")
def truth(tmp_path_factory, full_level, python_stacks):
    path = tmp_path_factory.mktemp("blame") / "truth.wst"
    words = ("--by", "function", "--at", "exit", "-o", path, "--", sys.executable, TRUTH)
    report = json.loads(answer("report", "--json", *words))
    assert ", 0 lost" in report["completeness"]
    assert any(row["function"] == "load" for row in report["rows"]), "stacks are read from the program's first line on"
    return path


def test_each_line_has_what_it_brought_and_no_byte_that_was_there(truth):
    with open_trace(str(truth)) as trace:
        (parent,) = trace.info.targets
        rows = composition(trace, at="exit", pids=[parent]).rows("function")
    found = {row.of("function"): row["resident"] for row in rows if row.of("file").endswith("blame_truth.py")}
    assert found["load"] == 2 * REGION, "of the block that was forked and rewritten, and of the one that was moved"
    assert found["bring_again"] == 2 * REGION, "what was discarded, and the block of the four"
    # between the two there may be a page of the interpreter's own
    assert found.get("rewrite", 0) <= 8 * mmap.PAGESIZE
    assert found.get("copy", 0) <= 8 * mmap.PAGESIZE
    unknown = sum(row["resident"] for row in rows if row.of("reason"))
    assert unknown <= 0.02 * sum(row["resident"] for row in rows)


def test_one_parent_and_four_children_copy_sixteen_mib(truth):
    with open_trace(str(truth)) as trace:
        rows = {row.of("function"): row["copied"] for row in Unshared(composition(trace, at="exit")).rows("function")}
    assert 4 * REGION <= rows["copy"] <= 4 * REGION + 40 * mmap.PAGESIZE, "5,120 faults, 4,096 copies"


@pytest.mark.parametrize("by", ["line", "file", "kind", "package"])
def test_the_total_is_the_kernels_of_the_stopped_process(by):
    script = "kept = bytearray(9 << 20); m = anon(4 << 20); touch(m, 2 * PAGE); ready('go')"
    with stopped(script) as (pid, _):
        session = Session(pid, sources=["page_faults", "working_set:interval=0"], children=False)
        with session:
            session.wait(0.5)
        blame = composition(session.trace)
        kernel = rollup(pid)
    rows = blame.rows(by)
    assert sum(row["resident"] for row in rows) == blame.rss == kernel["Rss"]
    private = kernel["Private_Clean"] + kernel["Private_Dirty"]
    # what our own process has mapped too is shared while it looks
    assert abs(sum(row["private"] for row in rows) - private) <= MIB
    if by == "line":
        assert {row.whole for row in rows} == {"(not known: before the trace)"}


#: prints the resident size by the kernel's own account, and stays so until the peak has been read
REST = """
import sys, time
held = load(int(sys.argv[1])), keep(int(sys.argv[2]))
with open("/proc/self/smaps_rollup") as file:
    rss = next(line for line in file if line.startswith("Rss"))
with open(sys.argv[3], "w") as file:
    file.write(rss.split()[1])
time.sleep(1.5)
"""
BEFORE = (
    "def load(n):\n    return bytearray(b'x') * (n << 20)\n\ndef keep(n):\n    return bytearray(b'y') * (n << 20)\n"
)
AFTER = f"# a comment that was not there\nimport csv\n\n{BEFORE}"

#: so often that the rest is seen on a busy machine too
LOOKS = ("-s", "peak_snapshot", "-s", "working_set:interval=0.1,max_cpu=1")


def recorded(folder: Path, code: str, *sizes: int) -> tuple[Path, int]:
    """The trace of a program in a folder of its own, and the resident size by the kernel's account in bytes."""
    folder.mkdir()
    (folder / "app.py").write_text(code + REST)
    with record(folder, [sys.executable, "app.py", *map(str, sizes), "rss"], *LOOKS):
        return folder / "trace.wst", int((folder / "rss").read_text()) * 1024


def compared(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main(["diff", *map(str, words)]) == 0
    return capsys.readouterr()[0]


def test_lines_of_known_sizes_that_have_moved_to_another_folder_and_line(tmp_path, capsys):
    # On a busy machine Python's stacks may be read late, and more be evicted than is shown; the trace says so.
    doubts = re.compile("without their Python line")
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (first, rss), (second, more) = recorded(folder / "a", BEFORE, 20, 8), recorded(folder / "b", AFTER, 29, 5)
        report = json.loads(compared(capsys, first, second, "--by", "line", "--all", "--json"))
        if not doubts.search(report["completeness"]):
            break
    assert report["completeness"] == "complete"
    assert report["at"] == "at the peak"
    assert abs(report["total"]["change"] - (more - rss)) <= 0.02 * rss, "the kernel's own account of both"
    assert sum(row["change"] for row in report["rows"]) == report["total"]["change"]
    functions = {row["function"]: row for row in report["rows"] if row["function"] in ("load", "keep")}
    for function, line, change in (("load", 5, 9), ("keep", 8, -3)):
        row = functions[function]
        assert (row["line"], Path(row["was"]).parent.name) == (line, "a"), row
        assert abs(row["change"] - change * MIB) <= 0.1 * MIB
    lines = compared(capsys, first, second).splitlines()
    assert "+9.0 load app.py:5" in lines[0]
    assert "-3.0 keep app.py:8" in lines[0]


@pytest.mark.long
def test_two_releases_of_a_package_in_two_environments(tmp_path, capsys):
    """The package's release is the only difference; what it brought is as much as the whole difference."""
    paths, sizes = [], []
    code = "import yaml\nimport jinja2\n\ndef load(n):\n    return bytearray(b'x') * (n << 20)\n\nkeep = load\n"
    for name, packages in (("a", ["jinja2==2.11.3", "markupsafe==2.0.1", "pyyaml==6.0.1"]),
                           ("b", ["jinja2==3.1.4", "markupsafe==2.1.5", "pyyaml==6.0.1", "babel==2.14.0"]),
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", "venv", tmp_path / f"venv-{name}"], check=True)
        python = tmp_path / f"venv-{name}" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "app.py").write_text((code + "import babel.core\n" * (name == "b")) + REST)
        with record(folder, [python, "app.py", "1", "1", "rss"], *LOOKS):
            paths.append(folder / "trace.wst")
        sizes.append(int((folder / "rss").read_text()) * 1024)
    report = json.loads(compared(capsys, *paths, "--by", "package", "--all", "--json"))
    assert abs(report["total"]["change"] - (sizes[1] - sizes[0])) <= 0.02 * sizes[0]
    rows = {row["label"]: row for row in report["rows"]}
    assert rows["babel"]["first"] == 0 < rows["babel"]["second"]
    assert min(rows["jinja2"]["first"], rows["jinja2"]["second"]) > 0.2 * MIB
    assert not any(row["label"].startswith(("libpython", "_yaml")) and not row["first"] for row in report["rows"])
    functions = json.loads(compared(capsys, *paths, "--by", "function", "--all", "--json"))["rows"]
    both = [row for row in functions if "/jinja2/" in row["file"] and row["first"] and row["second"]]
    assert both, "functions of the package are paired across the environments"
    assert "import babel" in compared(capsys, *paths).splitlines()[0]


BLAMED = "which frees and reuses memory: another line may keep it"

SERVICE = """
import sys
import fastapi, uvicorn
app, kept = fastapi.FastAPI(), []

@app.post("/")
def add(n: int):
    kept.append([{"id": i, "name": f"record {n} {i}"} for i in range(500)])
    return len(kept)

@app.get("/")
def show():
    return [{"id": i, "text": "x" * 50} for i in range(20000)]

uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")
"""
LEAK = """
import time
kept = []
def keep():
    kept.append(bytearray(b"x" * 250_000))
end = time.monotonic() + 60
while time.monotonic() < end:
    keep()
    time.sleep(0.02)
"""


@pytest.fixture
def service(tmp_path):
    program, port = tmp_path / "api.py", free_port()
    program.write_text(SERVICE)
    with subprocess.Popen([sys.executable, program, str(port)]) as process:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid, port
        process.kill()


def test_a_service_that_keeps_in_one_request_and_churns_in_another(service, tmp_path):
    pid, port = service
    with (
        begun("attach", pid, "-o", tmp_path / "x.wst") as tracer,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        end, rounds = time.monotonic() + 6, 0
        while time.monotonic() < end or rounds < 30:
            for method in ("POST", "POST", "POST", "POST", "GET"):
                connection.request(method, "/?n=1")
                assert connection.getresponse().read()
            rounds += 1
        tracer.send_signal(signal.SIGINT)
        said = tracer.communicate(timeout=60)[1].splitlines()
    answer = wstrace("report", tmp_path / "x.wst").stdout.splitlines()[0]
    assert answer == said[0]
    assert answer.startswith("+")
    assert "first touched by " in answer
    assert answer.endswith(BLAMED)
    assert json.loads(wstrace("report", "--json", tmp_path / "x.wst").stdout)["answer"] == answer
    over = wstrace("report", "--over-time", "1s", tmp_path / "x.wst").stdout.splitlines()[0]
    assert over.endswith(BLAMED)
    assert any("memray attach" in line for line in said)


def test_a_leak_without_churn_is_its_own_line(tmp_path):
    program = tmp_path / "leak.py"
    program.write_text(LEAK)
    with subprocess.Popen([sys.executable, program]) as process:
        time.sleep(1)
        said = wstrace("attach", process.pid, "--duration", "3s").stderr
        process.kill()
    assert "keep leak.py:5" in said.splitlines()[0]
    assert "another line may keep it" not in said


PARSES = """\
import json

KEPT = []


def parse_record(text):
    return json.loads(text) | {"pad": bytearray(5000)}


def load(n):
    for i in range(n):
        KEPT.append(parse_record('{"id": %d}' % i))


load(5000)
"""


def traced(folder: Path, *command: str) -> tuple[Path, str]:
    """The trace of a command, and what `run` printed."""
    path = folder / "x.wst"
    done = wstrace("run", "-o", path, "--", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    if "[level" in done.stderr.splitlines()[0]:
        pytest.skip(done.stderr)
    return path, done.stderr


def totals(path: Path) -> dict[str, int]:
    """view -> the faults that it holds."""
    found = {}
    for by in ("line", "function", "stack", "package"):
        report = json.loads(answer("report", path, "--by", by, "--json", "--top", 100_000))
        found[by] = sum(row["faults"] for row in report["rows"])
        found["recorded"] = report["total"]["faults"]
    folded = answer("report", path, "--format", "folded").splitlines()
    found["folded"] = sum(int(line.rpartition(" ")[2]) for line in folded)
    found["jsonl"] = len(answer("report", path, "--format", "jsonl").splitlines())
    return found


def test_a_python_program_is_reported_by_the_users_own_line(tmp_path):
    (tmp_path / "leak.py").write_text(PARSES)
    path, shown = traced(tmp_path, sys.executable, "leak.py")
    assert " parse_record leak.py:7" in shown.splitlines()[0], shown
    assert "own line" in shown.splitlines()[3]
    found = totals(path)
    assert found == dict.fromkeys(found, found["recorded"])
    package = json.loads(answer("report", path, "--by", "package", "--json"))["rows"]
    assert package[0]["label"] == "(own code)"
    stacks = [json.loads(line).get("stack") for line in answer("report", path, "--format", "jsonl").splitlines()]
    own = [frames for frames in stacks if frames and frames[0]["function"] == "parse_record"]
    assert len(own) > 3000
    assert [(frame["function"], frame["line"]) for frame in own[-1]] == [
        ("parse_record", 7), ("load", 12), ("<module>", 15),
    ]  # fmt: skip
    assert all(frame["own"] and frame["how"] == "exact" for frame in own[-1])


def test_a_test_run_is_reported_by_the_line_of_the_test(tmp_path):
    (tmp_path / "test_big.py").write_text("def test_big():\n    kept = bytearray(60 << 20)\n    assert kept\n")
    plugins = ("-p", "no:cacheprovider", "-p", "no:wstrace")  # ours is below a folder of its own where it is developed
    _, shown = traced(tmp_path, sys.executable, "-m", "pytest", "-q", *plugins, "test_big.py")
    assert " test_big test_big.py:2" in shown, shown

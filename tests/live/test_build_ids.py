"""Build-ids of what is executed: from the mapped file itself, be it deleted or replaced, as readelf tells them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kit import recorded_run
from kit.command_line import answer

import wstrace
from wstrace.batch import Dictionary
from wstrace_plugins.mapped_files.linux import backend as linux
from wstrace_plugins.mapped_files.spaces import MappingRow as Row
from wstrace_plugins.os.linux import procfs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes its root: needs root")

#: writes memory; then, if it is given a folder, executes the program of its own name in that root
ROOTS = """
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) void %(function)s(char *at, long n) { for (long i = 0; i < n; i += 4096) at[i] = 1; }
int main(int argc, char **argv) {
    %(function)s(malloc(32L << 20), 32L << 20);
    if (argc < 2) { puts("%(function)s"); fflush(stdout); getchar(); return 0; }
    if (chroot(argv[1]) || chdir("/")) return 1;
    execl(argv[0], argv[0], NULL);
    return 2;
}
"""

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) void %(function)s(char *at, long n) { for (long i = 0; i < n; i += 4096) at[i] = 1; }
int main(void) { %(function)s(malloc(64L << 20), 64L << 20); puts("ready"); fflush(stdout); getchar(); return 0; }
"""


def ids(rows, strings) -> list[str]:
    return [linux.build_id(row, strings[row.file]) for row in rows]


def build_id(file: Path | str) -> str:
    shown = subprocess.run(["readelf", "-n", str(file)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", shown)
    return found[1] if found else ""


def compiled(folder: Path, function: str, *flags: str, source: str = PROGRAM) -> Path:
    (folder / function).mkdir()
    return recorded_run.compiled(folder / function, source % {"function": function}, "-Wl,--build-id", *flags)


@pytest.fixture
def waiting(tmp_path):
    """A copy of a program that has written its memory and waits."""
    program = shutil.copy(compiled(tmp_path, "fill"), tmp_path / "running")
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield Path(program), process
        process.kill()


@pytest.fixture
def strings():
    return Dictionary()


def mappings(pid: int, strings: Dictionary) -> list[Row]:
    columns = procfs.read_maps(pid).coded(strings)
    names = ("start", "end", "offset", "file", "dev", "ino", "flags")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [Row(number, 0, pid, *row) for number, row in enumerate(rows, 1)]


def test_every_mapping_of_a_process(waiting, strings):
    program, process = waiting
    rows = mappings(process.pid, strings)
    paths = [strings[row.file] for row in rows]
    assert str(program) in paths
    assert any("libc" in path for path in paths)
    assert ids(rows, strings) == [build_id(path) if path.startswith("/") else "" for path in paths]


def test_a_file_that_was_deleted_or_replaced_since(waiting, strings):
    program, process = waiting
    expected = build_id(program)
    own = [row for row in mappings(process.pid, strings) if strings[row.file] == str(program)]
    program.unlink()
    shutil.copy(compiled(program.parent, "other"), program)
    assert build_id(program) not in ("", expected)
    assert ids(own, strings) == [expected] * len(own)
    process.kill()
    process.wait()
    assert ids(own, strings) == [""] * len(own)


def test_a_process_that_is_gone_had_the_file_that_is_still_there(waiting, strings):
    program, process = waiting
    first = mappings(process.pid, strings)[0]
    process.kill()
    process.wait()
    assert ids([first], strings) == [build_id(program)]
    for other in (first._replace(ino=first.ino + 1), first._replace(dev=first.dev + 1)):
        assert ids([other], strings) == [""]
    strange = ("/nowhere", "/dev/zero", "/", "a\0b", "[heap]", "")
    assert ids([first._replace(file=strings.code(name)) for name in strange], strings) == [""] * len(strange)


def functions_of_pages(file: Path) -> set[str | None]:
    """The functions that wrote anonymous memory from the program's own text."""
    rows = map(json.loads, answer("report", file, "--format", "jsonl").splitlines())
    return {row["via"].get("function") for row in rows if row["kind"] == "anon" and row["via"]["module"] == "program"}


def most_by_function(file: Path) -> str:
    report = json.loads(answer("report", file, "--by", "function", "--json"))
    return str(report["rows"][0]["label"])


@pytest.mark.usefixtures("full_level")
def test_a_report_names_no_function_of_another_build(tmp_path):
    """GIVEN a trace of a program WHEN the program is compiled anew THEN its functions are not those of the trace."""
    program, file = tmp_path / "program", tmp_path / "t.wst"
    shutil.copy(compiled(tmp_path, "fill"), program)
    expected = build_id(program)
    answer("run", "-q", "-o", file, "--", program, input="\n")
    with wstrace.open_trace(str(file)) as trace:
        reported = {(batch.strings[f], batch.strings[b]) for batch in trace.batches("mapping")
                for f, b in zip(batch["file"].tolist(), batch["build_id"].tolist(), strict=True)}  # fmt: skip
    assert (str(program), expected) in reported
    assert functions_of_pages(file) == {"fill"}
    assert most_by_function(file) == "program!fill"
    program.unlink()
    shutil.copy(compiled(tmp_path, "other"), program)
    assert functions_of_pages(file) == {None}
    assert most_by_function(file) == "program"


@pytest.fixture
def two_roots(tmp_path):
    """A program, a root, and the program of the same name in that root, which is another one."""
    program, root = tmp_path / "program", tmp_path / "root"
    inside = root / str(program).lstrip("/")
    inside.parent.mkdir(parents=True)
    for function, place in (("outer", program), ("inner", inside)):
        shutil.copy(compiled(tmp_path, function, "-static", source=ROOTS), place)
    assert build_id(program) != build_id(inside)
    return program, root, inside


@needs_root
@pytest.mark.usefixtures("full_level")
def test_in_another_root_a_name_is_that_of_another_file(two_roots, tmp_path):
    """GIVEN a process that executes a program and then, in a chroot, another one of the same name WHEN it is traced
    THEN no mapping has the build-id of the other file, and no function of the first is named for the second."""
    program, root, inside = two_roots
    file = tmp_path / "t.wst"
    answer("run", "-q", "-o", file, "-s", "page_faults:stacks=native", "--", program, root, input="\n")
    with wstrace.open_trace(str(file)) as trace:
        reported = {(batch.strings[b], ino) for batch in trace.batches("mapping")
                for f, b, ino in zip(*(batch[k].tolist() for k in ("file", "build_id", "ino")), strict=True)
                if batch.strings[f] == str(program) and batch.strings[b]}  # fmt: skip
    own = {(build_id(one), one.stat().st_ino) for one in (program, inside)}
    assert reported <= own, "the second one's is not known where it ended before it was looked for"
    assert (build_id(program), program.stat().st_ino) in reported
    report = json.loads(answer("report", file, "--by", "function", "--json"))
    faults = {row["label"]: row["faults"] for row in report["rows"]}
    second = faults.get("program", 0) + faults.get("program!inner", 0)  # by its name where its file was found in time
    assert second > 100 * faults["program!outer"] > 0


@needs_root
def test_the_file_of_a_process_in_another_root(two_roots, strings):
    """Alive or ended, by the name that the file has for it: its own file, or none."""
    program, root, inside = two_roots
    with subprocess.Popen([str(program), str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        own = [row._replace(file=strings.code(str(program))) for row in mappings(process.pid, strings)
               if strings[row.file] == str(inside)]  # fmt: skip
        assert ids(own, strings) == [build_id(inside)] * len(own)
        process.kill()
    assert ids(own, strings) == [""] * len(own)

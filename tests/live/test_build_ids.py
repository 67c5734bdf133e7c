"""Build-ids of what is executed: from the mapped file itself, be it deleted or replaced, as readelf tells them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wstrace
from wstrace.batch import Dictionary
from wstrace.errors import Unavailable
from wstrace_mapped_files.epoch import MappingRow as Row
from wstrace_mapped_files.linux import backend as linux
from wstrace_os.linux import procfs

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) void %(function)s(char *at, long n) { for (long i = 0; i < n; i += 4096) at[i] = 1; }
int main(void) { %(function)s(malloc(64L << 20), 64L << 20); puts("ready"); fflush(stdout); getchar(); return 0; }
"""


@pytest.fixture(autouse=True)
def asked() -> None:
    try:
        with linux._Question(os.getpid()) as question:
            question.ask(0)
    except Unavailable:
        pytest.skip("only on Linux 6.11 and newer: PROCMAP_QUERY")


def build_id(file: Path | str) -> str:
    shown = subprocess.run(["readelf", "-n", str(file)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", shown)
    return found[1] if found else ""


def compiled(folder: Path, function: str, *flags: str) -> Path:
    (folder / f"{function}.c").write_text(PROGRAM % {"function": function})
    program = folder / function
    words = ["gcc", "-O1", "-Wl,--build-id", *flags, "-o", str(program), str(folder / f"{function}.c")]
    subprocess.run(words, check=True)
    return program


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A copy of a program that has written its memory and waits."""
    program = shutil.copy(compiled(tmp_path, "fill"), tmp_path / "running")
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Path(program), process
        process.kill()


@pytest.fixture
def strings() -> Dictionary:
    return Dictionary()


def mappings(pid: int, strings: Dictionary) -> list[Row]:
    columns = procfs.read_maps(pid).coded(strings)
    names = ("start", "end", "offset", "file", "dev", "ino", "flags")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [Row(number, 0, pid, *row) for number, row in enumerate(rows, 1)]


def test_every_mapping_of_a_process(waiting: tuple[Path, subprocess.Popen[bytes]], strings: Dictionary) -> None:
    program, process = waiting
    rows = mappings(process.pid, strings)
    paths = [strings[row.file] for row in rows]
    assert str(program) in paths
    assert any("libc" in path for path in paths)
    assert linux.build_ids(rows, strings) == [build_id(path) if path.startswith("/") else "" for path in paths]


def test_a_file_that_was_deleted_or_replaced_since(
    waiting: tuple[Path, subprocess.Popen[bytes]], strings: Dictionary
) -> None:
    program, process = waiting
    expected = build_id(program)
    own = [row for row in mappings(process.pid, strings) if strings[row.file] == str(program)]
    program.unlink()
    shutil.copy(compiled(program.parent, "other"), program)
    assert build_id(program) not in ("", expected)
    assert linux.build_ids(own, strings) == [expected] * len(own)
    process.kill()
    process.wait()
    assert linux.build_ids(own, strings) == [""] * len(own)


def test_a_process_that_is_gone_had_the_file_that_is_still_there(
    waiting: tuple[Path, subprocess.Popen[bytes]], strings: Dictionary
) -> None:
    program, process = waiting
    first = mappings(process.pid, strings)[0]
    process.kill()
    process.wait()
    assert linux.build_ids([first], strings) == [build_id(program)]
    for other in (first._replace(ino=first.ino + 1), first._replace(dev=first.dev + 1)):
        assert linux.build_ids([other], strings) == [""]
    strange = ("/nowhere", "/dev/zero", "/", "a\0b", "[heap]", "")
    assert linux.build_ids([first._replace(file=strings.code(name)) for name in strange], strings) == [""] * len(
        strange
    )


def test_something_else_lies_there_by_now(waiting: tuple[Path, subprocess.Popen[bytes]], strings: Dictionary) -> None:
    _, process = waiting
    row = mappings(process.pid, strings)[0]
    # another inode of the same path at the same place: a library that was replaced and opened again
    assert linux.build_ids([row._replace(ino=row.ino + 1), row._replace(dev=row.dev + 1)], strings) == ["", ""]
    row = row._replace(ino=0)  # so that no file is looked at
    assert linux.build_ids([row], strings) != [""]
    others = (
        row._replace(file=strings.code("/another")), row._replace(start=row.start + 4096), row._replace(start=0),
        row._replace(offset=row.offset + 4096), row._replace(pid=os.getpid()),
    )  # fmt: skip
    assert [linux.build_ids([other], strings) for other in others] == [[""]] * len(others)


def test_an_image_without_one(tmp_path: Path, strings: Dictionary) -> None:
    bare = compiled(tmp_path, "bare", "-Wl,--build-id=none")
    with subprocess.Popen([str(bare)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rows = mappings(process.pid, strings)
        found = linux.build_ids(rows, strings)
        assert {b for b, row in zip(found, rows, strict=True) if strings[row.file] == str(bare)} == {""}
        assert any(found)
        process.kill()


def wstrace_command(*words: str | Path) -> str:
    command = [sys.executable, "-m", "wstrace", *map(str, words)]
    return subprocess.run(command, input="\n", capture_output=True, text=True, timeout=60, check=True).stdout


def functions_of_pages(file: Path) -> set[str | None]:
    """The functions that wrote anonymous memory from the program's own text."""
    rows = map(json.loads, wstrace_command("report", file, "--format", "jsonl").splitlines())
    return {row["via"].get("function") for row in rows if row["kind"] == "anon" and row["via"]["module"] == "program"}


def most_by_function(file: Path) -> str:
    report = json.loads(wstrace_command("report", file, "--by", "function", "--json"))
    return str(report["summary"]["top"]["function"][0]["function"])


@pytest.mark.usefixtures("full_level")
def test_a_report_names_no_function_of_another_build(tmp_path: Path) -> None:
    """GIVEN a trace of a program WHEN the program is compiled anew THEN its functions are not those of the trace."""
    program, file = tmp_path / "program", tmp_path / "t.wst"
    shutil.copy(compiled(tmp_path, "fill"), program)
    expected = build_id(program)
    wstrace_command("run", "-q", "-o", file, "--", program)
    with wstrace.open_trace(str(file)) as trace:
        told = {(batch.strings[f], batch.strings[b]) for batch in trace.batches("mapping")
                for f, b in zip(batch["file"].tolist(), batch["build_id"].tolist(), strict=True)}  # fmt: skip
    assert (str(program), expected) in told
    assert functions_of_pages(file) == {"fill"}
    assert most_by_function(file) == "program!fill"
    program.unlink()
    shutil.copy(compiled(tmp_path, "other"), program)
    assert functions_of_pages(file) == {None}
    assert most_by_function(file) == "program"

"""The parts of Python stacks that need no kernel: line tables, offsets, rows, finder of interpreters, decoder."""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from types import CodeType

import numpy as np
import pytest
from kit.pythons import installed

from wstrace.batch import Dictionary, StackIds
from wstrace.call_sites import CallSites
from wstrace.interfaces import Level
from wstrace.schema import HOW_EXACT, HOW_NOT_READABLE
from wstrace_plugins.os.linux.cpython import layouts
from wstrace_plugins.os.linux.cpython.objects import LineTable
from wstrace_plugins.page_faults.linux.python_stacks import kernel
from wstrace_plugins.page_faults.linux.python_stacks.decoder import Decoder
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import Interpreters, python_in
from wstrace_plugins.page_faults.linux.python_stacks.protocol import LOST, MAGIC, NO_ROW, StackRows
from wstrace_plugins.page_faults.linux.samples import RingSamples, merge

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def codes(code: CodeType) -> list[CodeType]:
    return [code, *(inner for c in code.co_consts if isinstance(c, CodeType) for inner in codes(c))]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="line tables of 3.11 on")
@pytest.mark.parametrize("module", ["argparse", "dataclasses", "typing", "asyncio.base_events", "decimal", "enum"])
def test_line_tables_say_what_cpython_says(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for code in codes(compile(Path(spec.origin).read_bytes(), spec.origin, "exec")):
        table = LineTable(code.co_linetable, code.co_firstlineno)
        for start, end, line in code.co_lines():
            assert {table.line(unit) or 0 for unit in range(start // 2, end // 2)} == {line or 0}, code


def test_a_line_table_that_is_cut_or_no_table_says_nothing():
    whole = (lambda: [i for i in range(3) if i]).__code__
    for end in range(len(whole.co_linetable)):
        table = LineTable(whole.co_linetable[:end], whole.co_firstlineno)
        assert all(table.line(unit) is None or table.line(unit) > 0 for unit in range(100))
    assert LineTable(b"\x00" * 50, 1).line(0) is None
    assert LineTable(b"\xf0" + b"\xff" * 60, 1).line(0) in (None, 1)
    assert LineTable(b"", 1).line(-1) is None


@pytest.mark.parametrize("python", [p for p in installed() if not p.root], ids=lambda python: python.label)
def test_the_offsets_are_those_of_the_headers(tmp_path, python):
    include = Path(python.program).resolve().parents[1] / f"include/python{python.version[0]}.{python.version[1]}"
    if shutil.which("gcc") is None or not (include / "internal/pycore_frame.h").exists():
        pytest.skip(f"needs gcc and the headers of {python.label}")
    members = {
        "interpreters": "_PyRuntimeState, interpreters.head", "interpreter_next": "PyInterpreterState, next",
        "threads": "PyInterpreterState, threads.head", "thread_next": "PyThreadState, next",
        "thread_id": "PyThreadState, thread_id", "native_thread_id": "PyThreadState, native_thread_id",
        "frame_previous": "_PyInterpreterFrame, previous", "frame_owner": "_PyInterpreterFrame, owner",
        "frame_instr": "_PyInterpreterFrame, " + ("instr_ptr" if python.version >= (3, 13) else "prev_instr"),
        "frame_code": "_PyInterpreterFrame, " + ("f_executable" if python.version >= (3, 13) else "f_code"),
        "code_firstlineno": "PyCodeObject, co_firstlineno", "code_filename": "PyCodeObject, co_filename",
        "code_qualname": "PyCodeObject, co_qualname", "code_linetable": "PyCodeObject, co_linetable",
        "code_adaptive": "PyCodeObject, co_code_adaptive",
    }  # fmt: skip
    if python.version >= (3, 12):
        members["code_version"] = "PyCodeObject, co_version"
    if python.version < (3, 13):
        members |= {"cframe": "PyThreadState, cframe", "current_frame": "_PyCFrame, current_frame"}
    # a state that was made tells by this counter, which stands before the list
    lines = [f'printf("{name} %zu\\n", offsetof({of}));' for name, of in members.items()]
    lines.append('printf("unique %zu\\n", offsetof(PyInterpreterState, threads.next_unique_id));')
    (tmp_path / "o.c").write_text(
        "#define Py_BUILD_CORE 1\n#include <Python.h>\n#include <stddef.h>\n#include <internal/pycore_runtime.h>\n"
        "#include <internal/pycore_interp.h>\n#include <internal/pycore_frame.h>\nint main(void) {"
        + "".join(lines)
        + "}"
    )
    subprocess.run(["gcc", f"-I{include}", tmp_path / "o.c", "-o", tmp_path / "o"], check=True)
    said = dict(line.split() for line in subprocess.check_output([tmp_path / "o"], text=True).splitlines())
    library = next(iter(include.parents[1].glob(f"lib/libpython{python.version[0]}.{python.version[1]}*.so.1.0")), None)
    with (library or Path(python.program)).open("rb") as file:
        found = python_in(file.fileno())
    assert found is not None
    layout = found.layout
    assert layout is not None
    assert {name: getattr(layout, name) for name in members} == {name: int(said[name]) for name in members}
    assert int(said["unique"]) == layout.threads - 8


def test_what_has_no_layout_says_why():
    def header(version, free_threaded):
        return b"xdebugpy" + version.to_bytes(8, "little") + free_threaded.to_bytes(8, "little")

    for version, runtime, why in (
        ((3, 10), b"", "of 3.11 to 3.15"), ((3, 16), b"", "of 3.11 to 3.15"), ((3, 13), b"", "no _Py_DebugOffsets"),
        ((3, 13), b"xdebugpy" + b"\xff" * 1000, "are of 0xffffffffffffffff"),
        ((3, 13), header(0x030D00F0, 1) + bytes(1000), "free-threaded"),
        ((3, 14), header(0x030E00F0, 0) + b"\xff" * 1000, "damaged"),
        ((3, 13), header(0x030D00F0, 0) + b"\0\x10".ljust(8, b"\0").join([bytes(8)] * 100), "damaged"),  # far apart
    ):  # fmt: skip
        with pytest.raises(layouts.NoLayoutError, match=why):
            layouts.layout(version, runtime)


def test_doctor_promises_no_lines_of_a_python_that_is_not_known(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 16, 0, "final", 0))
    assert kernel.tried() == Level("none", "this is CPython 3.16: stacks are read of 3.11 to 3.15")


def row(kind: str, tid: int, value: int) -> list[int]:
    ids, mark = tid << 32 | 1, MAGIC << 32 | 20
    if kind == "sample":
        return [9 | 2 << 32 | 40 << 48, 0x1000, ids, 12345, value]
    return [9 | 2 << 32 | 40 << 48, ids, 99, mark, value] if kind == "stack" else [2 | 40 << 48, 7, value, ids, 5]


SCRIPT = [("sample", 5, 0, NO_ROW), ("stack", 5, 0xA0), ("sample", 5, 1, 0xA0), ("sample", 5, 2, 0xA0),
          ("sample", 6, 3, NO_ROW), ("stack", 6, 0xB0), ("sample", 6, 4, 0xB0), ("lost", 0, 9),
          ("sample", 6, 5, LOST), ("stack", 6, 0xB0), ("sample", 6, 6, 0xB0)]  # fmt: skip
WANTED = [want for kind, _, _, *rest in SCRIPT if kind == "sample" for want in rest]


def test_a_ring_gives_each_sample_its_stack_whatever_the_reads_cut_it_into():
    """As long as there is neither a stack row nor a loss it takes a shorter way, to the same end."""
    rows = np.array([row(kind, tid, value) for kind, tid, value, *_ in SCRIPT], "<u8")
    for cuts in ([], *([i] for i in range(len(rows) + 1)), list(range(len(rows)))):
        ring = RingSamples(False, StackRows())
        for part in np.split(rows, cuts):
            ring.take(part.reshape(-1).view(np.uint8), 0, 99_999, doubled=False)
        columns = merge([ring, RingSamples(True, StackRows())], 99_999)
        assert columns["stack_hash"].tolist() == WANTED
        assert columns["va"].tolist() == list(range(7))
        assert (ring.lost, ring.foreign) == (9, 0)


def test_what_a_command_will_run_is_read_before_it_runs(tmp_path):
    finder, environment = Interpreters(), {"PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin"}
    real = str(Path(sys.executable).resolve())
    script = tmp_path / "script"
    for first, is_python in (
        (f"#!{real}", True), (f"#! {real} -I", True), (f"#!/usr/bin/env {Path(sys.executable).name}", True),
        ("#!/usr/bin/env -S " + Path(sys.executable).name + " -u", True), ("#!/bin/sh", False), ("#!/none", False),
        (f"#!{script}", False), ("#!", False), ("", False),
    ):  # fmt: skip
        script.write_text(first + "\npass\n")
        found = finder.of_command(str(script), environment)
        assert (found is not None and found.python is not None) == is_python, first
    assert finder.of_command(real, environment).python is not None
    assert finder.of_command("/bin/sh", environment).starts
    assert finder.of_command(str(tmp_path), environment) is None


def test_records_of_a_hostile_target_are_bounded():
    """Names and tables of 2 ** 32 - 1 bytes, characters of 7 bytes, 2 ** 64 - 1 frames, frames without code."""
    strings = Dictionary()
    decoder = Decoder(CallSites(StackIds(), strings), strings)

    def u64(*numbers):
        return b"".join(number.to_bytes(8, "little") for number in numbers)

    code = b"\x02\xb8" + bytes(6) + u64(77) + b"\xff" * 24 + b"\xff" * 800
    known, lost, most = u64(77, 0, 0), u64(78, 0, 0), (1 << 64) - 1
    stacks = [u64(1, 0x770, most) + known + lost, u64(1, 0x880, most) + lost + known]
    batch = decoder.take(map(memoryview, (code, *stacks)))
    assert batch is not None
    leaf = decoder.leaf(0x770)
    assert leaf is not None
    assert leaf[1] == HOW_EXACT
    assert decoder.leaf(0x880) == (0, HOW_NOT_READABLE)
    assert all(len(name) <= 512 for name in strings.names(0, len(strings)))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
@pytest.mark.parametrize(("release", "remedy"), [("5.10.0-32-amd64", True), ("6.12.1", False)])
def test_a_newer_kernel_is_the_remedy_on_an_old_one_alone(monkeypatch, number, release, remedy):
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(release=release))
    refused = kernel.refusal(OSError(number, os.strerror(number)))
    assert (refused.remedy == "Linux 5.17 or newer") == remedy

"""What only a real Windows can settle: each test that fails here names the assumption that does not hold."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import answer

if sys.platform != "win32":
    pytest.skip("only on Windows: assumptions of the kernel's own behaviour", allow_module_level=True)

import wstrace
from wstrace.interfaces import MappedFile
from wstrace.schema import FAULT_MAJOR
from wstrace_plugins.mapped_files.windows.backend import build_id
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import launchers, token
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.layouts import PSAPI_WORKING_SET_EX_INFORMATION
from wstrace_plugins.os.windows.process import listed
from wstrace_plugins.page_faults.windows.watch import FIRST_FILTERED_BUILD, Watch
from wstrace_plugins.symbols.resolver import ImageResolver

PAGE = 4096
#: Wine runs the others, so that the tests themselves have no mistake when they meet a Windows
real = pytest.mark.skipif(bool(processes.wine_version()), reason="only on Windows itself: Wine has no such thing")
LINES = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)\n"


@pytest.fixture
def child():
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() == "ready"

    def tell(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    tell.pid = process.pid
    yield tell
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def in_a_process(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@real
def test_a_fault_that_reads_from_disk_is_reported_as_hard(child, tmp_path):
    path = tmp_path / "cold"
    path.write_bytes(os.urandom(16 << 20))
    # opened without buffering, a file leaves the system's cache
    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.CreateFileW.restype = ctypes.c_void_p
    handle = kernel32.CreateFileW(str(path), 0xC0000000, 7, None, 3, 0x20000000, None)
    kernel32.FlushFileBuffers(ctypes.c_void_p(handle))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
    watch = Watch(winapi, child.pid)
    child(f"import mmap; f = open({str(path)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)")
    watch.discard()
    child("x = sum(m[i] for i in range(0, len(m), 1 << 20))")
    columns = watch.drain().columns
    hard = int((columns["flags"] & FAULT_MAJOR).sum())
    watch.close()
    assert hard > 0, "assumption: bit 0 of FaultingVa is 0 for a fault that read from disk"


@real
def test_kernel_faults_need_the_privilege_from_24h2_on():
    """The level follows from the build and the privilege: here is what a watch of ourselves then shows."""
    script = """
from wstrace_plugins.os.windows import api, token
from wstrace_plugins.page_faults.windows.watch import Watch, level_of
{}
watch = Watch(api, api.GetCurrentProcessId())
watch.discard()
place = api.VirtualAlloc(None, 4096, api.MEM_RESERVE | api.MEM_COMMIT, api.PAGE_READWRITE)
api.ReadProcessMemory(api.GetCurrentProcess(), id(watch), place, 8, None)
columns = watch.drain().columns
ours = columns["va"] // 4096 == place // 4096
print(level_of(api).name, bool((columns["flags"][ours] & 2).any()))
"""
    off = in_a_process(script.format("token.has_debug_privilege(api) and token.set_debug_privilege(api, on=False)"))
    build = processes.build(winapi)
    expected = ["user", "False"] if build >= FIRST_FILTERED_BUILD else ["full", "True"]
    assert off == expected, f"assumption: kernel addresses are left out from {FIRST_FILTERED_BUILD} on, not {build}"
    if token.elevated(winapi):
        on = in_a_process(script.format("token.set_debug_privilege(api)"))
        assert on == ["full", "True"], "assumption: SeDebugPrivilege brings kernel addresses back"


def test_the_unnamed_bits_of_a_block_are_the_numa_node(child):
    blocks = np.zeros(1 << 18, "<u8")
    with processes.opened(winapi, child.pid, winapi.QUERY_RIGHTS) as handle:
        assert winapi.QueryWorkingSet(handle, blocks.ctypes.data, blocks.nbytes)
        blocks = blocks[1 : 1 + int(blocks[0])]
        blocks = blocks[blocks < np.uint64(1 << 63)]
        pages = np.zeros(len(blocks), PSAPI_WORKING_SET_EX_INFORMATION)
        pages["VirtualAddress"] = blocks & ~np.uint64(0xFFF)
        assert winapi.QueryWorkingSetEx(handle, pages.ctypes.data, pages.nbytes)
    bits = pages["VirtualAttributes"].astype("<u8")
    valid = bits & np.uint64(1) != 0
    assert valid.sum() > 100
    same = (blocks >> np.uint64(9) & np.uint64(7)) == (bits >> np.uint64(16) & np.uint64(7))
    assert same[valid].all(), "assumption: bits 9-11 are the node (of nodes below 8), and nothing else"


@real
def test_processes_that_may_not_be_opened_are_listed():
    found = {process.pid: process for process in listed(winapi)}
    assert 4 in found, "assumption: NtQuerySystemInformation lists the System process with a working set"
    assert found[os.getpid()].name.lower() == Path(sys.executable).name.lower(), (
        "assumption: ImageName stands at 56 and 64 (x64), 56 and 60 (x86)"
    )
    counters = processes.counters(winapi, winapi.GetCurrentProcess())
    mine = found[os.getpid()].resident
    assert abs(mine - counters.working_set) < 32 << 20, "assumption: WorkingSetSize stands at 144 (x64), 104 (x86)"


def test_a_tracer_that_is_killed_leaves_no_suspended_target(tmp_path):
    script = "import sys, time\nfrom wstrace_plugins.os.windows.backend import platform\n" \
             "t = platform().launch([sys.executable, '-c', 'import time; time.sleep(60)'])\n" \
             "print(t.pid, flush=True)\ntime.sleep(60)"  # fmt: skip
    tracer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(tracer.stdout.readline())
    with processes.opened(winapi, pid, winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE) as handle:
        tracer.kill()
        tracer.wait(20)
        tracer.stdout.close()
        assert processes.exited(winapi, handle, 10_000), "assumption: KILL_ON_JOB_CLOSE ends a suspended process"


@real
def test_grandchildren_of_a_child_that_ended_at_once_are_traced(tmp_path):
    last = "b = bytearray(64 << 20); import time; time.sleep(1)"
    start = f"['cmd', '/c', 'start', '/b', sys.executable, '-c', {last!r}]"
    parent = f"import subprocess, sys, time; subprocess.run({start}); time.sleep(4)"
    path = tmp_path / "x.wst"
    answer("run", "-o", path, "--", sys.executable, "-c", parent)
    with wstrace.open_trace(str(path)) as trace:
        faults = {}
        for batch in trace.batches("page_fault"):
            for pid, n in zip(*np.unique(batch["pid"], return_counts=True), strict=True):
                faults[int(pid)] = faults.get(int(pid), 0) + int(n)
    assert sum(n > 8000 for n in faults.values()) == 1, "assumption: the job's message carries the grandchild's number"


def test_a_build_id_of_a_loaded_module_is_that_of_its_file():
    from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_EXECUTE
    from wstrace_plugins.mapped_files.spaces import MappingRow
    from wstrace_plugins.symbols.image import ImageFile
    from wstrace_plugins.symbols.pe import read_image

    strings = wstrace.Dictionary()
    base = ctypes.c_void_p(ctypes.windll.kernel32._handle).value & (1 << 64) - 1
    path = os.path.join(os.environ["SYSTEMROOT"], "System32", "kernel32.dll")
    row = MappingRow(
        1, 0, os.getpid(), base, base + PAGE, 0, strings.code(path), 0, 0, KIND_FILE << KIND_SHIFT | MAP_EXECUTE
    )
    with ImageFile(path) as file:
        assert build_id(row, path) == read_image(file).build_id, "assumption: headers in memory keep the stamp"


@real  # Wine's libraries carry symbols of their own, which come before the exports
def test_microsofts_cpp_names_are_undecorated():
    from wstrace_plugins.symbols.image import ImageFile
    from wstrace_plugins.symbols.pe import read_image

    names = []
    folder = Path(os.environ["SYSTEMROOT"], "System32")
    for library in filter(Path.exists, (folder / "msvcp_win.dll", folder / "msvcp60.dll")):
        with ImageFile(str(library)) as file:
            image = read_image(file)
            names += [image.symbol_name(i) for i in range(len(image.symbols))]
    assert any("std::" in name for name in names), "assumption: System32's dbghelp undecorates ?...@@ names"
    assert not [name for name in names if name.startswith("?")][len(names) // 10 :], (
        "assumption: dbghelp undecorates nine of ten names at least"
    )


def test_a_function_of_a_pdb_is_named(tmp_path):
    where = r"C:\Program Files (x86)\Microsoft Visual Studio\Installer\vswhere.exe"
    if not Path(where).exists():
        pytest.skip("no Visual C++ here")
    root = subprocess.run(
        [where, "-latest", "-property", "installationPath"], capture_output=True, text=True
    ).stdout.strip()
    setup = os.path.join(root, "VC", "Auxiliary", "Build", "vcvars64.bat")
    (tmp_path / "a.c").write_text(
        "__declspec(noinline) static int hidden(int x) { volatile int y = x; return y * 3; }\n"
        "__declspec(dllexport) int shown(int x) { return hidden(x) ^ 5; }\n"
        "__declspec(dllexport) int (*places[])(int) = {hidden};\n"
    )
    done = subprocess.run(
        f'cmd /c ""{setup}" && cl /nologo /Od /Zi /LD a.c"', cwd=tmp_path, capture_output=True, timeout=120
    )
    if done.returncode or not (tmp_path / "a.pdb").exists():
        pytest.skip("Visual C++ did not build here")
    library = ctypes.CDLL(str(tmp_path / "a.dll"))
    address = ctypes.c_uint64.in_dll(library, "places").value
    offset = address - (ctypes.c_void_p(library._handle).value & (1 << 64) - 1)
    place = ImageResolver().resolve(MappedFile(str(tmp_path / "a.dll")), np.array([offset], "<u8"))[0]
    assert place.function == "hidden", "assumption: SymFromAddr names a function of the PDB beside the image"
    (tmp_path / "b").mkdir()  # a later build of the image, beside the PDB of the first one
    shutil.copy(tmp_path / "a.pdb", tmp_path / "b" / "a.pdb")
    again = f'cmd /c ""{setup}" && cl /nologo /Od /Zi /LD a.c /Fea2.dll /link /PDB:a2.pdb"'
    assert subprocess.run(again, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
    shutil.copy(tmp_path / "a2.dll", tmp_path / "b" / "a.dll")
    other = ImageResolver().resolve(MappedFile(str(tmp_path / "b" / "a.dll")), np.array([offset], "<u8"))[0]
    assert other.function != "hidden", "assumption: a PDB of another build has another PdbSig70, or is PdbUnmatched"


@real
def test_the_launcher_that_pip_made_is_resolved():
    path = shutil.which("pytest")
    if path is None:
        pytest.skip("pytest is in no PATH here")
    found = launchers.script_of(path)
    assert found, "assumption: pip's launcher ends in #!INTERPRETER and a zip"
    assert Path(found[0]).samefile(sys.executable), "assumption: the shebang is this Python"


STORM = """
import threading, time
def work():
    for _ in range(20):
        b = bytearray(4 << 20)
        time.sleep(0.02)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


@real
def test_a_fault_storm_of_eight_threads_loses_less_than_a_tenth(tmp_path):
    """1,024 records fill in 1 to 2 ms: reported, and bounded loosely; the machine's load decides the rest."""
    path = tmp_path / "x.wst"
    answer("run", "-o", path, "--", sys.executable, "-c", STORM)
    with wstrace.open_trace(str(path)) as trace:
        lost, counted = trace.ledger.get("lost_kernel"), trace.ledger.get("counted")
    print(f"{lost} of {counted} faults lost")
    assert lost < counted // 10, "assumption: a raised thread that does nothing else keeps up with eight threads"

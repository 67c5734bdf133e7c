"""What only a real Windows can settle: each test that fails names the assumption or the statement that does not hold.

Touch N pages: N addresses; and the documents' statements held to it.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import answer, begun
from kit.command_line import wstrace as wstrace_of

if sys.platform != "win32":
    pytest.skip("only on Windows: its kernel's own behaviour", allow_module_level=True)

import wstrace
from wstrace.interfaces import MappedFile
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL, KIND_FILE, KIND_SHIFT, MAP_EXECUTE, PAGE_LOCKED
from wstrace.session import Session
from wstrace_plugins.mapped_files.spaces import MappingRow
from wstrace_plugins.mapped_files.windows.backend import build_id
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import launchers, token
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.layouts import PSAPI_WORKING_SET_EX_INFORMATION
from wstrace_plugins.os.windows.process import listed
from wstrace_plugins.page_faults.windows.watch import FIRST_FILTERED_BUILD, KERNEL_RECORDS, Watch
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.pe import read_image
from wstrace_plugins.symbols.resolver import ImageResolver
from wstrace_plugins.working_set.windows.backend import Space, size

PAGE = 4096
#: Wine runs the others, so that the tests themselves have no mistake when they meet a Windows
real = pytest.mark.skipif(bool(processes.wine_version()), reason="only on Windows itself: Wine has no such thing")
ALLOCATE = """
    import ctypes, sys, time
    k = ctypes.WinDLL("kernel32")
    k.VirtualAlloc.restype = ctypes.c_void_p
    k.VirtualAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32]
    def region(pages):
        return k.VirtualAlloc(None, pages * 4096, 0x3000, 4)
    def touch(start, pages, pause=0):
        for page in range(pages):
            ctypes.c_char.from_address(start + page * 4096).value = b"x"
            if pause and page % pause == pause - 1:
                time.sleep(0.02)
"""


@pytest.fixture
def child():
    """A Python that runs lines sent to it and answers each with what it prints."""
    code = (
        textwrap.dedent(ALLOCATE)
        + "print('ready', flush=True)\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "ready"

    def tell(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    tell.pid, tell.process = process.pid, process
    yield tell
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


@pytest.fixture
def watch(child):
    """A watch of it, without records so far."""
    found = Watch(winapi, child.pid)
    found.discard()
    yield found
    found.close()


def run(tmp_path, script, *options):
    path = tmp_path / "x.wst"
    return answer("run", *options, "-o", path, "--", sys.executable, "-c", textwrap.dedent(script)), path


def addresses(path):
    with wstrace.open_trace(str(path)) as trace:
        return np.concatenate([batch["va"] for batch in trace.batches("page_fault")])


@real
def test_n_pages_touched_are_n_addresses(tmp_path):
    pages = 3000
    script = ALLOCATE + f"\n    at = region({pages})\n    print(f'{{at:x}}')\n    touch(at, {pages}, pause=200)\n"
    printed, path = run(tmp_path, script)
    start = int(printed, 16)
    found = addresses(path)
    ours = found[(found >= start) & (found < start + pages * PAGE)]
    assert sorted(set((ours // PAGE).tolist())) == [start // PAGE + n for n in range(pages)]


@real
def test_an_overflow_is_counted(child, watch):
    child(f"touch(region({4 * KERNEL_RECORDS}), {4 * KERNEL_RECORDS})")
    changes = watch.drain()
    assert len(changes) == KERNEL_RECORDS
    assert changes.lost >= 3 * KERNEL_RECORDS - 64
    counted = watch.counted()
    assert counted == pytest.approx(len(changes) + changes.lost, abs=64)


@real
def test_soft_faults_of_user_code_are_distinguished_from_the_kernels(child, watch):
    start = int(child("at = region(64); print(f'{at:x}', end='')"), 16)
    child("touch(at, 64)")
    columns = watch.drain().columns
    ours = (columns["va"] >= start) & (columns["va"] < start + 64 * PAGE)
    assert ours.sum() == 64
    assert not (columns["flags"][ours] & (FAULT_MAJOR | FAULT_PC_KERNEL)).any()
    assert len(set(columns["tid"][ours].tolist())) == 1


@real
def test_the_rest_is_drained_after_the_exit(child, watch):
    start = int(child("at = region(100); print(f'{at:x}', end='')"), 16)
    child("touch(at, 100)")
    child.process.stdin.close()
    child.process.wait(10)
    assert watch.exited()
    found = watch.drain().columns["va"]
    assert ((found >= start) & (found < start + 100 * PAGE)).sum() == 100


@real
def test_attach_and_a_session_in_the_own_process(child):
    with Session(pid=child.pid) as session:
        start = int(child("at = region(500); print(f'{at:x}', end='')"), 16)
        child("touch(at, 500, pause=100)")
        time.sleep(0.2)
    found = session.faults["va"]
    assert len(set((found[(found >= start) & (found < start + 500 * PAGE)] // PAGE).tolist())) == 500
    with Session() as session:
        buffer = bytearray(4 << 20)
    assert len(session.faults) > 0
    del buffer


@real
def test_the_total_is_the_working_set_size(child):
    child("touch(region(2000), 2000)")
    with Space(child.pid) as space:
        snapshot = space.runs(space.mappings(wstrace.Dictionary()))
        total, _ = size(child.pid)
    assert int(snapshot["pages"].sum()) * PAGE == pytest.approx(total, rel=0.02)


@real
def test_emptying_makes_pages_leave(child):
    child("at = region(5000); touch(at, 5000)")
    done = wstrace.empty_working_set(child.pid)
    assert done.left > 4000 * PAGE
    assert done.after < done.before


@real
def test_a_locked_page_is_reported_and_stays(child):
    start = int(
        child("at = region(8); touch(at, 8); k.VirtualLock(ctypes.c_void_p(at), 4096); print(f'{at:x}', end='')"), 16
    )
    with Space(child.pid) as space:
        runs = space.runs(space.mappings(wstrace.Dictionary()))
        ours = (runs["start"] >= start) & (runs["start"] < start + 8 * PAGE)
    assert runs["pages"][ours].tolist() == [1, 7]
    assert ((runs["flags"][ours] & PAGE_LOCKED) != 0).tolist() == [True, False]


LEAVES = """
        import ctypes
        kernel32, limits = ctypes.WinDLL("kernel32"), (ctypes.c_uint64 * 18)()
        limits[2] = 0x1000  # JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK
        kernel32.CreateJobObjectW.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel32.CreateJobObjectW(None, None))
        assert kernel32.SetInformationJobObject(job, 9, limits, 144)
        assert kernel32.AssignProcessToJobObject(job, ctypes.c_void_p(-1))
"""


@real
@pytest.mark.parametrize(("before", "start"), [("", []), ("", ["cmd", "/c", "start", "/b"]), (LEAVES, [])])
def test_children_are_traced(tmp_path, before, start):
    """Also those of a child that ended at once, and those that leave the job of a launcher or of node."""
    script = f"""
        import subprocess, sys, time
        {before}
        subprocess.run([*{start}, sys.executable, "-c", "b = bytearray(64 << 20)"])
        time.sleep(4)
    """
    _, path = run(tmp_path, script)
    with wstrace.open_trace(str(path)) as trace:
        pids = np.concatenate([batch["pid"] for batch in trace.batches("page_fault")])
    assert (np.unique(pids, return_counts=True)[1] > 8000).sum() == 1, "assumption: a job's message has the pid"


@real
def test_the_commands_work(child):
    for words in (["ps"], ["snapshot", str(child.pid)], ["delta", str(child.pid), "--duration", "1s"],
                  ["empty", str(child.pid), "--yes"], ["doctor"], ["snapshot", str(child.pid), "--sections"],
                  ["wss", str(child.pid), "--for", "1s", "--by-emptying", "--yes"]):  # fmt: skip
        answer(*words)


@real
def test_ctrl_break_ends_an_attach_with_a_whole_file(child, tmp_path):
    """The console event that one process can send to another one's group alone."""
    path = tmp_path / "x.wst"
    tracer = begun("attach", child.pid, "-o", path, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    time.sleep(3)
    child("start = region(100); touch(start, 100)")
    tracer.send_signal(signal.CTRL_BREAK_EVENT)
    _, said = tracer.communicate(timeout=30)
    assert tracer.returncode == 0, said
    with wstrace.open_trace(str(path)) as trace:
        assert trace.clean
        assert sum(len(batch) for batch in trace.batches("page_fault")) >= 100


@real
def test_a_process_of_the_system_is_refused_with_what_to_do():
    done = wstrace_of("attach", 4)
    assert done.returncode == 122
    assert done.stderr.count("\n") == 1


def in_a_process(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@real
def test_a_fault_that_reads_from_disk_is_reported_as_hard(child, watch, tmp_path):
    path = tmp_path / "cold"
    path.write_bytes(os.urandom(16 << 20))
    # opened without buffering, a file leaves the system's cache
    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.CreateFileW.restype = ctypes.c_void_p
    handle = kernel32.CreateFileW(str(path), 0xC0000000, 7, None, 3, 0x20000000, None)
    kernel32.FlushFileBuffers(ctypes.c_void_p(handle))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
    child(f"import mmap; f = open({str(path)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)")
    watch.discard()
    child("x = sum(m[i] for i in range(0, len(m), 1 << 20))")
    columns = watch.drain().columns
    hard = int((columns["flags"] & FAULT_MAJOR).sum())
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


@pytest.mark.parametrize("resumed", [False, True])
def test_a_tracer_that_is_killed_leaves_no_suspended_target(resumed):
    script = f"""
        import sys, time
        from wstrace_plugins.os.windows.backend import platform
        target = platform().launch([sys.executable, "-c", "import time; time.sleep(20)"])
        if {resumed}:
            target.resume()
        print(target.pid, flush=True)
        time.sleep(60)
    """
    tracer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    rights = winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE | winapi.PROCESS_TERMINATE
    with processes.opened(winapi, int(tracer.stdout.readline()), rights) as handle:
        tracer.kill()
        tracer.wait(20)
        tracer.stdout.close()
        ended = processes.exited(winapi, handle, 2000 if resumed else 10_000)
        assert ended is not resumed, "assumption: KILL_ON_JOB_CLOSE ends a suspended process, and no other one"
        winapi.TerminateProcess(handle, 0)


def test_a_build_id_of_a_loaded_module_is_that_of_its_file():
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

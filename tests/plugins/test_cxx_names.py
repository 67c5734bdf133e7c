"""C++ names are demangled in a process of its own: one that hangs or dies costs a name, never the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hostile_images import ELF, write

from wstrace.places import MappedFile
from wstrace_plugins.symbols import cxx_names
from wstrace_plugins.symbols import demangle as module
from wstrace_plugins.symbols.cxx_names import CxxNames
from wstrace_plugins.symbols.demangle import demangle
from wstrace_plugins.symbols.resolver import ImageResolver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: libstdc++")
#: __cxa_demangle() of libstdc++ 6.0.30 does not return from these
HANGING = ["_ZptDTsrUL", "_Z1aDTsrUL", "_Z1fDTsrUJ"]


@pytest.fixture
def names():
    made = CxxNames(seconds=0.1)
    yield made
    made.close()


def test_names_of_a_program_come_out_as_before(names):
    assert names.demangle("_ZN4core3fooEv") == "core::foo()"
    assert names.demangle("_Zgarbage") == "_Zgarbage"
    assert names.demangle("_Z" + "1a" * 500) == f"a({', '.join(['a'] * 499)})"
    assert [names.demangle(f"_Z{len(f'f{i}')}f{i}v") for i in range(500)] == [f"f{i}()" for i in range(500)]
    assert names.lost == 0


@pytest.mark.parametrize("hanging", HANGING)
def test_a_name_that_hangs_stays_mangled_and_the_next_ones_do_not(hanging, names):
    assert names.demangle(hanging) == hanging
    assert names.lost == 1
    assert names.demangle("_Z3foov") == "foo()"


def test_a_file_full_of_them_costs_a_bound(names):
    assert [names.demangle(HANGING[0]) for _ in range(100)] == [HANGING[0]] * 100
    assert names.lost == 4
    assert names.demangle("_Z3foov") == "_Z3foov", "no helper is started any more"


def test_a_helper_that_is_killed_is_started_again(names):
    assert names.demangle("_Z3foov") == "foo()"
    os.kill(names._helper.pid, signal.SIGKILL)
    names._helper.wait()
    assert names.demangle("_Z3barv") == "_Z3barv"
    assert names.demangle("_Z3barv") == "bar()"


def test_a_helper_that_says_nothing_is_given_up(names, monkeypatch):
    assert names.demangle("_Z3foov") == "foo()"  # the helper's start takes more than 100 ms on a busy machine
    os.kill(names._helper.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(cxx_names, "_PATIENCE_MS", 100)
        assert names.demangle("_Z3barv") == "_Z3barv"
    assert names.demangle("_Z3barv") == "bar()"


def test_helpers_that_are_all_stopped_cost_five_seconds_in_all_and_it_is_said(names, monkeypatch, caplog):
    waits: list[int] = []
    start = CxxNames._start

    def stopped(made: CxxNames) -> None:
        start(made)
        os.kill(made._helper.pid, signal.SIGSTOP)

    class Poll:
        def register(self, *_: object) -> None: ...

        def poll(self, milliseconds: int) -> list[object]:
            waits.append(milliseconds)
            return []

    monkeypatch.setattr(CxxNames, "_start", stopped)
    monkeypatch.setattr(cxx_names._select, "poll", Poll)
    assert [names.demangle("_Z3foov") for _ in range(100)] == ["_Z3foov"] * 100
    assert 0 < sum(waits) <= 5000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "C++ names stay mangled: their demangler has not answered for" in caplog.text


def test_a_forked_child_and_other_threads_get_their_own_answers(names):
    names.demangle("_Z3foov")
    pid = os.fork()
    if pid == 0:
        os._exit(int([names.demangle(f"_Z1{c}v") for c in "abcdefgh"] != [f"{c}()" for c in "abcdefgh"]))
    found: dict[int, list[str]] = {}

    def ask(at: int) -> None:
        found[at] = [names.demangle(f"_Z6f{at}_{i:03}v") for i in range(100)]

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {at: [f"f{at}_{i:03}()" for i in range(100)] for at in range(4)}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_process_is_left_behind():
    code = ("from wstrace_plugins.symbols.demangle import cxx_names, demangle; assert demangle('_Z3foov') == 'foo()'\n"
            "print(cxx_names._helper.pid)")  # fmt: skip
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_without_an_interpreter_names_stay_mangled(names, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert names.demangle("_Z3foov") == "_Z3foov"


def test_a_symbol_of_a_file_that_hangs_is_shown_mangled_and_counted(tmp_path, monkeypatch):
    names = CxxNames(seconds=0.1)
    monkeypatch.setattr(module, "cxx_names", names)
    demangle.cache_clear()
    size, parts = ELF["as many symbols as are read"]()
    parts = [(at, b"\0" + HANGING[0].encode() + b"\0" if at == 128 << 20 else some) for at, some in parts]
    resolver = ImageResolver()
    (place,) = resolver.resolve(MappedFile(str(write(tmp_path / "image", size, parts))), np.array([0x1100], "u8"))
    assert place.function == HANGING[0]
    assert place.why == "has C++ names that could not be demangled"
    assert resolver.statistics()["names_that_hang"] == 1
    names.close()
    demangle.cache_clear()

"""The account of a trace by perf events."""

from __future__ import annotations

import mmap
import sys

import pytest

from wstrace.interfaces import Context

if sys.platform != "linux":
    pytest.skip("perf events", allow_module_level=True)

from wstrace_plugins.page_faults.linux import account as module
from wstrace_plugins.page_faults.linux.account import Account, fault_around_bytes, mapped_of
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.python_stacks import NoStacks
from wstrace_plugins.page_faults.linux.samples import RingSamples


class Events:
    """Events that count nothing."""

    thinned = False
    cpus = (0,)
    tracepoints_everywhere = True


class Gates(NoStacks):
    def runs(self, kind: str) -> int | None:
        return 0


@pytest.mark.parametrize(("period", "left_out", "counted"), [(100, 0, 9000), (100, 7, 0), (1, 7, 8993)])
def test_a_count_with_faults_of_others_is_not_told_where_only_samples_of_these_are_known(period, left_out, counted):
    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int]:
            return 9000 * (kind == "minor"), 0

    context, settings = Context(), Settings()._replace(period=period)
    account = Account(context, "page_faults", settings, [], Counted(), Side(), Gates())
    account.left_out = {"minor": left_out, "major": 0}
    account.close(0, failed=False)
    assert context.ledger.get("counted") == counted


@pytest.mark.parametrize(
    ("counted", "lost", "runs", "displaced", "lost_kernel"),
    [
        (100, 0, 84, 0, 0),  # 16 faults of events without a gate, that were recorded
        (130, 10, 110, 20, 10),  # 20 that another program's run displaced
        (130, 10, 94, 20, 10),  # both
        (130, None, 110, 20, 10),  # before Linux 6.0 the kernel does not count what found no room
    ],
)
def test_only_faults_without_a_row_are_displaced(counted, lost, runs, displaced, lost_kernel):
    """A thread that is started while its starter's events are opened inherits some that have no gate yet."""

    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int | None]:
            return (counted, lost) if kind == "minor" else (0, 0)

    class Ran(NoStacks):
        def runs(self, kind: str) -> int | None:
            return runs if kind == "minor" else 0

    context, rows = Context(), RingSamples(major=False)
    rows.recorded = 100
    account = Account(context, "page_faults", Settings(), [rows], Counted(), Side(), Ran())
    account.close(100, failed=False)
    ledger = context.ledger
    assert (ledger.get("displaced"), ledger.get("lost_kernel")) == (displaced, lost_kernel)
    assert ledger.get("unaccounted") == 0


class Side:
    """What tells of processes and their mappings lost nothing."""

    lost = 0


@pytest.mark.parametrize(("before", "after", "told"), [(7, 1241, "1,234"), (7, 7, ""), (None, 1241, ""), (7, None, "")])
def test_hint_faults_of_balanced_memory_nodes_are_told(monkeypatch, before, after, told):
    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int]:
            return 9000 * (kind == "minor"), 0

    class Side:
        lost = 0
        traced_losses = staticmethod(lambda **_: [])

    answers = iter([before, after])
    monkeypatch.setattr(module.vmstat, "balancing_hints", lambda: next(answers))
    context = Context()
    account = Account(context, "page_faults", Settings(), [], Counted(), Side(), Gates())
    account.begin()
    account.close(9000, failed=False)
    lacking = [lack for lack in context.info.lacking if "hint faults" in lack]
    assert len(lacking) == bool(told)
    assert not told or f"with {told} on this machine" in lacking[0]


def test_what_is_mapped_around_a_fault_is_bounded_by_the_window_and_by_what_is_there() -> None:
    window = fault_around_bytes()
    assert window >= mmap.PAGESIZE
    for n in (mmap.PAGESIZE, window, 4 * window):
        assert mapped_of(n) == min(n, window), n

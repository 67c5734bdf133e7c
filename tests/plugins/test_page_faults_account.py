"""The account of a trace by perf events: what it costs to look whether stacks displace faults."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from wstrace.interfaces import Context

if sys.platform != "linux":
    pytest.skip("perf events", allow_module_level=True)

from wstrace_plugins.page_faults.linux import account as module
from wstrace_plugins.page_faults.linux.account import Account
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.python_stacks.none import NoStacks
from wstrace_plugins.page_faults.linux.samples import RingSamples


class Clock:
    """A clock that stands unless something takes time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Events:
    """As many events as it takes so many seconds to read."""

    thinned = False
    cpus = (0,)
    tracepoints_everywhere = True

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.spent = clock, seconds, 0.0

    def counts(self, kind: str) -> tuple[int, int]:
        self.clock.now += self.seconds
        self.spent += self.seconds
        return 0, 0

    def renewed(self, kind: str) -> int:
        return 0


class Gates(NoStacks):
    def runs(self, kind: str) -> int | None:
        return 0


@pytest.mark.parametrize("seconds", [0.000_001, 0.05, 0.5])
def test_looks_at_all_events_take_a_small_part_of_the_time(monkeypatch, seconds):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    events = Events(clock, seconds)
    account = Account(Context(), "page_faults", Settings(), [], events, None, Gates())
    began, looks = clock.now, 0
    while clock.now < began + 2000:
        before = events.spent
        account.tend_stacks(())
        looks += events.spent > before
        clock.now += 0.1
    assert events.spent < 0.01 * (clock.now - began)
    assert looks >= (1000 if seconds < 0.001 else 2)


def test_events_that_take_long_to_renew_are_closed_a_while_after_all_have_new_ones(monkeypatch):
    """Who was born while others got theirs has none yet, and is known only then: it would be traced by nobody."""
    clock, told = Clock(), []
    monkeypatch.setattr(module, "time", clock)

    class Renewed(Events):
        def counts(self, kind: str) -> tuple[int, int]:
            return 9000, 0

        def renew(self, pids: set[int], *_: object) -> None:
            told.append(("renew", sorted(pids)))
            clock.now += 3 * module._RENEW_SECONDS * (len(told) == 1)

        def end_renewal(self, *, former: bool) -> None:
            told.append(("end", former))

        def closed(self, kind: str) -> int:
            return 9000

    account = Account(Context(), "page_faults", Settings(), [], Renewed(clock, 0.0), None, Gates())
    assert account.tend_stacks([7])
    clock.now += 0.1
    account.tend_stacks([7, 8])
    assert told == [("renew", [7]), ("renew", [7, 8])]
    clock.now += module._RENEW_SECONDS
    account.tend_stacks([7, 8, 9])
    assert told[2:] == [("renew", [7, 8, 9]), ("end", True)]


@pytest.mark.parametrize(
    ("recorded", "held", "lost", "switched"),
    [
        (7000, 2000, 0, False),  # 1,000 faults of a thread whose events have no gate, which were recorded
        (7000, 1000, 1000, False),  # another 1,000 found no room in the ring
        (7000, 1000, None, True),  # before Linux 6.0 that is not counted: they may have been displaced
        (7000, 1000, 0, True),  # 1,000 that another program's run displaced
    ],
)
def test_faults_that_are_recorded_switch_no_stacks_off(recorded, held, lost, switched):
    """No gate runs at the faults of a thread that was born before the events of its starter had theirs."""

    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int | None]:
            return (9000, lost) if kind == "minor" else (0, lost)

        def renew(self, *_: object) -> None:
            pass

    class Ran(NoStacks):
        def runs(self, kind: str) -> int | None:
            return 8000 if kind == "minor" else 0

    rows = RingSamples(major=False)
    rows.recorded = recorded
    rows._held = [np.zeros((held, 5), "<u8")]
    account = Account(Context(), "page_faults", Settings(), [rows], Counted(Clock(), 0.0), Side(), Ran())
    assert account.tend_stacks([7]) is switched


@pytest.mark.parametrize(("period", "left_out", "counted"), [(100, 0, 9000), (100, 7, 0), (1, 7, 8993)])
def test_a_count_with_faults_of_others_is_not_told_where_only_samples_of_these_are_known(period, left_out, counted):
    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int]:
            return 9000 * (kind == "minor"), 0

    context, settings = Context(), Settings()._replace(period=period)
    account = Account(context, "page_faults", settings, [], Counted(Clock(), 0.0), Side(), Gates())
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
    account = Account(context, "page_faults", Settings(), [rows], Counted(Clock(), 0.0), Side(), Ran())
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
    account = Account(context, "page_faults", Settings(), [], Counted(Clock(), 0.0), Side(), Gates())
    account.begin()
    account.close(9000, failed=False)
    lacking = [lack for lack in context.info.lacking if "hint faults" in lack]
    assert len(lacking) == bool(told)
    assert not told or f"with {told} on this machine" in lacking[0]

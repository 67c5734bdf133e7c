"""The account of a trace by perf events."""

from __future__ import annotations

import sys

import pytest

from wstrace.interfaces import Context

if sys.platform != "linux":
    pytest.skip("perf events", allow_module_level=True)

from wstrace_plugins.page_faults.linux import account as module
from wstrace_plugins.page_faults.linux.account import Account
from wstrace_plugins.page_faults.linux.events import Settings


class Events:
    """Events that count nothing."""

    thinned = False
    cpus = (0,)
    tracepoints_everywhere = True


@pytest.mark.parametrize(("period", "left_out", "counted"), [(100, 0, 9000), (100, 7, 0), (1, 7, 8993)])
def test_a_count_with_faults_of_others_is_not_told_where_only_samples_of_these_are_known(period, left_out, counted):
    class Counted(Events):
        def counts(self, kind: str) -> tuple[int, int]:
            return 9000 * (kind == "minor"), 0

    context, settings = Context(), Settings()._replace(period=period)
    account = Account(context, "page_faults", settings, [], Counted(), Side())
    account.left_out = {"minor": left_out, "major": 0}
    account.close(0, failed=False)
    assert context.ledger.get("counted") == counted


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
    account = Account(context, "page_faults", Settings(), [], Counted(), Side())
    account.begin()
    account.close(9000, failed=False)
    lacking = [lack for lack in context.info.lacking if "hint faults" in lack]
    assert len(lacking) == bool(told)
    assert not told or f"with {told} on this machine" in lacking[0]

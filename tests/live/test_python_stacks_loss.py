"""Python stacks cost no record, and a loss, another tracer or a hostile target gives no fault a wrong stack."""

import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.other_tracers import BPFTRACE, after, beside
from kit.pythons import judged
from kit.recorded_run import compiled

from wstrace.schema import STACK_HOW

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")


def truth(
    trace: Any, folder: Path, pages: int = 100, before: Sequence[str] = (), **options: Any
) -> tuple[Any, int, int]:
    """(the trace of the truth target, its pages with the right stack, those with a reason); none has a wrong one."""
    out = folder / "regions.json"
    traced = trace([*before, sys.executable, HERE / "python_truth.py", out, pages], stacks="python", **options)
    assert traced.context.targets[0].exit_code == 0
    right, wrong, reasons = judged(traced, json.loads(out.read_text()))
    assert not wrong
    assert "no Python frame" not in reasons
    return traced, right, reasons.total()


def test_as_many_records_as_without_stacks(trace, touch):
    counts = {}
    for stacks in ("none", "python"):
        traced = trace([touch, 20000], stacks=stacks)
        traced.assert_balanced()
        counts[stacks] = len(traced.faults())
        assert counts[stacks] == traced.ledger("counted")
    assert abs(counts["none"] - counts["python"]) <= 20  # the C library's own faults vary


def test_rings_of_a_page_lose_records_and_give_no_wrong_stack(trace, tmp_path):
    right = 0
    for _ in range(4):  # how much of it is lost is the machine's
        traced, shown, _ = truth(trace, tmp_path, 200, ring_bytes=4096, poll_ms=100)
        assert traced.ledger("lost_kernel") > 1000
        assert traced.ledger("unaccounted") == 0
        traced.assert_balanced()
        right += shown
        if right > 50:
            return
    raise AssertionError(f"too few of the recorded faults have their stack: {right}")


#: the whole machine, in the folder of the test
OTHERS = {
    "perf -g": "perf record -a -g -e page-faults -c 1 -o {folder}/perf.data",
    "perf dwarf": "perf record -a --call-graph=dwarf -e page-faults -c 7 -o {folder}/perf.data",
    "perf -d": "perf record -a -d -e minor-faults -c 1 -o {folder}/perf.data",
    "bpftrace": shlex.join(BPFTRACE).replace("{", "{{").replace("}", "}}"),
}


@pytest.mark.parametrize("first", ["ours", "other"])
@pytest.mark.parametrize("other", OTHERS)
def test_beside_another_tracer_begun_before_or_after_ours(trace, tmp_path, other, first):
    """The kernel makes our records longer, and shares one time among all events of a fault."""
    if shutil.which(other.split()[0]) is None:
        pytest.skip(f"needs {other.split()[0]} (tests/install-peers)")
    command = OTHERS[other].format(folder=tmp_path)
    if first == "other":
        with beside(*shlex.split(command)):
            traced, right, unknown = truth(trace, tmp_path, 40)
    else:
        traced, right, unknown = truth(trace, tmp_path, 40, before=after(*shlex.split(command)))
    traced.assert_balanced(others=True)
    lost = traced.ledger("lost_kernel") + traced.ledger("foreign_clock") + traced.ledger("unaccounted")
    assert (right > 1000) or lost, (right, unknown)


def test_without_a_stack_is_counted_by_reason(trace, tmp_path):
    """What is no Python program lacks none; of what is, or says so, each fault without one is counted."""
    old = compiled(tmp_path, "char _PyRuntime[1 << 16];\nint main(void) { return 0; }\n", "-rdynamic")
    traced = trace(["sh", "-c", f"true; {old}; true"], stacks="python")
    hows = Counter(STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist())
    rows = {who: n for stage, who, n in traced.context.ledger.rows() if stage == "without_stack"}
    assert hows["no Python frame"] > 50
    assert hows["interpreter not known"] > 5
    lacking = hows.keys() - {"no Python frame"}
    assert rows == {reason: hows[reason] for reason in lacking}

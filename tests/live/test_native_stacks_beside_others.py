"""Another tracer on the same faults, begun before or after us: no sample gets a wrong stack, no fault is lost.

The kernel shares one perf_sample_data among the events of one config that a fault triggers: `page-faults` is the
config of our samples, `minor-faults` that of our rows.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from kit.command_line import WSTRACE
from kit.other_tracers import BPFTRACE, after, beside
from kit.recorded_run import compiled
from kit.stack_truth import SOURCE, StackNames, assert_right, regions

import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
OURS = [*WSTRACE, "run", "-q", "-f", "-s", "page_faults:stacks=native,stack_period=5"]


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)")
@pytest.mark.parametrize("event", ["page-faults", "minor-faults"])
@pytest.mark.parametrize("first", ["perf", "wstrace"])
@pytest.mark.parametrize("options", [["-g"], ["--call-graph", "dwarf"], ["-d"]], ids=["g", "dwarf", "d"])
def test_stacks_stay_right(tmp_path, event, first, options):
    program = compiled(tmp_path, SOURCE)
    trace = tmp_path / "trace.wst"
    perf = ["perf", "record", "-q", "-e", event, "-c", "7", *options, "-o", tmp_path / "perf.data", "--"]
    ours = [*OURS, "-o", trace, "--"]
    words = [*perf, *ours] if first == "perf" else [*ours, *perf]
    assert_stacks_right([*words, program, 2], trace)


@pytest.mark.skipif(shutil.which("bpftrace") is None, reason="needs bpftrace (tests/install-peers)")
@pytest.mark.parametrize("first", ["bpftrace", "wstrace"])
def test_stacks_stay_right_beside_bpftrace(tmp_path, first):
    program = compiled(tmp_path, SOURCE)
    trace = tmp_path / "trace.wst"
    ours = [*OURS, "-o", trace, "--"]
    if first == "bpftrace":
        with beside(*BPFTRACE):
            assert_stacks_right([*ours, program, 2], trace)
    else:
        assert_stacks_right([*ours, *after(*BPFTRACE), program, 2], trace)


def assert_stacks_right(words: Sequence[object], trace: Path) -> None:
    """Runs the command, whose last one prints its regions, and looks at the trace."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "detached" not in done.stderr, done.stderr
    with wstrace.open_trace(str(trace)) as opened:
        names, known = StackNames(opened), regions(done.stdout)
        assert assert_right(names, known) > 50  # each is checked; on a busy machine fewer are sampled
        assert opened.ledger.get("unaccounted") == 0

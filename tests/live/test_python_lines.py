"""`stacks=lines`: the Python lines of sampled faults without eBPF, against a target that knows them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nobody
import numpy as np
import pytest
from pythons import Installed, installed

import wstrace
from wstrace.schema import FRAME_CUT, FRAME_PYTHON, HOW_NOT_SAMPLED, STACK_HOW

HERE = Path(__file__).parent
#: The loop of sid's 3.14 is not in _PyEval_EvalFrameDefault: that has 1,184 bytes there, and no indirect jump. It is
#: not compiled with tail calls either (sysconfig: Py_TAIL_CALL_INTERP = 0).
PYTHONS = [python for python in installed() if python.version < (3, 14)]

pytestmark = pytest.mark.usefixtures("full_level")


@pytest.fixture
def folder() -> Iterator[Callable[[Installed], tuple[Path, Path]]]:
    """folder(python): a folder that it can reach, by our name and by its own."""
    made: list[str] = []

    def make(python: Installed) -> tuple[Path, Path]:
        made.append(tempfile.mkdtemp(dir=python.root + "/tmp" if python.root else None))
        shutil.copy(HERE / "python_lines_truth.py", made[-1])
        return Path(made[-1]), Path(made[-1].removeprefix(python.root))

    yield make
    for one in made:
        shutil.rmtree(one)


def recorded(place: Path, command: list[Any], wstrace: Sequence[str] = (sys.executable,), **options: Any) -> Path:
    """The trace of a command under `stacks=lines`."""
    trace = place / "trace.wst"
    words = [*wstrace, "-m", "wstrace", "run", "-q", "-f", "-o", trace, "-s",
             "page_faults:stacks=lines,stack_rate=4000,kernel=no", "--", *command]  # fmt: skip
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100, **options)
    assert done.returncode == 0, done.stderr
    assert "detached" not in done.stderr, done.stderr
    return trace


def columns(trace: Any, stream: str, *names: str) -> list[np.ndarray]:
    batches = list(trace.batches(stream))
    return [np.concatenate([batch[name] for batch in batches]) for name in names]


def frames(trace: Any) -> dict[int, tuple[str, int]]:
    """The function and line of each Python frame."""
    strings = next(iter(trace.batches("call_site"))).strings
    rows = zip(*columns(trace, "call_site", "id", "kind", "function", "line", "flags", "parent"), strict=True)
    python = [row for row in rows if row[1] == FRAME_PYTHON]
    assert all(flags == FRAME_CUT and not parent for *_, flags, parent in python), "its callers are not known"
    return {int(number): (strings[int(function)], int(line)) for number, _, function, line, *_ in python}


def compared(trace: Path, truth: Path) -> tuple[Counter[str], Counter[Any]]:
    """(how the samples in the regions had their lines, or why not; what was told instead of the truth)."""
    regions = sorted(json.loads(truth.read_text()))
    begins = np.array([region[0] for region in regions], "<u8")
    with wstrace.open_trace(str(trace)) as opened:
        sites = frames(opened)
        addresses, stacks, hows = columns(opened, "page_fault", "va", "stack", "stack_how")
    at = np.searchsorted(begins, addresses, side="right") - 1
    seen: Counter[str] = Counter()
    wrong: Counter[Any] = Counter()
    for address, stack, how, of in zip(addresses.tolist(), stacks.tolist(), hows.tolist(), at.tolist(), strict=True):
        begin, end, *right = regions[of]
        if how != HOW_NOT_SAMPLED and begin <= address < end:
            seen[STACK_HOW[how]] += 1
            assert bool(stack) == (STACK_HOW[how] == "learned"), "none is told as certain"
            if stack and sites[stack] != tuple(right):
                wrong[sites[stack], *right] += 1
    return seen, wrong


def learned(record: Callable[[float], Path], truth: Path) -> tuple[int, Counter[Any]]:
    """(samples with a line, what was told instead of the truth) of all recordings together.

    A worker that a busy machine lets wait reads code too late to trust it: the program runs longer then, until enough
    is learned. What a recording tells is judged in any case.
    """
    lines, wrong, reasons = 0, Counter[Any](), []
    for seconds in (2.5, 6, 15):
        seen, told = compared(record(seconds), truth)
        lines += seen["learned"]
        wrong += told
        if lines > 40:
            return lines, wrong
        reasons.append(seen)
    raise AssertionError(f"too few samples have lines: {reasons}")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_learned_lines_are_right(folder: Any, python: Installed) -> None:
    ours, its = folder(python)

    def record(seconds: float) -> Path:
        return recorded(ours, python.command(its / "python_lines_truth.py", its / "regions.json", seconds))

    lines, wrong = learned(record, ours / "regions.json")
    assert not wrong, f"of {lines}"


@pytest.fixture
def paranoid() -> Iterator[None]:
    """What a user without privilege finds on most machines."""
    setting = Path("/proc/sys/kernel/perf_event_paranoid")
    before = setting.read_text()
    setting.write_text("2")
    yield
    setting.write_text(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes a sysctl and becomes nobody: needs root")
@pytest.mark.usefixtures("paranoid")
def test_nobody_gets_the_lines_of_its_own_processes(folder: Any) -> None:
    ours, _ = folder(Installed(sys.version_info[:2], sys.executable))
    ours.chmod(0o777)
    with nobody.nobody() as user:

        def record(seconds: float) -> Path:
            command = [user.command[-1], ours / "python_lines_truth.py", ours / "regions.json", seconds]
            return recorded(ours, command, user.command, env=user.environment, cwd="/")

        _, wrong = learned(record, ours / "regions.json")
    assert not wrong

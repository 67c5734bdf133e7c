"""Recordings under `stacks=lines`, and what they tell of regions whose lines are known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import wstrace
from wstrace.schema import FRAME_CUT, FRAME_PYTHON, HOW_NOT_SAMPLED, STACK_HOW


def recorded(
    place: Path,
    command: list[Any],
    wstrace: Sequence[str] = (sys.executable,),
    *,
    often: str = "stack_rate=4000",
    **options: Any,
) -> Path:
    """The trace of a command under `stacks=lines`."""
    trace = place / "trace.wst"
    words = [*wstrace, "-m", "wstrace", "run", "-q", "-f", "-o", trace, "-s",
             f"page_faults:stacks=lines,{often},kernel=no", "--", *command]  # fmt: skip
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100, **options)
    assert done.returncode == 0, done.stderr
    assert "detached" not in done.stderr, done.stderr
    return trace


def columns(trace: Any, stream: str, *names: str) -> list[np.ndarray]:
    batches = list(trace.batches(stream))
    return [np.concatenate([batch[name] for batch in batches]) for name in names]


def frames(trace: Any) -> dict[int, tuple[str, int]]:
    """The function and line of each Python frame; none where nothing was unwound, as on a machine that is too busy."""
    if not any(True for _ in trace.batches("call_site")):
        return {}
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

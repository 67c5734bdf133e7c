"""`stacks=lines`: the Python lines of sampled faults without eBPF, against a target that knows them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pythons import Installed, installed

import wstrace
from wstrace.schema import FRAME_CUT, FRAME_PYTHON, HOW_NOT_SAMPLED, STACK_HOW

HERE = Path(__file__).parent
#: 3.14 in a root of its own is compiled with tail calls: it has no loop whose frame could be looked at
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


def recorded(place: Path, command: list[str], options: str = "stack_rate=4000,kernel=no") -> Any:
    trace = place / "trace.wst"
    words = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o", trace, "-s",
             f"page_faults:stacks=lines,{options}", "--", *command]  # fmt: skip
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "detached" not in done.stderr, done.stderr
    return wstrace.open_trace(str(trace))


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


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_learned_lines_are_right(folder: Any, python: Installed) -> None:
    ours, its = folder(python)
    command = python.command(its / "python_lines_truth.py", its / "regions.json", 2.5)
    with recorded(ours, command) as trace:
        regions = sorted(json.loads((ours / "regions.json").read_text()))
        begins = np.array([region[0] for region in regions], "<u8")
        sites = frames(trace)
        addresses, stacks, hows = columns(trace, "page_fault", "va", "stack", "stack_how")
    at = np.searchsorted(begins, addresses, side="right") - 1
    seen: Counter[str] = Counter()
    wrong: Counter[Any] = Counter()
    for address, stack, how, of in zip(addresses.tolist(), stacks.tolist(), hows.tolist(), at.tolist(), strict=True):
        begin, end, *right = regions[of]
        if how != HOW_NOT_SAMPLED and begin <= address < end:
            seen[STACK_HOW[how]] += 1
            if stack and sites[stack] != tuple(right):
                wrong[sites[stack], *right] += 1
    print(seen, wrong)
    assert seen["exact"] == 0
    assert seen["learned"] > 100, seen
    assert sum(wrong.values()) <= 0.02 * seen["learned"], wrong

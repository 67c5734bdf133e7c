"""A program whose lines are learned, and lies: none is told as certain, and no other process's rows come to harm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forged import offsets
from learned_lines import columns, compared, frames, recorded

import wstrace
from wstrace.schema import HOW_NOT_SAMPLED, STACK_HOW

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)"),
]

#: the members of forged_lines.c
PLACES = {
    "version": 0x030D00F0, "runtime.interpreters": 2048, "code.firstlineno": 24, "code.filename": 32,
    "code.qualname": 40, "code.linetable": 56, "code.adaptive": 64,
}  # fmt: skip
LINES, FIRST_LINE = 8, 10
#: of faults of both programs; in step with none of their lines
OFTEN = "stack_period=5"
#: what a lie may have for a reason
REASONS = {
    "learned", "frames not readable", "its code was first read after it", "the place of its line is not learned",
    "native stack cut before a Python frame",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("forged")
    (folder / "offsets.h").write_text(offsets(PLACES))
    built: Path = folder / "forged_python"
    words = ["gcc", "-O1", "-fno-crossjumping", "-rdynamic", "-I", folder, "-o", built, HERE / "forged_lines.c"]
    subprocess.run(words, check=True)
    return built


def told(trace: Path, said: str) -> tuple[dict[str, Counter[str]], Counter[Any]]:
    """(by kind of lie how the samples had their lines, or why not; the honest ones' lines, as (told, right))."""
    regions = sorted((int(base, 16), int(pages), kind) for base, pages, kind in
                     (line.split(maxsplit=2) for line in said.splitlines()))  # fmt: skip
    begins = np.array([region[0] for region in regions], "<u8")
    with wstrace.open_trace(str(trace)) as opened:
        sites = frames(opened)
        assert all(len(function) <= 1024 for function, _ in sites.values())
        addresses, stacks, hows = columns(opened, "page_fault", "va", "stack", "stack_how")
    seen: dict[str, Counter[str]] = {}
    lines: Counter[Any] = Counter()
    at = np.searchsorted(begins, addresses, side="right") - 1
    for address, stack, how, of in zip(addresses.tolist(), stacks.tolist(), hows.tolist(), at.tolist(), strict=True):
        base, pages, kind = regions[of]
        if of < 0 or how == HOW_NOT_SAMPLED or not base <= address < base + pages * 4096:
            continue
        seen.setdefault(kind, Counter())[STACK_HOW[how]] += 1
        assert bool(stack) == (STACK_HOW[how] == "learned"), "none is told as certain"
        if stack and kind == "honest":
            lines[sites[stack], ("honest", FIRST_LINE + ((address - base) >> 12) % LINES)] += 1
    return seen, lines


@pytest.mark.parametrize("lie", ["", "lie"])
def test_an_honest_one_has_its_lines_and_lies_harm_nobody(program: Path, tmp_path: Path, lie: str) -> None:
    """Of lies none is told as certain. That the honest part is learned shows that the lies were looked at.

    A worker that a busy machine lets wait reads code when the lies have begun: the honest part is longer then.
    """
    said, out = tmp_path / "said", tmp_path / "regions.json"
    for seconds in (4, 10, 25):
        both = f"{program} {seconds} {lie} > {said} & {sys.executable} {HERE}/python_lines_truth.py {out} {seconds + 4}"
        trace = recorded(tmp_path, ["sh", "-c", f"{both} && wait $!"], often=OFTEN)
        seen, lines = told(trace, said.read_text())
        assert all(line == right for line, right in lines), lines
        assert set().union(*seen.values()) <= REASONS, seen
        assert ("flood" in seen) == bool(lie)
        beside, wrong = compared(trace, out)
        assert not wrong
        if seen["honest"]["learned"] > 100 and beside["learned"] > 40:
            return
    raise AssertionError(f"too few samples have lines: {seen}, {beside}")

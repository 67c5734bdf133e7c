"""`stacks=lines`: the Python lines of sampled faults without eBPF, against a target that knows them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nobody
import pytest
from learned_lines import compared, recorded
from pythons import Installed, installed

HERE = Path(__file__).parent
PYTHONS = installed()

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

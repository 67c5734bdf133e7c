"""A command under `wstrace run`, and the page faults of the trace that it wrote."""

import mmap
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wstrace
from kit import command_line


def record(folder: Path, command: Sequence[str | Path], *options: str) -> Any:
    """The trace of a command as `wstrace run` wrote it; the command runs in that folder."""
    trace = folder / "trace.wst"
    done = command_line.wstrace("run", "-q", "-f", "-o", trace, *options, "--", *command, cwd=folder)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "detached" not in done.stderr, done.stderr
    return wstrace.open_trace(str(trace))


def faults(trace: Any) -> dict[str, np.ndarray]:
    """The columns of all page faults, one after the other."""
    batches = list(trace.batches("page_fault"))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def compiled(folder: Path, code: str, *options: str, name: str = "program.c") -> Path:
    """The program `program` in that folder, made of C code that knows PAGE_BYTES; `name`: of the source file."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    source, program = folder / name, folder / "program"
    source.write_text(code)
    page = f"-DPAGE_BYTES={mmap.PAGESIZE}"
    subprocess.run(["gcc", "-O1", "-pthread", page, "-o", program, source, *options], check=True)
    return program

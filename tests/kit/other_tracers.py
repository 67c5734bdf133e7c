"""Other tracers of the same faults: perf and bpftrace, begun before or after ours."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator

#: hangs an eBPF program that reads stacks on the faults of the whole machine
BPFTRACE = ["bpftrace", "-e", "software:page-faults:1 { @[comm, ustack] = count(); }"]


@contextlib.contextmanager
def beside(*command: str) -> Iterator[None]:
    """Another tracer of the whole machine."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as other:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(1.5)
            assert other.poll() is None, other.stderr.read()
            yield
        finally:
            other.kill()  # bpftrace would name all frames of all stacks first


def after(*command: str) -> list[str]:
    """The words before a traced command that begin another tracer once ours is on, and end it with the command."""
    script = f'{shlex.join(command)} >/dev/null 2>&1 & other=$!; sleep 2; kill -0 $other || exit 9; "$@"; code=$?; '
    return ["sh", "-c", script + "kill -KILL $other; exit $code", "sh"]


def writes_maps() -> list[str]:
    """A program that writes a BPF map all the time: bpf(2) keeps other programs off its CPU while it does."""
    code = f"""
import struct, sys
sys.path[:0] = {sys.path!r}
from wstrace_plugins.page_faults.linux.python_stacks import bpf
one = bpf.Map(bpf.HASH, 8, 8, 64, b"busy")
while True:
    for i in range(64):
        one.set(struct.pack("<Q", i), bytes(8))
"""
    return [sys.executable, "-c", code]

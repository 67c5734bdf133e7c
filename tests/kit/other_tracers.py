"""Other tracers of the same faults: perf and bpftrace, begun before or after ours."""

import contextlib
import shlex
import subprocess
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

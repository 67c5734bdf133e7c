"""`wstrace attach --cgroup A --cgroup B --keep`: a busy control group does not cost a quiet one its minutes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cgroups import made_cgroup
from growing import grow, growing

import wstrace
from wstrace.errors import WstraceError
from wstrace.firing import Recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: control groups")

#: Faults on the same pages again and again, in an order that takes room in a file.
BUSY = """
import mmap, random
size = 16 << 20
memory = mmap.mmap(-1, size)
pages = [page * 4096 for page in range(size // 4096)]
random.shuffle(pages)
while True:
    for at in pages:
        memory[at] = 1
    memory.madvise(mmap.MADV_DONTNEED)
"""
#: Its half is more than the quiet one needs, all of it less than the busy one fills in a few seconds.
RING_BYTES = 400_000


def until(condition: Callable[[], object], tracer: subprocess.Popen[str], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert tracer.poll() is None, tracer.communicate()
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


@pytest.mark.timeout(200)
def test_a_busy_cgroup_does_not_cost_a_quiet_one_its_minutes(tmp_path: Path, full_level, python_stacks):
    with made_cgroup("-rings") as above:
        quiet, busy = above.make("quiet"), above.make("busy")
        if quiet.memory is None and not (quiet.folder / "memory.current").exists():
            pytest.skip("memory is not accounted here")
        words = ["--cgroup", quiet.path, "--cgroup", f"{above.path}/b*"]
        attach = ["attach", *words, "--keep", "60s", "--on", "rss=64MiB", "-o", "api.wst", "--quiet",
                  "-e", f"flight_recorder:ring_bytes={RING_BYTES}"]  # fmt: skip
        started = [subprocess.Popen([*quiet.joining(), sys.executable, growing(tmp_path)],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True),
                   subprocess.Popen([sys.executable, "-m", "wstrace", *attach], cwd=tmp_path, text=True,
                                    stderr=subprocess.PIPE)]  # fmt: skip
        program, tracer = started

        def kept() -> int:
            """Faults of the quiet one that the ring has."""
            found = 0
            for path in tmp_path.glob("api.ring*.wst"):
                with contextlib.suppress(WstraceError), wstrace.open_trace(path) as trace:  # it changes as it is read
                    for batch in trace.batches("page_fault"):
                        found += sum(trace.strings[code] == quiet.path for code in batch["cgroup"].tolist())
            return found

        def begun() -> bool:
            grow(program, 1)
            return kept() > 0

        try:
            grow(program, 1)
            until(lambda: list(tmp_path.glob("api.ring*.wst")), tracer)
            until(begun, tracer)  # it is traced
            before = kept()
            grow(program, 8)
            started.append(subprocess.Popen([*busy.joining(), sys.executable, "-c", BUSY]))
            ring = tmp_path / "api.ring-busy.wst"
            until(lambda: list(tmp_path.glob("api.ring-busy.*.wst")) and not ring.exists(), tracer)  # it let parts go
            grow(program, 64)
            until(lambda: (tmp_path / "api-1.wst").exists(), tracer)
            tracer.send_signal(signal.SIGINT)
            said = tracer.communicate(timeout=60)[1]
        finally:
            for process in started:
                process.kill()
                process.communicate()
    assert "quiet: at " in said
    assert " by load_index app.py:5" in said, said
    with wstrace.open_trace(tmp_path / "api-1.wst") as trace:
        told = Recording.of(trace.info.extra)
        assert (told.cgroup, told.let_go.get("page_fault", 0)) == (quiet.path, 0)
        faults = list(trace.batches("page_fault"))
        assert {trace.strings[code] for batch in faults for code in np.unique(batch["cgroup"])} == {quiet.path}
        assert sum(map(len, faults)) >= before + (8 + 40) * 256, "those of before the busy one began are there"
        own = [batch for batch in faults if (batch["pid"] == program.pid).any()]
        assert all((batch["mapping"] > 0).all() for batch in own)
        assert trace.process_names()[program.pid]

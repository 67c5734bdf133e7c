"""What lies at an address of a process that ran before it was attached to."""

import os
import subprocess
import sys

import pytest

import wstrace

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("full_level")


ATTACHED = """
import mmap, os, sys, threading
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
mapped.madvise(mmap.MADV_RANDOM)
print(flush=True)
sys.stdin.readline()
threading.Thread(target=mapped.__getitem__, args=(7 * 4096,)).start()
later = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
later.madvise(mmap.MADV_RANDOM)
later[9 * 4096]
os.close(1)
sys.stdin.readline()
"""


def test_what_was_mapped_before_it_was_attached(tmp_path):
    """A process that runs already: its old mappings are read from maps, its new ones come from the kernel."""
    from wstrace.testing import RecordingExporter

    file = tmp_path / "mapped"
    file.write_bytes(os.urandom(1 << 20))
    command = [sys.executable, "-S", "-c", ATTACHED, file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        recorded = RecordingExporter()
        with wstrace.Session(process.pid, exporters=[recorded]):
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.read()  # it has touched them
        process.stdin.close()
    found = set()
    mappings = {int(m["id"][i]): int(m["start"][i]) for m in recorded.of("mapping") for i in range(len(m))}
    for batch in recorded.of("page_fault"):
        assert (batch["pid"] == process.pid).all()
        assert (batch["mapping"] != 0).all()
        assert (batch["pc_mapping"] != 0).all()
        for va, mapping, code in zip(*(batch[n].tolist() for n in ("va", "mapping", "file")), strict=True):
            if recorded.context.strings[code] == str(file):
                found.add((va - mappings[mapping]) // 4096)
    assert found == {7, 9}

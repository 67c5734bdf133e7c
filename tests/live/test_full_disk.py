"""A trace onto a disk that is full: nothing says that it was saved, and the file says what it lacks."""

import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from kit.command_line import wstrace
from kit.daemon_scripted import daemon

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts a tmpfs: run as root")
PROGRAM = "import json, email, http.client, asyncio; x = bytearray(60_000_000)"


@pytest.fixture
def disk(tmp_path):
    """disk(kib): the folder of a file system of that size."""
    mounted = []

    def mount(kib):
        folder = tmp_path / f"{kib}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", folder], capture_output=True)
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr!r}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kib", [4, 24, 48])
def test_a_file_on_a_full_disk_says_what_it_lacks(disk, kib):
    path = disk(kib) / "x.wst"
    ran = wstrace("run", "-o", path, "--", sys.executable, "-c", PROGRAM)
    assert ran.returncode == 123, ran.stderr
    assert "No space left on device" in ran.stderr.splitlines()[1]
    assert "No space left on device" in ran.stderr.splitlines()[-1]
    assert "saved" not in ran.stderr

    found = json.loads(wstrace("info", path, "--json").stdout)
    assert found["state"] in ("incomplete", "cut")
    shown = wstrace("report", path)
    assert shown.returncode == 0
    assert ("the file lacks" if found["state"] == "incomplete" else "the file is cut") in shown.stdout.splitlines()[1]
    if found["state"] == "incomplete":
        assert found["missing"] + sum(found["rows"].values()) >= found["ledger"]["recorded:page_fault"] > 10_000


def test_the_targets_own_exit_code_wins(disk):
    ran = wstrace("run", "-o", disk(24) / "x.wst", "--", sys.executable, "-c", PROGRAM + "; raise SystemExit(7)")
    assert ran.returncode == 7
    assert "No space left on device" in ran.stderr


def test_the_daemon_tells_of_a_full_disk_while_it_is_full(disk, tmp_path):
    folder, settings = disk(256), tmp_path / "wstrace.toml"
    settings.write_text(f"""
        sources = ["faulting:faults=1000"]
        exporters = ["msgpack"]
        [daemon]
        health = "127.0.0.1:0"
        max_cpu = 64
        max_memory = "64GiB"
        [msgpack]
        path = "{folder}/node.wst"
    """)
    with daemon(settings, lacks=" records: No space left on device") as running:
        running.until(lambda: running.ask("/health") == (200, "tracing\n"))
        with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        running.until(lambda: running.ask("/health") == (503, "an output is stalled\n"))
        assert running.facts()["exporters"] == {"msgpack": "No space left on device"}
        (folder / "ballast").unlink()
        running.until(lambda: running.ask("/health") == (200, "tracing\n"))
        assert running.facts()["exporters"] == {"msgpack": ""}

"""Where stat(2) and the mappings may name another device and inode (overlayfs, btrfs), names are given all the same."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.command_line import answer, wstrace
from kit.recorded_run import compiled

pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: needs root"),
]

#: without a build-id: then the file on the disk is believed only if it is the inode that was mapped
PROGRAM = r"""
#include <stdlib.h>
__attribute__((noinline)) void touch_them(volatile char *p) { for (int i = 0; i < 3000; i++) p[i * 4096L] = 1; }
int main(void) { touch_them(malloc(3000 * 4096L)); return 0; }
"""


def run(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True, timeout=60)


def mounted_overlay(folder: Path) -> Path:
    """The file is in the lower layer."""
    for name in ("lower", "upper", "work", "mounted"):
        (folder / name).mkdir()
    layers = f"lowerdir={folder / 'lower'},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    run("mount", "-t", "overlay", "overlay", "-o", layers, folder / "mounted")
    return folder / "lower"


def mounted_btrfs(folder: Path) -> Path:
    """Its subvolumes have a device of their own in stat(2)."""
    (folder / "mounted").mkdir()
    with (folder / "disk").open("wb") as disk:
        disk.truncate(128 << 20)
    run("mkfs.btrfs", "-q", folder / "disk")
    run("mount", "-o", "loop", folder / "disk", folder / "mounted")
    return folder / "mounted"


@pytest.fixture(params=[mounted_overlay, mounted_btrfs], ids=["overlay", "btrfs"])
def program(request, tmp_path):
    """PROGRAM on such a file system."""
    made = compiled(tmp_path, PROGRAM, "-Wl,--build-id=none")
    try:
        to = request.param(tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this file system cannot be made here: {error}")
    try:
        shutil.copy(made, to / "program")
        yield tmp_path / "mounted" / "program"
    finally:
        run("umount", "-l", tmp_path / "mounted")


def test_names_are_given_where_maps_and_stat_differ(program, tmp_path):
    answer("run", "-q", "-o", tmp_path / "x.wst", "--", program)

    def functions():
        shown = json.loads(wstrace("report", tmp_path / "x.wst", "--by", "function", "--json").stdout)
        return {row["label"]: row["faults"] for row in shown["rows"]}

    assert functions()["program!touch_them"] >= 2900
    sections = wstrace("report", tmp_path / "x.wst", "--by", "section", "--top", 100).stdout
    assert "program!" in sections
    other = program.with_name("other")  # another file takes its name: no name is better than a wrong one
    shutil.copy(program, other)
    other.replace(program)
    assert not [label for label in functions() if label.startswith("program!")]

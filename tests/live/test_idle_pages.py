"""Idle page tracking: built to the kernel's documentation; the answers of the bitmap are injected."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from stopped_process import stopped

from wstrace_plugins.working_set.linux import backend, idle_pages
from wstrace_plugins.working_set.used import windows

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="numbers of page frames need root")
PAGE = mmap.PAGESIZE
TOUCHES = "m = anon(64 * PAGE); touch(m); ready(at(m))"


@pytest.fixture
def bitmap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bitmap that keeps what is written: nothing is used."""
    found = tmp_path / "bitmap"
    found.touch()
    os.truncate(found, 1 << 30)
    monkeypatch.setattr(idle_pages, "BITMAP", found)
    return found


def use(bitmap: Path, pid: int, start: int, pages: list[int]) -> None:
    """Takes the marks of these pages away, as the kernel does when they are used."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap, bitmap.open("r+b") as marks:
        for page in pages:
            pagemap.seek((start // PAGE + page) * 8)
            frame = int(np.frombuffer(pagemap.read(8), "<u8")[0]) & (1 << 55) - 1
            marks.seek(frame // 8)
            before = marks.read(1)[0]
            assert before >> frame % 8 & 1, "it was marked"
            marks.seek(frame // 8)
            marks.write(bytes([before & ~(1 << frame % 8)]))


def test_what_has_lost_its_mark_was_used(bitmap):
    with stopped(TOUCHES) as (pid, (start,)):
        bits = backend.referenced_bits(pid)
        assert bits.method == "idle pages"
        bits.clear()
        assert bits.read().used.sum() == 0
        use(bitmap, pid, int(start), [3, 4, 40])
        uses = bits.read()
        bits.close()
    used = {name: n for name, n in zip(uses.names, uses.used.tolist(), strict=True) if n}
    assert used == {"[anon]": 3 * PAGE}
    assert uses.resident.sum() > 64 * PAGE


def test_a_window_says_by_which_way(bitmap):
    with stopped(TOUCHES) as (pid, _):
        (window,) = windows(pid, 0.2)
    assert (window.method, window.used) == ("idle pages", 0)


def test_a_folio_has_the_mark_of_its_first_frame(monkeypatch):
    flags = {n: 1 << 16 if 65 <= n < 128 else 0 for n in range(256)}
    monkeypatch.setattr(idle_pages, "_flags", lambda _, frames: np.array([flags[n] for n in frames.tolist()], "<u8"))
    frames = np.array([64, 65, 99, 127, 128, 7], "<u8")
    assert idle_pages.heads(frames).tolist() == [64, 64, 64, 64, 128, 7]


@pytest.mark.parametrize("size", [512, 2048, 8192])
def test_a_huge_page_has_as_many_frames_as_a_page_table(monkeypatch, size):
    """2 MiB in pages of 4 KiB, 32 MiB in pages of 16 KiB, 512 MiB in pages of 64 KiB."""
    flags = np.zeros(2 * size, "<u8")
    flags[size + 1 :] = 1 << 16
    monkeypatch.setattr(idle_pages, "_flags", lambda _, frames: flags[frames.astype(np.intp)])
    frames = np.arange(size, 2 * size, dtype="<u8")
    assert set(idle_pages.heads(frames).tolist()) == {size}


def test_the_bitmap_is_asked_for_no_word_without_a_wanted_frame():
    words = idle_pages.words_of(np.array([0, 63, 64, 1000, 64], "<u8"))
    assert [(first, list(map(int, bits))) for first, bits in words] == [(0, [1 | 1 << 63, 1]), (15, [1 << 40])]


def test_without_it_the_bits_are_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(idle_pages, "BITMAP", tmp_path / "none")
    assert backend.referenced_bits(os.getpid()).method == "referenced bits"

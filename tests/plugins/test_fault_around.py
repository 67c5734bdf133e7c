"""How much a read fault maps around the touched page, as it is found out on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("windows of read faults on Linux", allow_module_level=True)

import mmap

from wstrace_plugins.page_faults.linux import fault_around


def test_what_is_tried_is_bounded_by_the_window_and_by_what_is_there():
    window = fault_around.fault_around_bytes()
    assert window >= mmap.PAGESIZE
    for n in (mmap.PAGESIZE, window, 4 * window):
        assert fault_around.mapped_of(n) == min(n, window), n


def test_the_setting_is_believed_where_it_can_be_read(tmp_path, monkeypatch):
    setting = tmp_path / "fault_around_bytes"
    monkeypatch.setattr(fault_around, "_SETTING", setting)
    tried = fault_around.fault_around_bytes()
    for text, found in (("262144\n", 262144), ("1\n", mmap.PAGESIZE), ("", tried)):
        setting.write_text(text)
        assert fault_around.fault_around_bytes() == found, text
    monkeypatch.setattr(fault_around, "_SETTING", Path("/nowhere"))
    monkeypatch.setattr(fault_around, "mapped_of", lambda n: n)
    assert fault_around.fault_around_bytes() == 1 << 20, "as much as is tried at most"

"""What the page faults of a program depend on besides itself: the kernel, its huge pages, libc, the processor."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CPU = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def versions() -> dict[str, str]:
    """Name -> text: kernel (its first two numbers: a fix does not change how it maps), libc, thp and cpu."""
    found = {
        "kernel": ".".join(re.findall(r"\d+", os.uname().release)[:2]),
        "libc": "-".join(platform.libc_ver()).strip("-"),
    }
    if chosen := re.search(r"\[(\w+)\]", _text(_THP)):
        found["thp"] = chosen[1]
    if model := _CPU.search(_text(Path("/proc/cpuinfo"))):
        found["cpu"] = model[1].strip()
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

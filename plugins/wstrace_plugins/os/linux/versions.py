"""What the page faults of a program depend on besides itself: the kernel, its huge pages, libc, the processor."""

from __future__ import annotations

import os
import platform
import re

from wstrace_plugins.os.linux import procfs

_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
_CPU = r"(?m)^model name\s*:\s*(.+)$"


def kernel() -> tuple[int, int]:
    """The first two numbers of the running kernel's release; (0, 0) where it has none."""
    major, minor, *_ = [int(number) for number in re.findall(r"\d{1,4}", os.uname().release)] + [0, 0]
    return major, minor


def versions() -> dict[str, str]:
    """Name -> text: kernel (its first two numbers: a fix does not change how it maps), libc, thp and cpu."""
    found = {"kernel": "{}.{}".format(*kernel()), "libc": "-".join(platform.libc_ver()).strip("-")}
    if chosen := re.search(r"\[(\w+)\]", _text(_THP)):
        found["thp"] = chosen[1]
    if model := re.search(_CPU, _text("/proc/cpuinfo")):
        found["cpu"] = model[1].strip()
    return found


def _text(path: str) -> str:
    try:
        return procfs.content(path).decode("utf-8", "replace")
    except OSError:
        return ""

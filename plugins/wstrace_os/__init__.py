"""What two or more plugins share: which operating system this is, and its halves."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from wstrace.errors import Unavailable
from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Platform

_HALVES = {"linux": "linux", "win32": "windows"}


def half(package: str, platform: str = sys.platform) -> ModuleType:
    """The module `linux` or `windows` of a plugin's package: the one place where the operating system is asked for.

    Raises:
        Unavailable: wstrace captures nothing on this system.
    """
    name = _HALVES.get(platform)
    if name is None:
        raise Unavailable(
            f"wstrace captures on Linux and Windows, not on {platform}",
            "report, info, replay and convert work here on files recorded there",
        )
    return importlib.import_module(f"{package}.{name}")


@hookimpl
def wstrace_platform() -> Platform:
    """Launching and attaching on the running system. Raises Unavailable where wstrace captures nothing."""
    platform: Platform = half("wstrace_os").platform()
    return platform

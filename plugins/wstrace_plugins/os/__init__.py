"""What several plugins share: the name of the operating system, and where to find a plugin's backend for it."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from wstrace.errors import Unavailable
from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Platform

_SYSTEMS = {"linux": "linux", "win32": "windows"}


def system(platform: str = sys.platform) -> str:
    """The folder name of an operating system: `linux` or `windows`. Nothing else queries the system's name.

    Raises Unavailable: wstrace cannot capture on this system.
    """
    name = _SYSTEMS.get(platform)
    if name is None:
        raise Unavailable(
            f"wstrace captures on Linux and Windows, not on {platform}",
            "report, info, replay and convert work here on files recorded there",
        )
    if sys.maxsize < 1 << 32:
        raise Unavailable("wstrace captures with a 64-bit Python, and this one has 32 bits", "install a 64-bit Python")
    return name


def backend(package: str, platform: str = sys.platform) -> ModuleType:
    """The module `backend` in a plugin's folder for an operating system, by default the running one.

    Raises Unavailable: wstrace cannot capture on this system, or the plugin has no folder for it.
    """
    name = f"{package}.{system(platform)}"
    if importlib.util.find_spec(name) is None:
        raise Unavailable(f"{package} has no backend for {system(platform)}", "wstrace plugins lists what each can do")
    return importlib.import_module(f"{name}.backend")


@hookimpl
def wstrace_platform() -> Platform:
    """Launches and attaches on the running system. Raises Unavailable where wstrace cannot capture."""
    platform: Platform = backend("wstrace_plugins.os").platform()
    return platform

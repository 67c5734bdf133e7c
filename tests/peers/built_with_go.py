"""Programs that tests build with Go, each once, into the user's cache: ~/.cache/wstrace, or WSTRACE_CACHE."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


class NoGo(Exception):
    """Go is absent or too old: the program cannot be built here."""


def built_once(name: str, build: Callable[[Path], None]) -> Path:
    """The path of the program of that name in the cache; `build` makes it where it is not there."""
    cache = Path(os.environ.get("WSTRACE_CACHE") or Path.home() / ".cache" / "wstrace")
    built = cache / name
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{name.partition('-')[0]}.lock").open("w") as lock:  # two test runs at once build it once
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.exists():
                build(built)
    return built


def go(what: str) -> str:
    """The path of Go, which is needed for `what`. Raises NoGo."""
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if found is None:
        raise NoGo(f"there is no Go on this machine; {what} is built with it (https://go.dev/dl)")
    return found

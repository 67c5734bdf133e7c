"""Conditions under which a command is run, so that its figures differ less from run to run, or are of a cold start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from wstrace.interfaces import Platform


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is asked for; a command that is started under none of them runs as it would anyway.

    aslr: whether the system places its memory at random. hash_seed: PYTHONHASHSEED, None = as it is. cold: whether the
    files that it maps are to be read from disk.
    """

    aslr: bool = True
    hash_seed: int | None = None
    cold: bool = False

    @property
    def versions(self) -> dict[str, str]:
        """What a baseline notes of them: figures under other conditions are not compared."""
        found = {} if self.aslr else {"aslr": "off"}
        if self.hash_seed is not None:
            found["hash seed"] = str(self.hash_seed)
        return {**found, "cache": "cold"} if self.cold else found

    @contextmanager
    def held(self, platform: Platform, files: Iterable[str] = ()) -> Iterator[None]:
        """While entered, what this process starts is under them.

        Args:
            platform: that of this system.
            files: the command's own files, which leave the page cache if `cold`, but for pages that others use.

        Raises:
            Unavailable: the system cannot.
        """
        before = os.environ.get("PYTHONHASHSEED")
        if self.cold:
            platform.evict(files)
        with nullcontext() if self.aslr else platform.without_aslr():
            if self.hash_seed is not None:
                os.environ["PYTHONHASHSEED"] = str(self.hash_seed)
            try:
                yield
            finally:
                if self.hash_seed is not None:
                    os.environ.pop("PYTHONHASHSEED", None)
                    os.environ.update({} if before is None else {"PYTHONHASHSEED": before})

"""Conditions under which a command is run, so that its figures differ less from run to run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from wstrace.interfaces import Platform, Target, Usage


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is wanted; a command that is started under none of them runs as it would anyway.

    aslr: whether the system places its memory at random. hash_seed: PYTHONHASHSEED, None = as it is.
    """

    aslr: bool = True
    hash_seed: int | None = None

    @property
    def versions(self) -> dict[str, str]:
        """What a baseline notes of them: figures under other conditions are not compared."""
        found = {} if self.aslr else {"aslr": "off"}
        if self.hash_seed is not None:
            found["hash seed"] = str(self.hash_seed)
        return found

    @contextmanager
    def held(self, platform: Platform) -> Iterator[None]:
        """While entered, what this process starts is under them. Raises Unavailable: the system cannot."""
        before = os.environ.get("PYTHONHASHSEED")
        with nullcontext() if self.aslr else platform.without_aslr():
            if self.hash_seed is not None:
                os.environ["PYTHONHASHSEED"] = str(self.hash_seed)
            try:
                yield
            finally:
                if self.hash_seed is not None:
                    os.environ.pop("PYTHONHASHSEED", None)
                    os.environ.update({} if before is None else {"PYTHONHASHSEED": before})


def run(target: Target) -> tuple[int, Usage]:
    """Lets a launched target run to its end: its exit code, and what the system accounts to it.

    What raises meanwhile, such as Ctrl-C, ends the target first.
    """
    target.resume()
    try:
        while (code := target.wait(0.5)) is None:
            pass
    except BaseException:
        target.signal(signal.SIGTERM)
        raise
    return code, target.usage()


#: Of streams(): what is started reads nothing and prints to nobody.
UNSEEN: Mapping[int, int | None] = {0: None, 1: None, 2: None}


@contextmanager
def streams(places: Mapping[int, int | None]) -> Iterator[None]:
    """While entered, these descriptors are others, or the null device: what a command that is started now inherits."""
    saved = {number: os.dup(number) for number in places}
    try:
        for number, other in places.items():
            source = os.open(os.devnull, os.O_RDWR) if other is None else os.dup(other)
            os.dup2(source, number)
            os.close(source)
        yield
    finally:
        for number, descriptor in saved.items():
            os.dup2(descriptor, number)
            os.close(descriptor)

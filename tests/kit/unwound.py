"""Unwinds samples that others took, with mappings that they tell, without a trace."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kit.perf_data import Mapping, Sample, arrays
from wstrace.batch import Dictionary
from wstrace.schema import KIND_FILE, KIND_SHIFT, KIND_VDSO, MAP_EXECUTE, MAP_READ, MAPPING
from wstrace.testing import batch_of
from wstrace_plugins.stacks.linux.known_code import KnownCode
from wstrace_plugins.stacks.unwinder import Samples, unwind


class Stack(NamedTuple):
    """The places of its frames, innermost first, and whether they are all.

    A place is an offset into a file, or an address.
    """

    places: list[int]
    addresses: list[int]
    whole: bool


def _around(old: Mapping, new: Mapping) -> list[Mapping]:
    """What a new mapping leaves of an old one."""
    below = old._replace(end=min(old.end, new.start))
    first = max(old.start, new.end)
    above = old._replace(start=first, offset=old.offset + first - old.start)
    return [one for one in (below, above) if one.start < one.end]


def code_of(pid: int, mappings: Sequence[Mapping]) -> KnownCode:
    """What is known of the code of a process; of two mappings of an address the later one holds."""
    live = []
    for new in mappings:
        if new.protection & 4 or new.name == "//anon":
            live = [rest for one in live for rest in _around(one, new)] + [new]
    live.sort(key=lambda one: one.start)
    kinds = [KIND_VDSO if one.name == "[vdso]" else KIND_FILE for one in live]
    strings = Dictionary()
    code = KnownCode(strings)
    code.learn(
        batch_of(
            MAPPING, strings, id=list(range(2, 2 + len(live))), time_ns=1, pid=pid,
            start=[one.start for one in live], end=[one.end for one in live], offset=[one.offset for one in live],
            file=[one.name if one.name.startswith("/") and not one.name.startswith("//") else "[anon]" for one in live],
            dev=[os.makedev(*one.device) for one in live], ino=[one.ino for one in live], build_id="",
            flags=[MAP_READ | MAP_EXECUTE | kind << KIND_SHIFT for kind in kinds],
        )
    )  # fmt: skip
    starts, ends = np.array([one.start for one in live], "<u8"), np.array([one.end for one in live], "<u8")

    def mappings_at(rows, addresses):
        at = np.searchsorted(starts, addresses, side="right") - 1
        return np.where((at >= 0) & (addresses < ends[np.maximum(at, 0)]), at + 2, 0).astype("<u4")

    code.begin([pid], mappings_at)
    return code


def stacks(samples: Sequence[Sample], code: KnownCode) -> list[Stack]:
    """The stacks of samples of one process."""
    found = unwind(Samples(**arrays(samples)), code)
    made = []
    mappings = {one.id: one for one in code._mappings}
    for row, whole in enumerate(found.whole.tolist()):
        frames = [code.frames[number].tolist() for number in found.frames[row, : found.depth[row]]]
        places = [frame[2] for frame in frames if frame[1]]
        addresses = []
        for _, mapping, offset, *_ in frames:
            if mapping:
                one = mappings[mapping]
                in_file = code._strings[one.file].startswith("/") or one.is_vdso
                addresses.append(offset - one.offset + one.start if in_file else offset)
        made.append(Stack(places, addresses, whole))
    return made

"""A snapshot by image section, `module!section(n)`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.symbols import Symbolizer, label_of
from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.plugins import default_plugins
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_EXECUTE, MAPPING, PAGE_FAULT
from wstrace_plugins.os.intervals import cut
from wstrace_plugins.working_set.working_set import WorkingSet

#: what is mapped of one image; beyond it its pages count for the module
_MAX_IMAGE_BYTES = 1 << 30


def sectioned(taken: WorkingSet) -> WorkingSet:
    """The snapshot with the mappings of images cut at their sections and named after these.

    A page belongs to the section that it begins in. Pages of an image outside of its sections (headers) belong to the
    module, those of files that no process executes to the file.
    """
    page, mappings = np.uint64(taken.page_size), taken.mappings
    images, n = _images(taken), len(mappings["start"])
    # each page of an image becomes a mapping of its own
    each = np.where(images, (mappings["end"] - mappings["start"]) // page, 1).astype(np.int64)
    row = np.repeat(np.arange(n), each)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
    columns, paged = {name: column[row] for name, column in mappings.items()}, images[row]
    columns["start"] += nth.astype("<u8") * page
    columns["end"][paged] = columns["start"][paged] + page
    symbolizer = Symbolizer(Context(resolvers=default_plugins().make_resolvers()), live=True)
    ids = {"id": np.arange(1, n + 1, dtype="<u4"), "pid": np.full(n, taken.pid, "<u4")}
    symbolizer.learn(Batch(MAPPING, {**mappings, **ids}, strings=taken.strings))
    places = {"va": columns["start"][paged], "mapping": (row[paged] + 1).astype("<u4")}
    found = symbolizer.of(Batch(PAGE_FAULT, places, strings=taken.strings), "va", "mapping", "file")
    columns["file"][paged] = [taken.strings.code(label_of(place, "section")) for place in found]
    # and those of one section one mapping again
    first = np.flatnonzero((nth == 0) | (columns["file"] != np.roll(columns["file"], 1)))
    end = columns["end"][np.append(first[1:], len(row)) - 1]
    columns = {name: column[first] for name, column in columns.items()} | {"end": end}
    low, high, of = cut(taken.runs["start"], taken.runs["start"] + taken.runs["pages"] * page, columns["start"])
    runs = {name: column[of] for name, column in taken.runs.items()}
    runs |= {"start": low, "pages": ((high - low) // page).astype("<u4")}
    runs["row"] = (np.searchsorted(columns["start"], low, "right") - 1).astype("<u4")
    return replace(taken, mappings=columns, runs=runs)


def _images(taken: WorkingSet) -> NDArray[np.bool_]:
    """Mask of the mappings of files that are executed somewhere in the process, and are not too large to ask about."""
    mappings = taken.mappings
    is_file = (mappings["flags"] >> KIND_SHIFT) & 15 == KIND_FILE
    executed = np.unique(mappings["file"][is_file & (mappings["flags"] & MAP_EXECUTE != 0)])
    small = mappings["end"] - mappings["start"] <= _MAX_IMAGE_BYTES
    found: NDArray[np.bool_] = is_file & np.isin(mappings["file"], executed) & small
    return found

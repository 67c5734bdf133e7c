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
    images = np.flatnonzero(_images(taken))
    pages = ((mappings["end"][images] - mappings["start"][images]) // page).astype(np.int64)
    if not pages.any():
        return taken
    row = np.repeat(images, pages)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pages) - pages, pages)
    addresses = mappings["start"][row] + nth.astype("<u8") * page
    symbolizer = Symbolizer(Context(resolvers=default_plugins().make_resolvers()), live=True)
    n = len(mappings["start"])
    ids = {"id": np.arange(1, n + 1, dtype="<u4"), "pid": np.full(n, taken.pid, "<u4")}
    symbolizer.learn(Batch(MAPPING, {**mappings, **ids}, strings=taken.strings))
    batch = Batch(PAGE_FAULT, {"va": addresses, "mapping": (row + 1).astype("<u4")}, strings=taken.strings)
    labels = (label_of(place, "section") for place in symbolizer.of(batch, "va", "mapping", "file"))
    codes = np.fromiter(map(taken.strings.code, labels), "<u4", len(row))
    first = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | (row[1:] != row[:-1])])
    borders, names = addresses[first], codes[first]
    start, end, of = cut(mappings["start"], mappings["end"], borders)
    columns = {name: column[of] for name, column in mappings.items()} | {"start": start, "end": end}
    at = np.minimum(np.searchsorted(borders, start), len(borders) - 1)
    columns["file"] = np.where(borders[at] == start, names[at], columns["file"]).astype("<u4")
    runs = taken.runs
    low, high, of = cut(runs["start"], runs["start"] + runs["pages"] * page, borders)
    parts = {name: column[of] for name, column in runs.items()}
    parts |= {"start": low, "pages": ((high - low) // page).astype("<u4")}
    parts["row"] = (np.searchsorted(start, low, "right") - 1).astype("<u4")
    return replace(taken, mappings=columns, runs=parts)


def _images(taken: WorkingSet) -> NDArray[np.bool_]:
    """Mask of the mappings of files that are executed somewhere in the process, and are not too large to ask about."""
    mappings = taken.mappings
    is_file = (mappings["flags"] >> KIND_SHIFT) & 15 == KIND_FILE
    executed = np.unique(mappings["file"][is_file & (mappings["flags"] & MAP_EXECUTE != 0)])
    small = mappings["end"] - mappings["start"] <= _MAX_IMAGE_BYTES
    found: NDArray[np.bool_] = is_file & np.isin(mappings["file"], executed) & small
    return found

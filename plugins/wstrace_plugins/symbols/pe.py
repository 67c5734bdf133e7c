"""PE files as an Image: EXE, DLL, SYS; 32 or 64 bits.

A mapping of a PE image counts RVAs as offsets, because Windows maps an image as a whole. Everything in the file is
hostile input: each read is bounded and checked, each count is limited before it is used.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os.windows import image_id
from wstrace_plugins.symbols import dbghelp
from wstrace_plugins.symbols.image import SEGMENT, Image, ImageError, Readable, covering
from wstrace_plugins.symbols.pe_headers import SECTION_HEADER as SECTION_HEADER
from wstrace_plugins.symbols.pe_headers import PeHeaders, is_code, read_headers, section_rows
from wstrace_plugins.symbols.pe_names import readable
from wstrace_plugins.symbols.pe_symbols import coff_symbols, exports, function_table, string_table, with_ends


def read_image(file: Readable) -> Image:
    """The Image of a PE file: EXE, DLL, SYS; 32 or 64 bits.

    Raises:
        ImageError: it is cut off, or its headers contradict themselves.
    """
    headers = read_headers(file)
    strings = string_table(file, headers)
    rows, names = section_rows(headers, strings)
    segments = np.array([(0, headers.size, headers.base, headers.size)], SEGMENT)
    exported, export_names = exports(file, headers)
    own, own_names = coff_symbols(file, headers, strings)
    own["name"] += len(export_names)
    found = np.concatenate((own, exported))  # of two names for one address the first is kept
    symbols = with_ends(found, rows, headers, function_table(file, headers))
    build_id = _build_id(file, headers)
    complete = len(own) > 0
    ask = None if complete else partial(_ask, file.path, file.identity, build_id, rows[is_code(headers, rows)])
    return Image(segments, rows, names, symbols, export_names + own_names, build_id, readable, complete, ask)


def _ask(
    path: str, identity: Hashable, build_id: str, code: NDArray[Any], addresses: NDArray[Any]
) -> dict[int, tuple[str, int]]:
    """What dbghelp knows about those of the addresses that lie in code. Raises Unavailable once it has crashed."""
    inside = addresses[covering(code, addresses) >= 0]
    return dbghelp.functions(path, identity, build_id, inside.tolist()) if len(inside) else {}


def _build_id(file: Readable, headers: PeHeaders) -> str:
    """The id of this very build; a file with a damaged debug directory is identified by time stamp and size."""
    try:
        return image_id.of_file(file.read)
    except (ImageError, ValueError):
        return image_id.by_stamp(headers.stamp, headers.size)

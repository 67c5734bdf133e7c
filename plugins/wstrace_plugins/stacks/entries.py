"""The entries of `.eh_frame`: common ones, and which addresses the others begin at.

Source: Linux Standard Base 5.0, 10.6.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from wstrace_plugins.stacks.dwarf import pointer, sleb, uleb
from wstrace_plugins.stacks.frame_program import Common

#: what reading hostile bytes may raise
UNREADABLE = (IndexError, KeyError, ValueError, struct.error, OverflowError)

MOST_SCANNED = 1 << 18  # entries: about a second; a static program of C has 1,000


class Allowance:
    """How many entries may still be scanned: of all files together, as a program may map any number of them."""

    def __init__(self, left: int = MOST_SCANNED) -> None:
        self.left = left


def extent(data: bytes, at: int) -> tuple[int, int]:
    """How many bytes of an entry are behind its length, and the index behind the length."""
    (size,) = struct.unpack_from("<I", data, at)
    if size != 0xFFFF_FFFF:
        return size, at + 4
    (size,) = struct.unpack_from("<Q", data, at + 4)
    return size, at + 12


def scanned(data: bytes, address: int, allowance: Allowance) -> list[tuple[int, int]]:
    """Where what an entry describes begins, and where that entry is: addresses, in the order of the section.

    An entry whose common entry is not before it, as linkers write it, is left out, so each byte is read once.
    What is cut short ends at the last whole entry.

    Args:
        data: the section's bytes. address: where the section is loaded.
        allowance: it ends where this is used up.
    """
    found: list[tuple[int, int]] = []
    encodings: dict[int, int] = {}
    at = 0
    while allowance.left > 0 and at + 12 <= len(data):
        allowance.left -= 1
        size, body = extent(data, at)
        end = body + size
        if size < 4 or end > len(data):
            break  # the terminator, or no entry
        (back,) = struct.unpack_from("<I", data, body)
        with suppress(*UNREADABLE):  # such an entry is left out, and what depends on it
            if not back:
                encodings[at] = common_of(data[at:end], body - at).encoding
            elif body - back in encodings:
                encoding = encodings[body - back]
                start, behind = pointer(data, body + 4, encoding, address + body + 4)
                size, _ = pointer(data, behind, encoding & 15, 0)
                if size:
                    found.append((start, address + at))
        at = end
    return found


def common_of(data: bytes, at: int) -> Common:
    """The common entry in these bytes; `at` is behind its length. Raises one of UNREADABLE."""
    if struct.unpack_from("<I", data, at)[0]:
        raise ValueError("no common information entry")
    version = data[at + 4]
    end = data.index(b"\0", at + 5)
    augmentation = data[at + 5 : end]
    code_factor, at = uleb(data, end + 1)
    data_factor, at = sleb(data, at)
    return_column, at = (data[at], at + 1) if version == 1 else uleb(data, at)
    encoding, signal, augmented = 0, False, augmentation.startswith(b"z")
    if augmented:
        size, at = uleb(data, at)
        operand, at = at, at + size
        for letter in augmentation[1:]:
            if letter == ord("R"):
                encoding = data[operand]
                operand += 1
            elif letter == ord("P"):
                _, operand = pointer(data, operand + 1, data[operand] & 15, 0)
            elif letter == ord("L"):
                operand += 1
            elif letter == ord("S"):
                signal = True
            elif letter != ord("B"):
                break
    elif augmentation:
        raise ValueError("an augmentation that is not known")
    return Common(code_factor, data_factor, return_column, encoding, signal, augmented, data[at:])

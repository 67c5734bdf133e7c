"""Shortens names that are too wide, so that two different names never look the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wstrace.signatures import without_parameters

#: Tags of a compiler or interpreter, which do not help to identify a file.
_NOISE = r"\.cpython-\d+[a-z]*-[\w-]+(?=\.so)|\.abi3(?=\.so)|\[abi:\w+\]"

#: What tables are drawn with: the ellipsis, lines and blocks.
_NARROW = re.compile("[ -~\u2026\u2500-\u259f]*")
#: between the names of a table by two keys, and of `file  by  module`
_BESIDE = "  "
_PART = 10  # the least cells for each of them
#: between the frames of a stack, innermost first
_CALLED_BY = " < "


def width_of(text: str) -> int:
    """The number of terminal cells that the text takes."""
    if text.isascii() or _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len  # The import takes 5 ms.

    return cell_len(text)


def elide(names: Sequence[str], room: int, *, unicode: bool = True) -> list[str]:
    """Each name shortened to at most `room` cells.

    A name that is too wide loses the parameters and return types of C++ functions first, then tags such as
    `.cpython-311-x86_64-linux-gnu`, then its middle. Names that would look the same are numbered.

    Args:
        names: printable names; equal names get equal results.
        room: cells; less than 8 counts as 8.
        unicode: whether to mark what is left out by an ellipsis, instead of `...`.
    """
    mark, room = "…" if unicode else "...", max(room, 8)
    labels = {name: name for name in dict.fromkeys(names) if width_of(name) <= room}
    taken = set(labels.values())
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if name not in labels:
            groups.setdefault(_cut(_shorter(name, room), room, mark), []).append(name)
    for label, alike in groups.items():
        found = [label] if len(alike) == 1 and label not in taken else _numbered(label, len(alike), room, taken)
        taken.update(found)
        labels.update(zip(alike, found, strict=True))
    return [labels[name] for name in names]


def _shorter(name: str, room: int) -> str:
    """The name without C++ signatures and then without tags, as far as it is too wide."""
    for spare in (_without_signature, lambda text: re.sub(_NOISE, "", text)):
        if width_of(name) > room:
            name = spare(name)
    return name


def _without_signature(name: str) -> str:
    """`lib.so!a::b` for `lib.so!int a::b(int, C<d>) const`; sections (`lib.so!.text(14)`) and paths are unchanged."""
    module, bang, function = name.partition("!")
    return f"{module}!{without_parameters(function)}" if bang and not module.startswith("/") else name


def _cut(text: str, room: int, mark: str) -> str:
    """The text without its middle: the start gets a third of the room, or less if a path's last part needs more.

    Where words follow the last part, the text is a command line: it begins with its program.
    """
    if width_of(text) <= room:
        return text
    if 1 < len(parts := text.split(_BESIDE)) <= room // _PART:
        return _parts(parts, room, mark)
    if label := _fewer_frames(text.split(_CALLED_BY), room, mark):
        return label
    _, slash, last = text.rpartition("/")
    last_part = width_of(slash + last) if slash and " " not in last else 0
    left = max(min((room - len(mark)) // 3, room - len(mark) - last_part), 0)
    head, tail = start_of(text, left), _last(text, room - len(mark) - left)
    cut = tail.find("/")  # let the tail begin with a whole component of the path, if that costs little
    if 0 < cut <= len(tail) // 3:
        tail = tail[cut:]
    return f"{head}{mark}{tail}"


def _parts(parts: Sequence[str], room: int, mark: str) -> str:
    """Names beside each other, each shortened: those that are short give the others what they do not need."""
    free = room - len(_BESIDE) * (len(parts) - 1)
    found = list(parts)
    for done, number in enumerate(sorted(range(len(parts)), key=lambda number: width_of(parts[number]))):
        found[number] = _cut(re.sub(_NOISE, "", parts[number]), max(free // (len(parts) - done), 0), mark)
        free -= width_of(found[number])
    return _BESIDE.join(found)


def _fewer_frames(frames: Sequence[str], room: int, mark: str) -> str:
    """The innermost frames of a stack that fit, if possible beside its outermost one; "" if none fits, or no stack."""
    for outermost in (frames[-1:], []):
        for n in range(len(frames) - 2, 0, -1):
            label = _CALLED_BY.join([*frames[:n], mark, *outermost])
            if width_of(label) <= room:
                return label
    return ""


def _numbered(label: str, n: int, room: int, taken: set[str]) -> list[str]:
    """The label n times, each with its own number."""
    found: list[str] = []
    number = 1
    while len(found) < n:
        tail = f"#{number}"
        text = start_of(label, room - len(tail)) + tail
        if text not in taken:
            found.append(text)
        number += 1
    return found


def start_of(text: str, cells: int) -> str:
    """The start of the text, at most `cells` cells."""
    if text.isascii():
        return text[: max(cells, 0)]
    from rich.cells import set_cell_size

    return set_cell_size(text, max(cells, 0)).rstrip()


def _last(text: str, cells: int) -> str:
    """The end of the text, at most `cells` cells."""
    if text.isascii():
        return text[len(text) - max(cells, 0) :]
    return start_of(text[::-1], cells)[::-1]

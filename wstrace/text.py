"""Text for people: makes names from outside safe to print, and formats numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def printable(text: str, limit: int = 0) -> str:
    r"""The text with everything escaped that could act on a terminal or hide in a line.

    Control characters, ESC, line and paragraph separators, bidirectional and zero-width marks, private and unassigned
    code points become `\x1b` or `\u202e`; a byte that was not UTF-8 (surrogateescape) becomes `\xff`. The result is one
    line without side effects. Square brackets stay: hand the result to rich as Text, never as markup.
    text: a name from outside: a path, a process's name, a mark. limit: the maximum length; the middle of a longer text
    is left out. 0 = no limit.
    """
    # The text is shortened first: escaping 64 KiB of a hostile name would be wasted work.
    if limit and len(text) > limit:
        tail = (limit - 3) * 2 // 3
        text = f"{text[: limit - 3 - tail]}...{text[len(text) - tail :]}"
    if text.isprintable():  # False for Unicode's Other and Separator categories, except for the ASCII space.
        return text
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def printable_words(text: str, limit: int) -> str:
    """A sentence from outside, as printable(): what is left out of its middle is whole words, where it has words."""
    if len(text) > limit:
        tail = (limit - 5) // 2
        front, back = text[: limit - 5 - tail].rpartition(" ")[0], text[len(text) - tail :].partition(" ")[2]
        if front and back:
            return printable(f"{front} ... {back}")
    return printable(text, limit)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape maps the byte `code - 0xDC00` to this code.
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def well_formed(text: str) -> str:
    r"""The text without lone surrogates, for JSON and other UTF-8: a byte that was not UTF-8 becomes `\xff`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_escape(ord(c)) if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def json_safe(value: Any) -> Any:
    """A plain value that JSON accepts: texts and keys are well-formed, bytes become hex, other types become text."""
    if isinstance(value, dict):
        return {well_formed(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (bool, int, float)) else well_formed(str(value))


def json_line(value: Any) -> str:
    r"""A plain value as JSON on one line that cannot act on a terminal.

    JSON escapes ESC itself, but not C1 controls, DEL or bidirectional marks. Here everything unprintable is written
    as `\u009b`, which reads back as the same value.
    """
    import json  # The import takes 2 ms of every start.

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isprintable() else "".join(c if c.isprintable() else _json_escape(ord(c)) for c in text)


def _json_escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)  # A UTF-16 surrogate pair: RFC 8259, section 7.
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def spreadsheet_text(text: str) -> str:
    """The text for a cell of a CSV file, with a `'` before what a spreadsheet would take for a formula (CWE-1236)."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def encodable(text: str, encoding: str | None) -> str:
    r"""The text with characters that the encoding lacks (cp437, cp1252, ASCII) written as `\u2192`."""
    try:
        return text.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    except LookupError:  # Python does not know this encoding.
        return text.encode("ascii", "backslashreplace").decode("ascii")


def base_name(path: str) -> str:
    r"""The last part of a path of either system (`/usr/lib/libc.so.6`, `C:\Windows\ntdll.dll`); `[heap]` is unchanged.

    On Linux the path of a deleted file ends in " (deleted)", which remains part of the name.
    """
    separators = "/" if path.startswith("/") else "\\/"
    cut = max(path.rfind(separator) for separator in separators)
    return path[cut + 1 :] or path


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'X'?`, or all that are known, by name, when nothing is near; an empty word is no name."""
    import difflib  # The import takes 1 ms of every start.

    known = sorted(filter(None, known))
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def unit_of(n_bytes: float) -> tuple[str, float]:
    """The binary unit that a size is written in, and its bytes."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(n_bytes) >= 1 << power:
            return unit, float(1 << power)
    return "B", 1.0


def size(n_bytes: float) -> str:
    """A size in binary units: `512 B`, `412.6 MiB`."""
    value, step = float(n_bytes), 0
    while abs(value) >= 1024 and step < len(_UNITS) - 1:
        value, step = value / 1024, step + 1
    return f"{value:,.1f} {_UNITS[step]}" if step else f"{int(n_bytes)} B"


def signed(n_bytes: int) -> str:
    """A change in bytes: `+9.4 MiB`, `0 B`."""
    return ("+" if n_bytes > 0 else "-" if n_bytes < 0 else "") + size(abs(n_bytes))


def estimate_mark(n: int, doubtful: int, shown: Callable[[int], str] = size) -> str:
    """`~` before a figure that would be another one, as it is shown, without its doubtful part; else ""."""
    return "~" if doubtful and shown(n - doubtful) != shown(n) else ""


def damage_note(state: str) -> str:
    """What stands behind the name of a file that was made from a trace in this state; "" = nothing is wrong."""
    return "" if state == "clean" else f" (the trace is {state}: `wstrace info` tells what is lost)"


def estimates_note(sampled: int) -> str:
    """What is said of values that stand for several times the records, one of `sampled` faults; "" = of all faults."""
    return f"values are estimates: one of {number(sampled)} faults was recorded, on average" if sampled > 1 else ""


def number(n: int) -> str:
    """A count with thousands separators: `96,113`."""
    return f"{n:,}"


def duration(seconds: float) -> str:
    """A length of time: `850 us`, `2.3 s`, `4 min 10 s`, `3 h 02 min`."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def plural(n: int, noun: str) -> str:
    """The count with its noun: `1 fault`, `96,113 faults`."""
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{ending}"


_OPENING, _CLOSING = {"(": ")", "<": ">", "{": "}", "[": "]"}, ")>}]"
#: what may stand behind the parameters
_BEHIND = r"\)(?=(?: const| volatile| &&?| noexcept| \[clone [^\]]*\]|\[abi:\w+\])*$)"
#: what parameters follow: a name, not the mark of a section (`.text(14)`) or of code without a name (`JS:~(anonymous)`)
_NAME_END = r"[\w>}\]]$"


def without_parameters(function: str) -> str:
    """The function without its parameters and, where it has some, without its return type; templates stay.

    What is no signature of C++ is returned as it is.
    """
    end = re.search(_BEHIND, function)
    at = _opening(function, end.start()) if end is not None else -1
    if end is None or at <= 0 or function[at + 1 : end.start()].isdigit():
        return function
    name = function[:at].rstrip()
    if "operator" in name:
        return function if name.endswith("operator") else name
    if not re.search(_NAME_END, name):
        return function
    begin = _last_blank(name)
    return function if begin is None else name[begin:]


def without_arguments(function: str) -> str:
    """The function without parameters, return type and the arguments of its templates."""
    name = without_parameters(function)
    if name == function or function.startswith("(") or "operator" in name:
        return function
    kept, depth = [], 0
    for letter in name.replace("(anonymous namespace)", "{anonymous}"):
        depth += (letter == "<") - (letter == ">")
        if not depth and letter != ">":
            kept.append(letter)
    return "".join(kept) if not depth and kept else function


def _opening(text: str, end: int) -> int:
    """Where the bracket was opened that ends there; -1 = nowhere."""
    depth = 0
    for at in range(end, -1, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if not depth:
            return at
    return -1


def _last_blank(name: str) -> int | None:
    """Where the name begins, after the last blank that is in no bracket; None where brackets do not fit."""
    open_: list[str] = []
    begin = 0
    for at, letter in enumerate(name):
        if letter in _OPENING:
            open_.append(_OPENING[letter])
        elif letter in _CLOSING and (not open_ or open_.pop() != letter):
            return None
        elif letter == " " and not open_:
            begin = at + 1
    return None if open_ else begin

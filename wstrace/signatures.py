"""Functions of C++ in short: `v8::Factory::New` of `v8::Handle<v8::Map> v8::Factory<v8::Map>::New<int>(int) const`."""

from __future__ import annotations

import re

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

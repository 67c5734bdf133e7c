"""The stack of a fault in a JSON line: its frames innermost first, or the reason why there are none."""

from __future__ import annotations

import json
from typing import Any

from wstrace.analysis.frames import Frames
from wstrace.analysis.stacks import stack_reason
from wstrace.schema import FRAME_CUT, HOW_NO_PYTHON, STACK_HOW
from wstrace.text import json_safe

#: the columns of a fault from which its stack is made; they have no key of their own
COLUMNS = ("stack", "stack_how", "native_stack", "native_how")
_CACHED = 1 << 14  # stacks whose text is cached


class Stacks:
    """The keys `stack`, `stack_reason` and `stack_truncated` as text, made once for each distinct stack.

    Args:
        frames: names the frames.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._texts: dict[tuple[int, ...], str] = {}
        self._sites = 0

    def text(self, row: dict[str, Any]) -> str:
        """`,"stack":[...]` of a row of columns; "" of one without any of COLUMNS."""
        if not any(name in row for name in COLUMNS):
            return ""
        key = tuple(row.get(name, -1) for name in COLUMNS)
        if len(self._frames.tree) != self._sites or len(self._texts) > _CACHED:
            self._sites = len(self._frames.tree)
            self._texts.clear()
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = "," + json.dumps(json_safe(self._keys(*key)), separators=(",", ":"))[1:-1]
        return found

    def _keys(self, python: int, how: int, native: int, native_how: int) -> dict[str, Any]:
        tree = self._frames.tree
        inner, outer = tree.stack(max(python, 0)), tree.stack(max(native, 0))
        frames = self._frames.interleaved(python, native) if inner and outer else self._frames.all(inner or outer)
        how_by_kind = {"python": how, "native": native_how, "kernel": native_how, "jit": native_how}
        shown = []
        for frame in frames:
            one = frame.as_dict()
            if 0 < (number := how_by_kind.get(frame.kind, 0)) < len(STACK_HOW):
                one["how"] = "not checked" if frame.doubt else STACK_HOW[number]
            shown.append(one)
        keys: dict[str, Any] = {"stack": shown or ([] if how == HOW_NO_PYTHON else None)}
        if not inner and (how >= 0 or not outer):
            keys["stack_reason"] = stack_reason(how if how >= 0 else native_how)
        if any(frame.flags & FRAME_CUT for frame in frames):
            keys["stack_truncated"] = True
        return keys

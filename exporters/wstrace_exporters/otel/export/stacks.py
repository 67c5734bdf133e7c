"""The Python stack of a fault as attributes of its event: only where the user asked for stacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame, Frames
from wstrace.analysis.own import OwnRule
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.stacks import stack_reason
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.resource import clean

#: Frames that an event tells, from the innermost on; a collector refuses long texts.
_FRAMES = 64


class EventStacks:
    """Names the stacks of faults: native frames by module and offset, as whoever reads them has the symbols.

    Attributes:
        tree: the call sites so far.
        frames: names single frames.
    """

    def __init__(self) -> None:
        self.tree = CallTree()
        self._mappings = Symbolizer(Context())
        self.frames = Frames(self.tree, OwnRule(), self._mappings)
        self._views = StackViews(self.tree, OwnRule(), None)

    def learn(self, batch: Batch) -> None:
        """Takes a batch of call sites or of mappings."""
        self.tree.learn(batch)
        self._mappings.learn(batch)

    def attributes(self, batch: Batch, row: int) -> dict[str, Any]:
        """The attributes of a fault's event: its own line and its stack, or the reason why there is none."""
        if "stack" not in batch and "stack_how" not in batch:
            return {}
        stack = int(batch["stack"][row]) if "stack" in batch else 0
        frames = self.frames.all(self.tree.stack(stack)[:_FRAMES])
        if not frames:
            how = int(batch["stack_how"][row]) if "stack_how" in batch else 0
            return {names.STACK_REASON: stack_reason(how)}
        nodes, _ = self._views.attributed(np.array([stack]))
        (own,) = self.frames.of(nodes.tolist())
        found: dict[str, Any] = {names.CODE_FUNCTION: clean(own.name), names.CODE_FILE: clean(own.file)}
        found |= {names.CODE_LINE: own.line} if own.line else {}
        return found | {names.CODE_STACKTRACE: "\n".join(map(_line, reversed(frames)))[-names.MAX_VALUE :]}


def _line(frame: Frame) -> str:
    """A frame as Python's own tracebacks write it."""
    return f'  File "{clean(frame.file)}", line {frame.line}, in {clean(frame.name)}'

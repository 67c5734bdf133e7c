"""CallSites: stacks as a tree of frames, each frame once, whose rows (stream `call_site`) are given as they appear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, Dictionary, StackIds
from wstrace.schema import CALL_SITE, DTYPES, FRAME_CUT, FRAME_JIT, FRAME_NATIVE, FRAME_NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

_COLUMNS = [column.name for column in CALL_SITE.columns if column.name != "id"]
#: A frame without the padding of its columns: its bytes are what it is found by.
_FRAME = np.dtype([(column.name, DTYPES[column.type]) for column in CALL_SITE.columns if column.name != "id"])


class CallSites:
    """The frames of one thread's stacks, in bounded memory: about 200 bytes each.

    ids: where the ids come from: the session's (Context.stack_ids). strings: the dictionary that `function` and `file`
    are codes of. source: the name that the rows' batches carry. cut: the id that every frame without room gets, and all
    that it calls: of a frame of which nothing is known. refused: how often a frame found no room. Raises ValueError: no
    id is left. Trees are made when a session starts.
    """

    def __init__(self, ids: StackIds, strings: Dictionary, source: str = "") -> None:
        self._source_ids, self._strings, self._source = ids, strings, source
        # The keys are bytes, of which Python draws the hash anew for each process: no traced program can choose frames
        # that collide.
        self._ids: dict[bytes, int] = {}
        self._new: dict[bytes, int] = {}
        self.cut = self.refused = 0
        first = self.add(0, kind=FRAME_NONE, flags=FRAME_CUT)
        if self.refused:
            raise ValueError("no id of a call site is left")
        self.cut = int(first[0])

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self,
        parent: ArrayLike,
        *,
        kind: ArrayLike,
        mapping: ArrayLike = 0,
        offset: ArrayLike = 0,
        function: ArrayLike = 0,
        file: ArrayLike = 0,
        line: ArrayLike = 0,
        flags: ArrayLike = 0,
    ) -> NDArray[Any]:
        """The ids of frames, which are added where they are new: one level of the tree a call, from the root down.

        parent: the ids of their callers, as an earlier call of this tree gave them; 0 = none. kind, mapping, offset,
        function, file, line, flags: as the columns of `call_site`; shape (n,), or one value for all. Returns u32, shape
        (n,).
        """
        columns = np.broadcast_arrays(np.atleast_1d(parent), kind, mapping, offset, function, file, line, flags)
        frames = np.empty(len(columns[0]), _FRAME)
        for name, column in zip(_COLUMNS, columns, strict=True):
            frames[name] = column
        keys = frames.view(f"V{_FRAME.itemsize}").tolist()
        missing = [at for at, key in enumerate(keys) if key not in self._ids]
        if missing:
            new = dict.fromkeys(keys[at] for at in missing if not self.cut or columns[0][at] != self.cut)
            added = dict(zip(new, self._source_ids.take(len(new)), strict=False))
            self._ids |= added
            self._new |= added
            self.refused += sum(keys[at] not in self._ids for at in missing)
        return np.array([self._ids.get(key, self.cut) for key in keys], "<u4")

    def new_rows(self) -> Batch | None:
        """The rows that came since the last call, callers first; None without any. They go before what uses them."""
        if not self._new or (len(self._ids) == 1 and not self.refused):  # the row `cut` goes with those that matter
            return None
        new, self._new = self._new, {}
        return self._rows(np.fromiter(new.values(), "<u4"), np.frombuffer(b"".join(new), _FRAME))

    def renamed(self, name: Callable[[int, int], int]) -> Batch:
        """The rows of native frames that have a name by now, again, as those of a JIT compiler's code.

        name: mapping, offset -> the code of the function's name; 0 = none.
        """
        ids, frames = np.fromiter(self._ids.values(), "<u4"), np.frombuffer(b"".join(self._ids), _FRAME).copy()
        native = (frames["kind"] == FRAME_NATIVE) & (frames["function"] == 0) & (frames["mapping"] != 0)
        ids, frames = ids[native], frames[native]
        places = zip(frames["mapping"].tolist(), frames["offset"].tolist(), strict=True)
        frames["function"] = [name(*place) for place in places]
        frames["kind"] = FRAME_JIT
        named = frames["function"] != 0
        return self._rows(ids[named], frames[named])

    def _rows(self, ids: NDArray[Any], frames: NDArray[Any]) -> Batch:
        columns = {"id": ids, **{name: frames[name] for name in _COLUMNS}}
        return Batch(CALL_SITE, columns, source=self._source, strings=self._strings)

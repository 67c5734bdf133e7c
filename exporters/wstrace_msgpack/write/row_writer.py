"""Writes `layout=rows`: one plain msgpack map per record with names as text, for tools that do not know wstrace."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from wstrace.batch import Batch, Dictionary
from wstrace.errors import OutputError
from wstrace_msgpack.format import osfile
from wstrace_msgpack.format.values import packb, text
from wstrace_msgpack.write.writer import plain

_CHUNK_ROWS = 4096


class RowWriter:
    """Writes `{"stream": ..., column: value, ...}` for every row; the ledger and the facts come last.

    Args:
        path: the file; "-" is standard output.
        strings: the session's dictionary.
        force: whether to overwrite an existing file.

    Raises:
        OutputError: the file cannot be opened.
    """

    stalled = ""  # nothing waits: a write that fails raises

    def __init__(self, path: str, strings: Dictionary, *, force: bool = False) -> None:
        self._out = osfile.OutputFile(path, force=force)
        self._strings = strings
        self.rows: Counter[str] = Counter()
        self.dropped = 0
        self.why_dropped = ""
        self.bytes = 0
        self.created = self._out.created

    def write(self, batch: Batch) -> None:
        """Writes a batch. Raises OutputError when that fails; the file then ends with a whole record."""
        for start in range(0, len(batch), _CHUNK_ROWS):
            part = batch.take(slice(start, start + _CHUNK_ROWS))
            self._put(b"".join(map(packb, self._maps(part))))
        self.rows[batch.schema.name] += len(batch)

    def _maps(self, batch: Batch) -> list[dict[str, Any]]:
        head = {"stream": batch.schema.name}
        if batch.snapshot is not None:
            head.update(plain(batch.snapshot.to_dict()))
        values = []
        for name, array in batch.columns.items():
            column = batch.schema.column(name)
            if column is not None and column.semantic == "str":
                values.append([text(self._strings[code]) for code in array.tolist()])
            else:
                values.append(array.tolist())
        return [{**head, **dict(zip(batch, row, strict=True))} for row in zip(*values, strict=True)]

    def _put(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += self._out.write(memoryview(data)[done:])
        except OSError as error:
            if self._out.regular:
                self._out.cut(self.bytes)
            self.why_dropped = error.strerror or str(error)
            raise OutputError(f"{self._out.path}: {self.why_dropped}") from None
        self.bytes += len(data)

    def tick(self) -> None:
        """Does nothing: every batch is written at once."""

    def flush(self) -> None:
        """Does nothing: every batch is written at once."""

    settle = flush

    def close(self, ledger: Mapping[str, int], facts: Mapping[str, Any]) -> None:
        """Writes `{"stream": "end", "ledger": ..., "facts": ...}` and closes the file. Raises OutputError."""
        try:
            end = {"stream": "end", "time_ns": time.time_ns(), "ledger": dict(ledger), "facts": plain(facts)}
            self._put(packb(end))
        finally:
            unsafe = self._out.finish()
        if unsafe:
            raise OutputError(f"{self._out.path} may not survive a power failure: {unsafe}", "copy it to another disk")

    def abandon(self) -> None:
        """Closes the descriptor without writing."""
        self._out.close()

    def statistics(self) -> dict[str, int]:
        """The rows and bytes written, and the rows dropped."""
        return {"rows": sum(self.rows.values()), "bytes": self.bytes, "dropped": self.dropped}

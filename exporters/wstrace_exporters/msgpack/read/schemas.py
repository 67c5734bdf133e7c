"""The schemas of a trace's streams: those known to wstrace, and those that the file announces."""

from __future__ import annotations

from typing import Any

from wstrace.schema import DTYPES, ID_SPACES, SEMANTICS, STREAMS, Column, Schema
from wstrace_exporters.msgpack.format.frames import announced_rows
from wstrace_exporters.msgpack.format.layout import Limits


class Schemas:
    """Schemas by the name of the stream. A file can add columns to a known stream, but not change a known column.

    Args:
        limits: bounds the announced streams by `free_items`, and the columns of each by `columns`.

    Attributes:
        unknown: semantic that this version does not know -> the columns (stream.column) that have it, whose values are
            read as plain numbers.
        present: stream -> the columns that its rows have, as the marks announce; empty in files of older writers.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: dict[str, Schema] = dict(STREAMS)
        self.unknown: dict[str, list[str]] = {}
        self.present: dict[str, set[str]] = {}

    def __call__(self, name: str) -> Schema:
        """The schema of a stream; without columns when the stream is unknown."""
        return self._streams.get(name) or Schema(name, ())

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def add(self, announced: dict[str, Any], snapshots: Any = (), essentials: Any = ()) -> None:
        """Adds what a header or a mark `schema` announces; the first announcement of a column counts."""
        for name, rows in announced.items():
            if name not in self._streams and len(self._streams) >= self._limits.free_items:
                return
            schema = self(name)
            known = {column.name for column in schema.columns}
            columns = list(schema.columns)
            for word, kind, semantic in (row[:3] for row in rows):
                if kind in DTYPES and word not in known and len(columns) < self._limits.columns:
                    known.add(word)
                    columns.append(Column(word, "u32" if semantic in ID_SPACES else kind, semantic))
                    if semantic not in SEMANTICS and len(self.unknown) < self._limits.columns:
                        self.unknown.setdefault(semantic, []).append(f"{name}.{word}")
            essential, snapshot = schema.essential, schema.snapshot
            if name not in STREAMS:
                essential, snapshot = essential or _has(essentials, name), snapshot or _has(snapshots, name)
            self._streams[name] = Schema(name, tuple(columns), essential, snapshot, schema.always)

    def add_mark(self, mark: dict[str, Any]) -> None:
        """Adds what a mark announces, if it is a mark `schema`."""
        if mark.get("m") == "schema":
            announced, present = announced_rows(mark.get("schema")), mark.get("present")
            self.add(announced, mark.get("snapshot"), mark.get("essential"))
            words = {word for word in present if isinstance(word, str)} if isinstance(present, list) else set()
            for name in announced.keys() & self._streams.keys():
                known = {column.name for column in self(name).columns}
                self.present.setdefault(name, set()).update(words & known)


def _has(value: Any, name: str) -> bool:
    return isinstance(value, list | tuple) and name in value

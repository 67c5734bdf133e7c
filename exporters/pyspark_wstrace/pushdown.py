"""Filters of a query that skip files and frames: `option("pushdown", "true")`, from PySpark 4.1 on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from pyspark_wstrace.reader import WstraceReader
from wstrace.table import Selection
from wstrace_msgpack.read.trace import TraceFile

_AFTER = {GreaterThan: 1, GreaterThanOrEqual: 0}
_BEFORE = {LessThan: 0, LessThanOrEqual: 1}


class PushdownReader(WstraceReader):
    """Skips what filters of `time_ns`, `pid` and the folders of a path exclude. Spark checks the rows that are left."""

    _start: int | None = None
    _end: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Takes note of filters; all of them are given back, because frames are skipped, not rows."""
        self._folders: dict[str, set[str]] = {}
        for one in filters:
            self._note(one)
        return filters

    def _note(self, one: Any) -> None:
        name = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else ""
        values: list[Any] = list(one.value) if isinstance(one, In) else [getattr(one, "value", None)]
        if name == "time_ns" and type(one) in _AFTER:
            self._start = max(self._start or 0, values[0] + _AFTER[type(one)])
        elif name == "time_ns" and type(one) in _BEFORE:
            end = values[0] + _BEFORE[type(one)]
            self._end = end if self._end is None else min(self._end, end)
        elif name == "pid" and isinstance(one, EqualTo | In):
            pids = tuple(value for value in values if value is not None)
            mine = self.request.pids
            self.request = replace(self.request, pids=pids if mine is None else tuple(set(mine) & set(pids)))
        elif isinstance(one, EqualTo | In):
            known = self._folders.setdefault(name, set(map(str, values)))
            known &= set(map(str, values))

    def wants(self, folders: dict[str, str]) -> bool:
        """Whether no folder's value is excluded."""
        excluding = getattr(self, "_folders", {})
        return all(folders[name] in values for name, values in excluding.items() if name in folders)

    def selection(self, trace: TraceFile) -> Selection:
        """The rows that are wanted of a trace, within the bounds of the filters."""
        found = super().selection(trace)
        starts = [at for at in (found.start, self._start) if at is not None]
        ends = [at for at in (found.end, self._end) if at is not None]
        return found._replace(start=max(starts, default=None), end=min(ends, default=None))

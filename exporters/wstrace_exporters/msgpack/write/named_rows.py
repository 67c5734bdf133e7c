"""The mappings and call sites that rows name: of a whole session, and those that one part of a trace has already.

A trace that has some of a session's records writes only those that its own records name, so that what it takes on the
disk does not depend on what others map and call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import CALL_SITE, ID_SPACES, MAPPING, PROCESS, STREAMS, Schema, own_id
from wstrace_exporters.msgpack.write.live_mappings import Mappings, concatenate

_NAMED = {space: STREAMS[table] for space, table in ID_SPACES.items() if table}


class KnownRows:
    """The live mappings and all call sites of a session, by their ids. Call sites are as many as StackIds gives out.

    Args:
        strings: what the codes of names are of.
    """

    def __init__(self, strings: Dictionary) -> None:
        self._strings, self._mappings = strings, Mappings()
        self._sites: list[dict[str, NDArray[Any]]] = []
        self._row_of = np.zeros(1024, "<u4")  # the id of a call site -> its row in the only batch of _sites, plus 1
        self._indexed = 0

    def learn(self, batch: Batch) -> None:
        """Takes rows of `mapping`, `call_site` and `process`; others it does not need."""
        if batch.schema is MAPPING:
            self._mappings.add(batch)
        elif batch.schema is PROCESS:
            self._mappings.spaces.apply(batch)
        elif batch.schema is CALL_SITE and len(batch):
            self._mappings.keep(batch["mapping"])
            self._sites.append({column.name: batch[column.name] for column in CALL_SITE.columns})

    def named(self, schema: Schema, ids: set[int]) -> Batch | None:
        """The rows of `mapping` or `call_site` of these ids, and the callers of call sites; None = none is known."""
        wanted = np.fromiter(ids, "<u4", len(ids))
        rows = self._mappings.find(wanted) if schema is MAPPING else self._with_callers(wanted)
        return None if rows is None else Batch(schema, rows, strings=self._strings)

    def _with_callers(self, ids: NDArray[Any]) -> dict[str, NDArray[Any]] | None:
        if not self._sites:
            return None
        self._sites = [all_rows := concatenate(self._sites)]
        self._index(all_rows["id"])
        chosen = np.zeros(len(all_rows["id"]), np.bool_)
        while len(ids):
            rows = self._row_of[ids[ids < len(self._row_of)]]
            rows = distinct(rows[rows > 0]) - 1
            rows = rows[~chosen[rows]]
            chosen[rows] = True
            ids = all_rows["parent"][rows]
        return {name: array[chosen] for name, array in all_rows.items()} if chosen.any() else None

    def _index(self, ids: NDArray[Any]) -> None:
        new = ids[self._indexed :]
        if len(new) and (top := int(new.max())) >= len(self._row_of):
            self._row_of = np.append(self._row_of, np.zeros(top + 1, "<u4"))
        self._row_of[new] = np.arange(self._indexed + 1, len(ids) + 1, dtype="<u4")
        self._indexed = len(ids)


class NamedRows:
    """What the frames of one part name that the part has not yet.

    Args:
        known: the session's rows.
    """

    def __init__(self, known: KnownRows) -> None:
        self._known = known
        self._given: dict[str, set[int]] = {space: set() for space in _NAMED}

    def restart(self) -> None:
        """Begins a new part, which has none."""
        for given in self._given.values():
            given.clear()

    def needed(self, schema: Schema, columns: Mapping[str, NDArray[Any]]) -> Iterator[Batch]:
        """The rows of mappings and call sites to be written before these columns; they count as written."""
        for space, table in _NAMED.items():
            own = own_id(table.name) if schema is table and table is CALL_SITE else ""
            columns_of = [one.name for one in schema.columns if one.semantic == space and one.name != own]
            ids = [distinct(columns[name]) for name in columns_of if name in columns]
            given = self._given[space]
            new = {number for some in ids for number in some.tolist()} - given - {0}
            if not new:
                continue
            given |= new
            rows = self._known.named(table, new)
            if rows is None:
                continue
            if table is CALL_SITE:  # with callers, of which the part may have some
                callers = rows["id"].tolist()
                rows = rows.take(np.array([number in new or number not in given for number in callers], np.bool_))
                given |= set(callers)
            yield rows

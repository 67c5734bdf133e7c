"""Writes rollups as Parquet that any engine reads: `FOLDER/date=2026-11-22/host=web1/NAME.parquet`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import quote

import numpy as np

from wstrace.analysis.rollup import ROLLUP
from wstrace.batch import Batch
from wstrace.errors import OutputError
from wstrace.formats import save
from wstrace.output_file import refuse_url
from wstrace.output_folder import ForeignLinkError, make_folders
from wstrace.output_refusals import refusal
from wstrace.schema import Schema
from wstrace.table import Records, Selection
from wstrace.text import well_formed

_DAY = 86_400
#: What the path tells; engines take it from there, and some refuse a column that the file has, too.
_IN_PATH = ("date", "host")
_COLUMNS = tuple(column.name for column in ROLLUP.columns if column.name not in _IN_PATH)


class RollupRows(Records):
    """Rows of a rollup, as what can be saved in a file format and handed over as a table."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self.strings = batch, batch.strings

    @property
    def name(self) -> str:
        """What they are."""
        return ROLLUP.name

    @property
    def rows(self) -> dict[str, int]:
        """The number of its rows."""
        return {ROLLUP.name: len(self._batch)}

    def schema(self, name: str) -> Schema:
        """The schema of a rollup."""
        return ROLLUP

    def read(self, selection: Selection) -> Iterator[Batch]:
        """The one batch."""
        yield self._batch if selection.columns is None else self._batch.only(selection.columns)


def write_rollup(batch: Batch, folder: str, name: str) -> list[str]:
    """Writes the rows of a rollup to a file for each day and host.

    A file of the same day, host and name is replaced, so that rows which are written again count once; a file appears
    when it is whole. No other file is touched.

    Args:
        batch: rows of ROLLUP.
        folder: the folder of all rollups, which is made if it is missing.
        name: what is unique to these rows on their host: the same whenever the same rows are written.

    Returns:
        The paths of the files.

    Raises:
        OutputError: a folder or file cannot be written.
        Unavailable: there is no format `.parquet`.
    """
    refuse_url(folder)
    written = []
    days = batch["second"] // _DAY
    for day in np.unique(days).tolist():
        for host in np.unique(batch["host"][days == day]).tolist():
            rows = batch.take((days == day) & (batch["host"] == host))
            date = str(np.datetime64(day, "D"))
            place = os.path.join(folder, f"date={date}", f"host={_in_path(batch.strings[host])}")
            try:
                make_folders(place)
            except ForeignLinkError as error:
                raise refusal(place, error) from None
            except OSError as error:
                raise OutputError(
                    f"cannot make the folder {place}: {error.strerror}", "choose another folder"
                ) from None
            path = os.path.join(place, f"{name}.parquet")
            save(RollupRows(rows), path, Selection(ROLLUP.name, _COLUMNS), {}, force=True)
            written.append(path)
    return written


def name_of(boot_id: str, began_ns: int) -> str:
    """What tells the rows of a trace from all others of its host: the boot, and when the trace began (wall time)."""
    return f"{re.sub('[^0-9a-f]', '', boot_id)[:8] or 'boot'}-{began_ns}"


def _in_path(value: str) -> str:
    """A value as engines read it from a path: escaped as in URLs; of none, the word that Hive has for it."""
    return quote(well_formed(value), safe="") or "__HIVE_DEFAULT_PARTITION__"

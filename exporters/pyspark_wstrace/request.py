"""What a user asked for: the options of a data source, checked, and the files that its path stands for."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import unquote

from wstrace.errors import TraceFileNotFound, UsageError
from wstrace.text import nearest

OPTIONS = ("path", "stream", "starttime", "endtime", "pid", "columns", "pushdown", "rowsperpartition", "mergeschema",
           "ignorecorruptfiles")  # fmt: skip
#: The stream that says what became of the records of each file.
LEDGER = "ledger"
_FOLDER = re.compile(r"(?:^|/)([A-Za-z_]\w*)=([^/]*)(?=/)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/")
_SUFFIX = ".wst"


@dataclass(frozen=True)
class Request:
    """The options of a source, of which Spark gives all names in lower case.

    start_ns, end_ns: wall time. Raises UsageError for an unknown option or a wrong value.
    """

    path: str
    stream: str = "page_fault"
    start_ns: int | None = None
    end_ns: int | None = None
    pids: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    pushdown: bool = False
    rows: int = 2_000_000
    merge: bool = False
    ignore: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """What these options ask for."""
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in OPTIONS:
                raise UsageError(f"the source wstrace has no option {name!r}", nearest(name, OPTIONS))
        if not given.get("path"):
            raise UsageError("the source wstrace needs a path", 'write .load("folder/*.wst")')
        pids = given.get("pid")
        columns = given.get("columns")
        return cls(
            given["path"],
            given.get("stream") or "page_fault",
            _time("startTime", given.get("starttime")),
            _time("endTime", given.get("endtime")),
            None if pids is None else tuple(_number("pid", one) for one in pids.split(",")),
            None if columns is None else tuple(name.strip() for name in columns.split(",") if name.strip()),
            _flag("pushdown", given.get("pushdown")),
            max(1, _number("rowsPerPartition", given.get("rowsperpartition", "2000000"))),
            _flag("mergeSchema", given.get("mergeschema")),
            _flag("ignoreCorruptFiles", given.get("ignorecorruptfiles")),
        )

    def places(self) -> list[Any]:
        """The files that the path stands for, as Part takes them.

        Raises:
            TraceFileNotFound: there is none.
            UsageError: it is a URL of another scheme, such as Spark's own s3a://.
        """
        from wstrace_msgpack.read.discover import files_of
        from wstrace_msgpack.storage.urls import is_url

        found: list[str] = []
        for one in map(str.strip, self.path.split(",")):
            if not is_url(one) and _SCHEME.match(one):
                raise UsageError(f"{one}: no such store is known", "write s3://, gs://, az:// or https://, or a path")
            found += [one] if is_url(one) else _local(one)
        return files_of(found)


def path_of(place: Any) -> str:
    """The path of a file, or its URL without credentials."""
    return str(getattr(place, "shown", place))


def folders_of(path: str) -> dict[str, str]:
    """The `key=value` folders of a path: what Hive calls partitions."""
    return {key: unquote(value) for key, value in _FOLDER.findall(path)}


def _local(path: str) -> list[str]:
    path = os.path.abspath(path)  # executors have working directories of their own
    if os.path.isdir(path):  # noqa: PTH112
        path = os.path.join(glob.escape(path), "**", f"*{_SUFFIX}")
    if not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207
    if not found:
        raise TraceFileNotFound(path)
    return found


def _flag(name: str, text: str | None) -> bool:
    if (text or "false").lower() not in ("true", "false"):
        raise UsageError(f"{name}={text}: write true or false")
    return (text or "").lower() == "true"


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text}: it is no whole number") from None


def _time(name: str, text: str | None) -> int | None:
    """The nanoseconds since 1970 of a time in ISO 8601."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name}={text}: write a time such as 2026-11-22T10:00:00Z") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000

"""The columns of a stream as Spark's types, which have no unsigned numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark_wstrace.request import LEDGER, Request, folders_of, path_of
from wstrace.errors import TraceFileError, UsageError
from wstrace.schema import STREAMS, Column
from wstrace.text import nearest
from wstrace_msgpack.read.snapshot_rows import columns_of
from wstrace_msgpack.read.trace import TraceFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

#: Column type -> the signed type that holds it; 64 bits keep their bits, so that an address of the kernel is negative.
SIGNED = {"u8": "smallint", "u16": "int", "u32": "bigint", "u64": "bigint", "i64": "bigint"}
#: Types that have another name in a schema's JSON.
_IN_JSON = {"smallint": "short", "int": "integer", "bigint": "long"}
#: What is told of each row beside its stream's columns: wall time, the machine, the file.
TIME, HOST, TRACE = "time", "host", "trace"
_OF_ARROW = {"large_string": "string", "string_view": "string", "int64": "bigint", "int32": "int",
             "int16": "smallint", "bool": "boolean"}  # fmt: skip
_LEDGER = {"stage": "string", "who": "string", "n": "bigint", "is_loss": "boolean", "state": "string"}


def schema_of(options: Mapping[str, str]) -> StructType:
    """The schema of what options ask for.

    It is that of the stream in this version, whatever the files hold, so that files of several versions fit: a column
    that a file lacks is null there. Columns that only a file knows come from the first one, or from all.

    Raises:
        UsageError: an option is wrong, or a column is unknown.
        TraceFileError: the first file cannot be read.
    """
    from pyspark.sql.types import StructType

    request = Request.of(options)
    places = request.places()
    types = dict(_LEDGER) if request.stream == LEDGER else _of_stream(request, places)
    types |= {HOST: "string", TRACE: "string"}
    types |= dict.fromkeys(folders_of(path_of(places[0])), "string")
    if request.columns is not None:
        for name in request.columns:
            if name not in types:
                raise UsageError(f"the stream {request.stream} has no column {name!r}", nearest(name, types))
        types = {name: types[name] for name in request.columns}
    found = StructType()
    for name, kind in types.items():
        found = found.add(name, _IN_JSON.get(kind, kind))
    return found


def _of_stream(request: Request, places: list[Any]) -> dict[str, str]:
    known = STREAMS.get(request.stream)
    columns = [] if known is None or known.internal else list(columns_of(known))
    for place in places if request.merge else places[:1]:
        try:
            with TraceFile([place]) as trace:
                columns += trace.columns_of(request.stream) if request.stream in trace.streams else []
        except TraceFileError:
            if not request.ignore:
                raise
    if not columns:
        raise UsageError(f"no file has the stream {request.stream!r}", nearest(request.stream, [*STREAMS, LEDGER]))
    types = types_of(columns)
    return types | ({TIME: "timestamp_ntz"} if "time_ns" in types else {})


def types_of(columns: Iterable[Column]) -> dict[str, str]:
    """name -> Spark's type of each column; of a name that comes twice the first one stands."""
    found: dict[str, str] = {}
    for column in columns:
        found.setdefault(column.name, "string" if column.semantic == "str" or column.words else SIGNED[column.type])
    return found


def types_in(schema: Any) -> dict[str, str]:
    """name -> Spark's type in a schema of Spark, or of pyarrow, which Sail gives."""
    if hasattr(schema, "fields"):
        return {field.name: field.dataType.simpleString() for field in schema.fields}
    kinds = {field.name: str(field.type) for field in schema}
    return {name: "timestamp_ntz" if kind.startswith("timestamp") else _OF_ARROW.get(kind, kind)
            for name, kind in kinds.items()}  # fmt: skip

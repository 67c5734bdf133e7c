"""Trace files as a data source of Spark: `spark.read.format("wstrace").load("s3://traces/host=*/*.wst")`.

Spark imports every module whose name begins with `pyspark_` and registers its `DefaultSource`, so that nothing has to
be registered where wstrace is installed. Therefore this module imports nothing but Spark's own classes until a source
is used. Sail takes the same class: `spark.dataSource.register(DefaultSource)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_wstrace.reader import WstraceReader


class WstraceSource(DataSource):
    """The rows of one stream of many trace files.

    Options of `.option(name, value)`, beside the path of `.load(path)`, which is a file, a folder, a pattern, a URL of
    `s3://`, `gs://` or `az://` with wildcards, or several of these with commas between them:

    stream: `page_fault`, `process`, `mapping`, `resident` ..., or `ledger`: what each file recorded and lost.
    startTime, endTime: a window of wall time, ISO 8601 (UTC without an offset); frames outside of it are not read.
    pid: the processes, with commas between them.
    columns: the columns to read, with commas between them; Spark does not tell a source which ones a query needs.
    pushdown: `true` = filters of a query skip files and frames; it needs spark.sql.python.filterPushdown.enabled.
    rowsPerPartition: of a task; 2,000,000 by default.
    mergeSchema: `true` = the columns of all files, instead of those of this version and the first file.
    ignoreCorruptFiles: `true` = a file that cannot be read gives no row; the stream `ledger` tells of it.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wstrace"

    def schema(self) -> StructType:
        """The columns: those of the stream, then `time`, `host`, `trace` and the `key=value` folders of the path."""
        from pyspark_wstrace.columns import schema_of

        return schema_of(dict(self.options))

    def reader(self, schema: StructType) -> WstraceReader:
        """What reads them. It takes filters on request only: Spark refuses a reader that does, unless it is set to."""
        from pyspark_wstrace.columns import types_in
        from pyspark_wstrace.request import Request

        request = Request.of(dict(self.options))
        if request.pushdown:
            from pyspark_wstrace.pushdown import PushdownReader as Reader
        else:
            from pyspark_wstrace.reader import WstraceReader as Reader
        return Reader(request, types_in(schema))


#: What Spark registers.
DefaultSource = WstraceSource

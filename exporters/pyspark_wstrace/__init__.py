"""Trace files as a data source of Spark: `spark.read.format("wstrace").load("s3://traces/host=*/*.wst")`.

Spark imports every module whose name begins with `pyspark_` and registers its `DefaultSource`. Therefore this module
imports nothing but Spark's own classes until a source is used. docs/fleet.md has the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_wstrace.reader import WstraceReader


class WstraceSource(DataSource):
    """The rows of one stream of many trace files."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wstrace"

    def schema(self) -> StructType:
        """The columns: those of the stream, then `time`, `host`, `trace` and the `key=value` folders of the path."""
        from pyspark.sql.types import StructType

        from pyspark_wstrace.reader import Request, types_of

        found = StructType()
        for name, kind in types_of(Request.of(self.options)).items():
            found = found.add(name, kind)
        return found

    def reader(self, schema: StructType) -> WstraceReader:
        """What reads them."""
        from pyspark_wstrace.reader import Request, WstraceReader

        return WstraceReader(Request.of(self.options), [field.name for field in schema])


#: What Spark registers.
DefaultSource = WstraceSource

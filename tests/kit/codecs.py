"""Columns of a trace file by the codecs that our writer does not use."""

import zlib
from typing import Any

from wstrace_exporters.msgpack.format.columns import zstd

_CODECS = {"none": bytes, "zlib": zlib.compress, "zstd": lambda raw: zstd().compress(raw)}


def by_codec(column: list[Any], codec: str) -> list[Any]:
    """A column as columns.encode() gives it, by another codec."""
    kind, chain, own, n_bytes, data = column
    raw = zstd().decompress(data) if own == "zstd" else bytes(data)
    return [kind, chain, codec, n_bytes, _CODECS[codec](raw)]

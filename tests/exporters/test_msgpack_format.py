"""WSTF frames and columns: golden heads, round trips of every type and chain, and what a reader refuses."""

import struct
import tracemalloc
import zlib
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from kit.codecs import by_codec

from wstrace.schema import DTYPES
from wstrace_exporters.msgpack.format import columns, frames
from wstrace_exporters.msgpack.format.layout import (
    LIMITS,
    FrameError,
)
from wstrace_exporters.msgpack.format.values import Body, packb

zstd = columns.zstd()
FILE_ID = bytes(range(8))


def through(array: np.ndarray, codec: str = "zstd", **how: object) -> np.ndarray | None:
    return columns.decode(Body(packb(by_codec(columns.encode(array, **how), codec))), len(array))


arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda kind: npst.arrays(DTYPES[kind], st.integers(0, 300), elements=npst.from_dtype(np.dtype(DTYPES[kind])))
)


@given(arrays, st.booleans(), st.booleans(), st.sampled_from(["none", "zlib", "zstd"]))
def test_every_type_chain_and_codec_comes_back(array, delta, shuffle, codec):
    back = through(array, delta=delta, shuffle=shuffle, codec=codec)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


@pytest.mark.parametrize(
    "col",
    [
        ["u64", [["shuffle"], ["delta", 1]], "none", 16, bytes(16)],
        ["u64", [["shuffle"], ["shuffle"]], "none", 16, bytes(16)],
        ["u64", [["shuffle", 8]], "none", 16, bytes(16)],
        ["u64", [[]], "none", 16, bytes(16)],
        ["u64", [["delta", 1], ["delta", 1]], "none", 16, bytes(16)],
        ["f64", [], "none", 16, bytes(16)],
        ["u8", [], "lz4", 2, bytes(2)],
        ["u8", [["xor", 1]], "none", 2, bytes(2)],
        ["u8", [["delta", 1], ["xor"]], "none", 2, bytes(2)],
        ["u8", ["delta"], "none", 2, bytes(2)],
        ["u8", [["delta", "x"]], "none", 2, bytes(2)],
    ],
)
def test_an_unknown_type_filter_or_codec_costs_that_column_only(col):
    body = packb({"s": "page_fault", "n": 2, "c": {"odd": col, "pid": columns.encode(np.array([1, 2], "<u4"))}})
    rows = frames.unpack_rows(body)
    assert rows.unreadable == ["odd"]
    assert rows.columns["pid"].tolist() == [1, 2]


RAW = bytes(1000)
BAD_COLUMNS = {
    "length is not n x width": ["u8", [], "none", 999, RAW],
    "fewer bytes than announced": ["u8", [], "none", 1000, RAW[:-1]],
    "zlib gives more": ["u8", [], "zlib", 1000, zlib.compress(bytes(2000))],
    "zlib gives less": ["u8", [], "zlib", 1000, zlib.compress(bytes(10))],
    "zlib is cut": ["u8", [], "zlib", 1000, zlib.compress(RAW)[:-6]],
    "zlib is none": ["u8", [], "zlib", 1000, RAW],
    "zstd gives more": ["u8", [], "zstd", 1000, zstd.compress(bytes(2000))],
    "zstd is cut": ["u8", [], "zstd", 1000, zstd.compress(RAW)[:-3]],
    "zstd with more behind": ["u8", [], "zstd", 1000, zstd.compress(RAW) + b"x"],
    "zstd is none": ["u8", [], "zstd", 1000, RAW],
    "zstd is empty": ["u8", [], "zstd", 1000, b""],
    "a map for a type": [{}, [], "none", 1000, RAW],
    "too few parts": ["u8", [], "none"],
    "no array": 7,
}


@pytest.mark.parametrize("why", BAD_COLUMNS)
def test_a_column_that_lies_is_one_error(why):
    with pytest.raises(FrameError):
        columns.decode(Body(packb(BAD_COLUMNS[why])), 1000)


def test_a_zstd_frame_must_declare_its_size():
    compressor = zstd.ZstdCompressor(1)
    undeclared = compressor.compress(RAW[:500]) + compressor.compress(RAW[500:]) + compressor.flush()
    assert zstd.get_frame_info(undeclared).decompressed_size is None
    with pytest.raises(FrameError, match="declare"):
        columns.decode(Body(packb(["u8", [], "zstd", 1000, undeclared])), 1000)


def gibibyte_of_zeros() -> bytes:
    """A zstd frame of 1 GiB of zeros in 32 KiB, declared as 1,000 bytes where its head says so."""
    compressor = zstd.ZstdCompressor(1)
    compressor.set_pledged_input_size(1 << 30)
    block = bytes(1 << 20)
    parts = [compressor.compress(block) for _ in range(1024)]
    return b"".join([*parts, compressor.flush()])


def bombs() -> dict[str, bytes]:
    """Bodies that cost a naive reader a gigabyte or a minute."""
    giga = gibibyte_of_zeros()
    return {
        "nested arrays": b"\x81\xa1x" + b"\x91" * 16_000_000 + b"\xc0",
        "an array of empty arrays": b"\x81\xa1c\xdd" + struct.pack(">I", 16_000_000) + b"\x90" * 16_000_000,
        "a gibibyte of zstd": packb({"n": 1 << 20, "c": {"a": ["u8", [], "zstd", 1 << 20, giga]}}),
        "a gibibyte of zstd, honestly": packb({"n": 1 << 30, "c": {"a": ["u8", [], "zstd", 1 << 30, giga]}}),
        "four billion keys": b"\xdf\xff\xff\xff\xff",
        "four billion columns": b"\x81\xa1c\xdf\xff\xff\xff\xff",
        "four billion rows": packb({"n": 1 << 32, "c": {}}),
        "four billion names": b"\x81\xa1s\xdd\xff\xff\xff\xff",
        "a string of four gigabytes": b"\x81\xa1s\xdb\xff\xff\xff\xff",
        "65 columns": packb({"n": 0, "c": {str(i): ["u8", [], "none", 0, b""] for i in range(65)}}),
        "a map for a count": packb({"n": {}, "c": {}}),
        "a negative count": packb({"n": -1, "c": {}}),
        "deep values": b"\x81\xa1t" + b"\x91" * 900 + b"\xc0",
    }


BOMBS = bombs()
DECODERS = {
    "rows": frames.unpack_rows,
    "strings": frames.unpack_strings,
    "header": frames.unpack_header,
    "mark": frames.unpack_map,
    "index": frames.unpack_index,
    "end": frames.unpack_end,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_bombs_are_refused_or_passed_over_in_64_mib(name, decoder):
    tracemalloc.start()
    try:
        DECODERS[decoder](BOMBS[name])
    except FrameError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_columns_total_is_bounded_though_each_fits():
    n = LIMITS.rows
    one = columns.encode(np.zeros(n, "<u8"))
    body = packb({"n": n, "c": {str(i): one for i in range(7)}})
    with pytest.raises(FrameError, match="decoded"):
        frames.unpack_rows(body)
    assert len(frames.unpack_rows(body, lambda name: name == "3").columns) == 1


@settings(max_examples=300)
@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=200))
def test_bytes_from_anywhere_give_a_value_or_a_frame_error(decoder, data):
    with suppress(FrameError):
        DECODERS[decoder](data)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from([*"nstcvfm", "id", "base", "index", "rows", "ledger", "need", "schema", "pid", "host"])


@pytest.mark.slow
@settings(max_examples=500)
@given(st.sampled_from(sorted(DECODERS)), st.dictionaries(keys, values, max_size=6))
def test_maps_of_the_right_keys_and_wrong_values_give_a_value_or_a_frame_error(decoder, value):
    with suppress(FrameError):
        DECODERS[decoder](packb(value))


@given(st.lists(st.text() | st.text(st.characters(categories=["Cs"])), max_size=20))
def test_names_come_back_and_stand_as_utf_8_or_bytes(names):
    names = [name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for name in names]
    ids = np.arange(len(names)) * 3 + 5
    body = frames.pack_strings(ids, names)
    read, texts = frames.unpack_strings(body)
    assert (read.tolist(), texts) == (ids.tolist(), names)
    for stored, name in zip(msgpack.unpackb(body)["s"], names, strict=True):
        assert stored == name if isinstance(stored, str) else stored.decode("utf-8", "surrogateescape") == name


def test_another_major_and_any_need_are_refused_a_greater_minor_is_not():
    assert "version 3" in frames.unpack_header(packb({"v": [3, 0]})).refused()
    assert "version 1.1" in frames.unpack_header(packb({"v": [1, 1]})).refused()
    assert "time travel" in frames.unpack_header(packb({"v": [2, 0], "need": ["time travel"]})).refused()
    assert frames.unpack_header(packb({"v": [2, 9], "later": {"x": [1]}})).refused() == ""

"""COL: converts one column between `[type, chain, codec, raw_len, bin]` and a numpy array."""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import DTYPES
from wstrace_exporters.msgpack.format.layout import FrameError, Limits
from wstrace_exporters.msgpack.format.values import Body

#: numpy dtype string -> column type.
TYPES = {dtype: name for name, dtype in DTYPES.items()}
#: Columns in which neighbours differ by little; with delta 5 instead of 7 bytes per record on real captures.
DELTA = frozenset({"time_ns", "va", "start", "end", "id"})
#: The filter `shuffle`: behind delta, the high bytes are zeros, or all ones.
SHUFFLED = frozenset({"time_ns", "va"})
#: 3 is slower and hardly smaller
_LEVEL = 1
#: of a window that is no larger than a plane of FRAME_ROWS
_PLANE_WINDOW_LOG = 16
_SMALL = 64  # Below this many bytes, a codec would only add its own header.


@functools.cache  # Python searches again for a module that is missing: half a millisecond per column.
def zstd() -> Any:
    """The zstd module: the standard library's from Python 3.14 on, its backport before."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from backports import zstd
    return zstd


def encode(array: NDArray[Any], *, delta: bool = False, shuffle: bool = False) -> list[Any]:
    """Encodes an array of u8, u16, u32, u64 or i64 as a COL.

    array: shape (n,). delta: store differences of neighbours, wrapping. shuffle: store the first bytes of all values,
    then the second ones, and so on.
    """
    kind = TYPES[array.dtype.newbyteorder("<").str]
    array = np.ascontiguousarray(array, dtype=DTYPES[kind])
    chain: list[Any] = []
    if delta and len(array) > 1:
        chain = [["delta", int(array[0])]]
        differences = np.empty_like(array)
        differences[0] = 0
        np.subtract(array[1:], array[:-1], out=differences[1:])
        array = differences
    nbytes, planes = array.nbytes, 0
    if nbytes < _SMALL:
        return [kind, chain, "none", nbytes, array.tobytes()]
    if shuffle and array.itemsize > 1:
        chain.append(["shuffle"])
        planes = _used(array)
        array = _shuffled(array, planes)
    return [kind, chain, "zstd", nbytes, _zstd_frame(array, planes)]


#: The compressors of a thread: to make one takes longer than to compress a column of equal values.
_of_thread = threading.local()


def _zstd_frame(array: NDArray[Any], planes: int) -> bytes:
    """The array as one frame of zstd.

    A shuffled column is given plane by plane, each in a block of its own: a block has one Huffman table, which does not
    suit the noise of the lowest bytes and the few values of the next ones at once. Times become 7 to 9 % smaller.
    array: shape (n,), or (width, n) if it is shuffled. planes: how many of a shuffled column's planes are not zeros; 0
    = it is not shuffled.
    """
    made, key = _of_thread.__dict__, (planes > 0, array.itemsize)
    # Out of there while it is used: after an exception it may be in the middle of a frame.
    compressor = made.pop(str(key), None) or zstd().ZstdCompressor(options=_parameters(*key))
    compressor.set_pledged_input_size(array.nbytes)
    parts = [compressor.compress(plane, mode=compressor.FLUSH_BLOCK) for plane in array[:planes]]
    parts.append(compressor.compress(array[planes:], mode=compressor.FLUSH_FRAME))
    made[str(key)] = compressor
    return b"".join(parts)


def _parameters(shuffled: bool, width: int) -> dict[Any, int]:
    """The parameters of zstd.

    Wide columns that are not shuffled are instructions, which repeat: the strategy `dfast`, with a second hash table
    for long matches, halves their time, and they take a seventh of the room.
    """
    name = zstd().CompressionParameter
    found = {name.compression_level: _LEVEL}
    if shuffled:
        found[name.window_log] = _PLANE_WINDOW_LOG
    elif width == 8:
        found[name.strategy] = int(zstd().Strategy.dfast)
    return found


def _used(array: NDArray[Any]) -> int:
    """How many bytes of its values are not all zeros, counted from the lowest, 1 at least."""
    if array.dtype.kind != "u":
        return array.itemsize
    return max((int(array.max()).bit_length() + 7) // 8, 1)


def _shuffled(array: NDArray[Any], used: int) -> NDArray[Any]:
    """The bytes of the values as planes, u8, shape (width, n): the lowest bytes come first; only so many are used."""
    width, n = array.itemsize, len(array)
    planes, of_values = np.zeros((width, n), "|u1"), array.view("|u1").reshape(n, width)
    # The planes above are zeros already; skipping them, columns of times take a third of the time.
    for k in range(used):
        planes[k] = of_values[:, k]
    return planes


def _unshuffled(raw: NDArray[Any], width: int) -> NDArray[Any]:
    """The reverse of _shuffled: u8, shape (n * width,)."""
    planes = raw.reshape(width, -1)
    used = np.flatnonzero(planes.max(axis=1)).tolist()  # any() takes three times as long
    of_values = (np.empty if len(used) == width else np.zeros)((planes.shape[1], width), "|u1")
    for k in used:
        of_values[:, k] = planes[k]
    return of_values.reshape(-1)


def encode_all(columns: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    """The `c` of a body: each encoded column under its name."""
    return {name: encode(array, delta=name in DELTA, shuffle=name in SHUFFLED) for name, array in columns.items()}


def decode(body: Body, n: int) -> NDArray[Any] | None:
    """Decodes the column at the cursor, n values; None when its type, chain or codec is unknown.

    Raises FrameError: the length is not n x width, the codec fails or returns another length, or a limit is exceeded.
    """
    parts = body.array(64)
    if parts < 5:
        raise FrameError("a column of fewer than 5 parts")
    kind, filters = body.text(), _filters(body.value())
    codec, raw_len, packed = body.text(), body.uint(), body.binary()
    for _ in range(parts - 5):
        body.skip()
    dtype = DTYPES.get(kind)
    if dtype is None or filters is None or codec not in ("none", "zlib", "zstd"):
        return None
    (first, shuffled), width = filters, np.dtype(dtype).itemsize
    if raw_len != n * width or raw_len > body.limits.column:
        raise FrameError(f"a column of {raw_len:,} bytes for {n:,} rows of {width}")
    raw = np.frombuffer(_decompress(codec, packed, raw_len, body.limits), "|u1")
    if shuffled and n:
        raw = _unshuffled(raw, width)
    array = raw.view(dtype)
    if first is not None and n:
        sums = array.view(f"<u{width}") if shuffled else array.astype(f"<u{width}")
        sums[:1] += np.array(first & ((1 << 8 * width) - 1), sums.dtype)
        _add_up(sums)
        array = sums.view(dtype)
    return array


def _add_up(values: NDArray[Any]) -> None:
    """Replaces differences by their sums, in place, wrapping.

    The sums of pairs first: numpy's accumulate takes 0.45 ns per value of an array with gaps, and 2.2 ns without.
    """
    pairs = values[1::2]
    pairs += values[:-1:2]
    np.add.accumulate(pairs, out=pairs)
    values[2::2] += pairs[: (len(values) - 1) // 2]


def _filters(chain: Any) -> tuple[int | None, bool] | None:
    """(the first value of `delta` or None, whether `shuffle` follows); None = the chain has another filter or order."""
    delta, rest = None, list(chain) if isinstance(chain, list) else [chain]
    if rest and isinstance(rest[0], list) and rest[0][:1] == ["delta"] and [*map(type, rest[0][1:])] == [int]:
        delta = rest.pop(0)[1]
    return (delta, bool(rest)) if rest in ([], [["shuffle"]]) else None


def _decompress(codec: str, packed: bytes, raw_len: int, limits: Limits) -> bytes:
    if codec == "zstd":
        raw = _unzstd(packed, raw_len, limits)
    else:
        raw = packed if codec == "none" else _inflate(packed, raw_len)
    if len(raw) != raw_len:
        raise FrameError(f"a column gives {len(raw):,} bytes, {raw_len:,} were announced")
    return raw


def _inflate(packed: bytes, raw_len: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, raw_len + 1)
    except zlib.error as error:
        raise FrameError(f"zlib: {error}") from None
    if not inflater.eof:
        raise FrameError("a zlib column that does not end")
    return raw


def _unzstd(packed: bytes, raw_len: int, limits: Limits) -> bytes:
    module = zstd()
    try:
        if module.get_frame_info(packed).decompressed_size != raw_len:
            raise FrameError("a zstd column that does not declare its size")
        # Each call has its own decompressor: two threads in the same one corrupt each other's data.
        decompressor = module.ZstdDecompressor(
            options={module.DecompressionParameter.window_log_max: limits.zstd_window_log}
        )
        raw: bytes = decompressor.decompress(packed, max_length=raw_len)
        if not decompressor.eof and len(raw) == raw_len:
            raw += decompressor.decompress(b"", max_length=1)
    except (module.ZstdError, EOFError, MemoryError) as error:
        raise FrameError(f"zstd: {error}") from None
    if not decompressor.eof or decompressor.unused_data:
        raise FrameError("a zstd column that does not end where it should")
    return raw

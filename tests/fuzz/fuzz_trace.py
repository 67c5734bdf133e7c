"""Coverage-guided fuzzing of the trace reader (atheris): no bytes make it raise anything but TraceFileError.

    pip install atheris
    python tests/fuzz/fuzz_trace.py tests/fuzz/corpus -max_total_time=600

New inputs that reach new code are written to the folder. Most random changes die at the CRC, so the fuzzer takes the
bytes both as they are and with every CRC made right again: this is what gets it behind the first check.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.frames import unpack_index
from wstrace_exporters.msgpack.format.layout import CRC_FROM, CRC_TO, HEAD_BYTES, LIMITS, SYNC, FrameError, unpack_head
from wstrace_exporters.msgpack.format.values import Body
from wstrace_exporters.msgpack.read.trace import open_trace

#: small, so that a limit is reached by small inputs
TIGHT = LIMITS._replace(rows=4096, strings=512, mappings=512, frames=512, strings_total=65_536, frame_decoded=1 << 20)
_DECODERS = (
    frames.unpack_header,
    frames.unpack_strings,
    lambda data, limits: frames.unpack_rows(data, limits=limits),
    frames.unpack_map,
    unpack_index,
    frames.unpack_end,
    lambda data, limits: Body(data, limits).value(),
)
_folder = Path(tempfile.mkdtemp(prefix="wstrace-fuzz-"))


def read_all(path: Path) -> None:
    """Everything that the public reader gives of a file."""
    with suppress(TraceFileError), open_trace(str(path), limits=TIGHT) as trace:
        for stream in ("page_fault", "process", "resident", "written", "mark", "mapping", "odd"):
            for batch in trace.batches(stream):
                assert all(len(batch[name]) == len(batch) for name in batch)
        _ = list(trace.batches("page_fault", ["file", "va"], 5, 1 << 40))
        _ = (trace.header, trace.facts, trace.info, trace.ledger, trace.processes, trace.process_names(), trace.marks)
        _ = (trace.state, trace.span(), trace.lost, trace.rows, trace.streams, trace.mappings, trace.damage())


def with_right_crcs(data: bytes) -> bytes:
    """The same bytes with the length and CRC of every frame made right, as far as frames can be found."""
    fixed = bytearray(data)
    at = fixed.find(SYNC)
    while at >= 0:
        following = fixed.find(SYNC, at + HEAD_BYTES)
        end = following if following >= 0 else len(fixed)
        if unpack_head(fixed, at) is not None and end - at >= HEAD_BYTES:
            fixed[at + 30 : at + 34] = (end - at - HEAD_BYTES).to_bytes(4, "big")
            body = fixed[at + HEAD_BYTES : end]
            crc = zlib.crc32(body, zlib.crc32(fixed[at + CRC_FROM : at + CRC_TO]))
            fixed[at + 35 : at + 39] = crc.to_bytes(4, "big")
        at = following
    return bytes(fixed)


def one(data: bytes) -> None:
    """One input, in every way."""
    path = _folder / "input.wst"
    for content in (data, with_right_crcs(data)):
        path.write_bytes(content)
        read_all(path)
    if data:
        with suppress(FrameError):
            _DECODERS[data[0] % len(_DECODERS)](data[1:], TIGHT)


def main() -> None:
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

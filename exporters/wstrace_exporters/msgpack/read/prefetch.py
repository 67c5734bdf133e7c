"""Decodes the batches of a selection ahead on several threads, in the order of the file."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from wstrace.batch import Batch
from wstrace.table import Batches
from wstrace_exporters.msgpack.read.decoder import Decoder
from wstrace_exporters.msgpack.read.input import Input
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.trace import TraceFile

#: Frames that are decoded ahead: about half a megabyte each, 16 MiB at most.
_AHEAD = 8


class Prefetched:
    """An iterable of the same batches as `batches`, faster on more than one core: reading and zstd release the GIL.

    When the index of a part proves wrong, the rest of that part is read on one thread.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        trace, selection = self._batches.trace, self._batches.selection
        if not isinstance(trace, TraceFile) or selection.stream == "mapping":  # already in memory
            yield from self._batches
            return
        for part, decoder in trace.decoders(selection):
            with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "wstrace-decode") as pool:
                yield from _ordered(part, decoder, pool)


def _ordered(part: Part, decoder: Decoder, pool: ThreadPoolExecutor) -> Iterator[Batch]:
    local = threading.local()
    opened: list[Input] = []

    def decode(position: int) -> tuple[bool, Batch | None]:
        if not hasattr(local, "input"):
            local.input = source.for_thread()
            opened.append(local.input)
        entry = entries[position]
        if part.is_of_another(entry, local.input, selection.stream):
            return True, None
        frame = part.frame(entry, local.input)
        return frame is not None, decoder.batch(frame) if frame is not None else None

    selection = decoder.selection
    entries = part.chosen(decoder.kinds, selection)
    source = part.ahead(entries)
    waiting: collections.deque[Future[tuple[bool, Batch | None]]] = collections.deque()
    try:
        done, submitted = 0, 0
        while done < len(entries):
            while submitted < len(entries) and len(waiting) < _AHEAD:
                waiting.append(pool.submit(decode, submitted))
                submitted += 1
            good, batch = waiting.popleft().result()
            if not good:  # the index is wrong: part.read() scans from this frame on
                for future in waiting:
                    future.cancel()
                after = int(entries[done - 1]["offset"]) if done else -1
                for frame in part.read(decoder.kinds, selection, after=after):
                    late = decoder.batch(frame)
                    if late is not None and (len(late) or late.lost):
                        yield late
                return
            done += 1
            if batch is not None and (len(batch) or batch.lost):
                yield batch
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True)
        for each in opened:
            each.close()

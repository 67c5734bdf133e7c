"""Reads a trace from standard input by way of a temporary file, because the reader needs random access."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from wstrace.errors import TraceFileError

#: A longer standard input is refused.
LIMIT_BYTES = 16 << 30
_CHUNK = 1 << 20


class StandardInput:
    """A copy of standard input, up to its end, in a temporary file that close() removes.

    Args:
        limit: the most bytes to copy.

    Attributes:
        path: the path of the copy.

    Raises:
        TraceFileError: standard input is a terminal, is longer than the limit, or cannot be copied.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        stream = sys.stdin.buffer if sys.stdin is not None else None
        if stream is None or stream.isatty():
            raise TraceFileError(
                "standard input is no trace", "pipe one into it: wstrace run -o - -- COMMAND | wstrace report -"
            )
        self._folder = TemporaryDirectory(prefix="wstrace-")
        self.path = str(Path(self._folder.name) / "standard input")
        try:
            self._copy(stream.read, limit)
        except OSError as error:
            self.close()
            why = f"cannot keep standard input in {self._folder.name}: {error.strerror or error}"
            raise TraceFileError(why, "write it to a file, or set TMPDIR to a folder with more room") from None
        except BaseException:
            self.close()
            raise

    def _copy(self, read: Callable[[int], bytes], limit: int) -> None:
        size = 0
        with Path(self.path).open("xb") as file:
            while chunk := read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise TraceFileError(f"standard input is longer than {limit >> 20:,} MiB", "write it to a file")
                file.write(chunk)

    def close(self) -> None:
        """Removes the copy."""
        self._folder.cleanup()

"""The workload that a bare `wstrace run` traces: reads a file through a mapping, grows a list, imports a library."""

from __future__ import annotations

import mmap
import sys
import tempfile


def main() -> None:
    """Touches some 3,000 pages in ways that a summary tells apart."""
    import decimal
    import sqlite3

    with tempfile.TemporaryFile() as file:
        file.truncate(4 << 20)
        with mmap.mmap(file.fileno(), 0) as mapped:
            total = sum(mapped[offset] for offset in range(0, len(mapped), mmap.PAGESIZE))
    grown = [bytes(mmap.PAGESIZE) for _ in range(1000)]
    print(f"demo: read {total + len(grown)} pages' worth with {decimal.__name__}, {sqlite3.__name__}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()

"""The program whose memory the pictures of docs/pictures.md show: it loads a table, reads a file, and forks workers.

python program.py ROWS
"""

import mmap
import os
import random
import sys
import tempfile
import time
from pathlib import Path

PAGE, MIB = 4096, 1 << 20


def load_table(rows):
    return [f"row {number} " * 8 for number in range(rows)]


def build_index(table):
    return {row[:12]: number for number, row in enumerate(table)}


def read_file(path):
    with Path(path).open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data.madvise(mmap.MADV_RANDOM)  # no page is read ahead
    seen = 0
    for at in range(0, len(data) // 2, PAGE):
        seen += data[at]
    pages = range(len(data) // 2, len(data), PAGE)
    for at in random.sample(pages, len(pages) // 2):
        seen += data[at]
    return data


def work(table, part):
    """Copies what it changes: the memory was its parent's."""
    return [row.upper() for row in table[: len(table) * part // 4]]


def main():
    rows = int(sys.argv[1])
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.write(os.urandom(8 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        table = load_table(rows)
        index = build_index(table)
        data = read_file(file.name)
        for part in (1, 2, 3):
            if os.fork() == 0:
                kept = work(table, part)
                time.sleep(1)
                os._exit(not kept)
        time.sleep(0.7)
        for _ in range(3):
            os.wait()
    return index, data


if __name__ == "__main__":
    main()

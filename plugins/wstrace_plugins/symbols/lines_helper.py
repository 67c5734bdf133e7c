"""A process that reads the source lines of one file with `symbolic`: `python -I lines_helper.py DESCRIPTOR FOLDER`.

Whoever made the file decides what that takes: 115 KB of compressed debug information take 4.8 GB, and where symbolic
gets no memory, it aborts. Here both end this process alone, which the kernel also ends first where memory is short.
Each line of standard input is a JSON list of addresses; each line of standard output the lists of (function, path,
line) for them, the innermost inlined function first. It imports nothing of wstrace.

Source: https://getsentry.github.io/symbolic; setrlimit(2); proc(5), oom_score_adj.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MOST_INLINED, _MOST_NAME = 64, 4096
#: of address space: libpython with debug information (30 MB, not compressed) takes 72 MB, node (90 MB) a few hundred
_ROOM = 1 << 30
_SECONDS = 60  # of processor time; of node 0.8


def main() -> None:
    """Answers until standard input ends."""
    resource: Any = importlib.import_module("resource")
    for kind, most in ((resource.RLIMIT_AS, _ROOM), (resource.RLIMIT_CPU, _SECONDS), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    descriptor = int(sys.argv[1])
    sys.path.append(sys.argv[2])
    [first, *_] = importlib.import_module("symbolic").Archive.open(f"/proc/self/fd/{descriptor}").iter_objects()
    table = first.make_symcache()
    del first
    os.close(descriptor)
    for line in sys.stdin:
        found = [
            [
                (one.symbol[:_MOST_NAME], one.full_path[:_MOST_NAME], one.line)
                for one in table.lookup(address)[:_MOST_INLINED]
                if one.full_path  # code of the linker has a function, but no file
            ]
            for address in json.loads(line)
        ]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

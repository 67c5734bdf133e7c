"""How many files of the product a command enters: a function of theirs runs, in any thread; a module's body is none.

python tests/files_entered.py run -- true
python tests/files_entered.py report x.wst --by line
"""

import inspect
import os
import sys
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(f"{ROOT / folder}{os.sep}" for folder in ("wstrace", "plugins", "exporters"))


def _nothing(frame: FrameType, event: str, _: object) -> None:
    """What threads call once the command has ended."""


def entered(words: list[str]) -> list[str]:
    """The files of the product that `wstrace WORDS` enters, sorted; what it writes to stdout goes to stderr."""
    codes = set()

    def called(frame, event, _):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or class
            codes.add(frame.f_code)

    sys.path[:0] = [str(ROOT), str(ROOT / "plugins"), str(ROOT / "exporters")]
    sys.argv = ["wstrace", *words]
    stdout = os.dup(1)
    os.dup2(2, 1)
    threading.setprofile(called)  # and that of new threads
    sys.setprofile(called)
    try:
        from wstrace.cli import main

        main(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(_nothing)
        sys.stdout.flush()
        os.dup2(stdout, 1)
    return sorted({code.co_filename for code in codes if code.co_filename.startswith(PRODUCT)})


if __name__ == "__main__":
    files = entered(sys.argv[1:])
    print(*(os.path.relpath(file, ROOT) for file in files), sep="\n")
    print(len(files), "files")

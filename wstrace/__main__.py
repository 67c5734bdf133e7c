"""`python -m wstrace` and the script `wstrace`."""

# _signal is part of the interpreter, so no folder is searched for it, and `os` is imported by every start of Python.
import _signal  # type: ignore[import-not-found]  # it has no stub
import os


def _ended(number: int, _: object) -> None:
    """Ends the process by a signal that arrives while it is being imported: in one line, without a traceback."""
    name = {2: "SIGINT", 15: "SIGTERM"}.get(number, "SIGHUP")
    try:
        os.write(2, f"wstrace: interrupted by {name} before it began\n".encode())
    finally:
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)


# Until main() handles them; one that is ignored, as SIGHUP under nohup, stays so.
_handlers = {
    number: handler
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if (number := getattr(_signal, name, None)) is not None
    and (handler := _signal.getsignal(number)) in (_signal.default_int_handler, _signal.SIG_DFL)
}
for _number in _handlers:
    # Without SIGHUP (Windows) a process that Ctrl-C ends has an exit code of its own, which _ended() could not give it.
    _signal.signal(_number, _ended if hasattr(_signal, "SIGHUP") else _signal.SIG_DFL)

import atexit  # noqa: E402
import gc  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402

# Objects of the start are permanent. With Python's default threshold, the collector would visit them again and again,
# which takes a tenth of the CPU of `wstrace run -- true`.
gc.set_threshold(100_000)

if __name__ == "__main__" and not sys.flags.safe_path:
    # -m puts the working directory first, from which nothing may be imported with a tracer's privilege.
    del sys.path[0]


def main() -> None:
    """Runs the command line and exits with its code."""
    codes: list[int] = []
    # Functions are called at exit in the reverse order: ours ends the process, so another one's may not come after it.
    if not atexit._ncallbacks() and not sys.flags.dev_mode:
        atexit.register(_end, codes)
    from wstrace.cli import main as run

    for number, handler in _handlers.items():
        _signal.signal(number, handler)
    codes.append(_roomy(run, sys.argv[1:]))
    raise SystemExit(codes[0])


def _roomy(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Calls `run` with room for the frames of all that it calls.

    CPython keeps frames in chunks of 16 KiB. A loop at the end of one maps a chunk for every call and unmaps it on the
    return: by the depth at which it met our imports, that was 450 to 790 times in `wstrace run -- true`. A frame that
    needs more gets a larger chunk, of which the frames above it have the rest.
    Source: push_chunk() in CPython's Python/pystate.c, so in 3.11, 3.12 and 3.13 as tried.
    """
    return run(words)


# 128 KiB of a chunk of 256, which are never touched
_roomy.__code__ = _roomy.__code__.replace(co_stacksize=16 << 10)


def _end(codes: list[int]) -> None:
    """Ends the process before the interpreter takes itself apart, 6 % of the CPU of `wstrace run -- true`, in vain.

    What cannot be flushed or ended in this way is left to the interpreter, which says so.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if codes:
            os._exit(codes[0])
    except (OSError, OverflowError, ValueError):
        return


if __name__ == "__main__":
    main()

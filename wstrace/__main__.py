"""`python -m wstrace` and the script `wstrace`."""

# _signal is part of the interpreter, so no folder is searched for it. Until main() can say what was interrupted, Ctrl-C
# ends the process by the signal, without a traceback of an unfinished import.
import _signal  # type: ignore[import-not-found]  # it has no stub

_interrupt = _signal.getsignal(_signal.SIGINT)
if _interrupt is _signal.default_int_handler:  # otherwise SIGINT is ignored, and stays so
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import gc  # noqa: E402
import sys  # noqa: E402

# Objects of the start are permanent. With Python's default threshold, the collector would visit them again and again,
# which takes a tenth of the CPU of `wstrace run -- true`.
gc.set_threshold(100_000)

if __name__ == "__main__" and not sys.flags.safe_path:
    # -m puts the working directory first, from which nothing may be imported with a tracer's privilege.
    del sys.path[0]


def main() -> None:
    """Runs the command line and exits with its code."""
    from wstrace.cli import main as run

    _signal.signal(_signal.SIGINT, _interrupt)
    code = run(sys.argv[1:])
    gc.freeze()  # The interpreter collects twice at exit, in vain, as the process returns its memory anyway.
    raise SystemExit(code)


if __name__ == "__main__":
    main()

"""`python -m wstrace` and the script `wstrace`."""

# A module that is part of the interpreter: no folder is searched for it. Until main() can say what was interrupted,
# Ctrl-C ends the process by the signal, in silence: a traceback of half an import tells nobody anything.
import _signal  # type: ignore[import-not-found]  # it has no stub

_interrupt = _signal.getsignal(_signal.SIGINT)
if _interrupt is _signal.default_int_handler:  # else somebody ignores it: nohup stays nohup
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import gc  # noqa: E402
import sys  # noqa: E402

# What a start makes stays: at Python's usual threshold the collector walks over all of it again and again, a tenth of
# the CPU of `wstrace run -- true`.
gc.set_threshold(100_000)

if __name__ == "__main__" and not sys.flags.safe_path:
    # -m puts the working directory first: with a tracer's privilege nothing may be imported from there
    del sys.path[0]


def main() -> None:
    """Runs the command line and exits with its code."""
    from wstrace.cli import main as run

    _signal.signal(_signal.SIGINT, _interrupt)
    code = run(sys.argv[1:])
    gc.freeze()  # As it ends, the interpreter collects twice: it has nothing to find in what the process gives back.
    raise SystemExit(code)


if __name__ == "__main__":
    main()

"""`python -m wstrace` and the script `wstrace`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # -m puts the working directory first: with a tracer's privilege nothing may be imported from there
    del sys.path[0]


def main() -> None:
    """Runs the command line and exits with its code."""
    from wstrace.cli import main as run

    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

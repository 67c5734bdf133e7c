"""What a start costs over bare Python: CPU and wall time of commands that do nothing.

    python tests/benchmarks/start.py [--rounds 9] [--other PYTHON]   # another installation, in turn

CPU is that of all processes of a command, the traced one included. Commands run in random order within a round; of each
the medians are shown, less those of bare Python. Goals: CPU of `run -- true` <= 250 ms, `--help` <= 110 ms,
`import wstrace` <= 30 ms.
"""

import argparse
import os
import random
import statistics
import sys

from cost import cost

#: name -> what follows the interpreter
WAYS = {
    "bare": ["-c", "pass"],
    "import wstrace": ["-c", "import wstrace"],
    "wstrace --help": ["-m", "wstrace", "--help"],
    "wstrace run -- true": ["-m", "wstrace", "run", "--", "true"],
    "wstrace run -- sh -c true": ["-m", "wstrace", "run", "--", "sh", "-c", "true"],
    "the same, stacks=none": ["-m", "wstrace", "run", "-s", "page_faults:stacks=none", "--", "sh", "-c", "true"],
    "numpy alone": ["-c", "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy"],
}


def commands(pythons: list[str], rounds: int) -> None:
    """Prints one line for each command and installation."""
    cases = [(python, name) for python in pythons for name in WAYS]
    for python, name in cases:  # so that all modules are compiled and in the page cache
        cost([python, *WAYS[name]])
    taken = {case: [] for case in cases}
    for _ in range(rounds):
        for python, name in random.sample(cases, len(cases)):
            taken[python, name].append(cost([python, *WAYS[name]]))
    for python, name in cases:
        cpu, wall = (
            1e3 * statistics.median(one[i] for one in taken[python, name])
            - 1e3 * statistics.median(one[i] for one in taken[python, "bare"])
            for i in (0, 1)
        )
        if name != "bare":
            print(f"{name:26} {cpu:6.1f} ms CPU  {wall:6.1f} ms wall  {python}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--other", metavar="PYTHON")
    wanted = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    commands([sys.executable, *filter(None, [wanted.other])], wanted.rounds)


if __name__ == "__main__":
    main()

"""What a start costs over bare Python: CPU and wall time of commands that do nothing, and where the imports' time goes.

    python tests/benchmarks/start.py [--rounds 9] [--other PYTHON]   # another installation, in turn
    python tests/benchmarks/start.py --modules [--rounds 5]     # ms of `run -- true` by package, least of all rounds

CPU is that of all processes of a command, the traced one included. Commands run in random order within a round; of each
the medians are shown, less those of bare Python. Goals: CPU of `run -- true` <= 250 ms, `--help` <= 110 ms,
`import wstrace` <= 30 ms.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter

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


def run(python: str, words: list[str]) -> tuple[float, float]:
    """(CPU, wall) of one run, in ms."""
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([python, *words], stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{python} {' '.join(words)}: exit code {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1e3, (time.perf_counter() - began) * 1e3


def commands(pythons: list[str], rounds: int) -> None:
    """Prints one line for each command and installation."""
    cases = [(python, name) for python in pythons for name in WAYS]
    for python, name in cases:  # so that all modules are compiled and in the page cache
        run(python, WAYS[name])
    taken = {case: [] for case in cases}
    for _ in range(rounds):
        for python, name in random.sample(cases, len(cases)):
            taken[python, name].append(run(python, WAYS[name]))
    for python, name in cases:
        cpu, wall = (
            statistics.median(one[i] for one in taken[python, name])
            - statistics.median(one[i] for one in taken[python, "bare"])
            for i in (0, 1)
        )
        if name != "bare":
            print(f"{name:26} {cpu:6.1f} ms CPU  {wall:6.1f} ms wall  {python}")


def modules(python: str, rounds: int) -> None:
    """Prints the ms of the modules' own bodies by package, and the largest modules."""
    least = {}
    for _ in range(rounds):
        words = [python, "-X", "importtime", *WAYS["wstrace run -- true"]]
        shown = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True).stderr
        for line in shown.splitlines():
            own, _, name = line.removeprefix("import time:").partition("|")
            if line.startswith("import time:") and own.strip().isdigit():
                module = name.rpartition("|")[2].strip()
                least[module] = min(int(own), least.get(module, int(own)))
    packages = Counter()
    for module, microseconds in least.items():
        top = module.partition(".")[0]
        packages["standard library" if top in sys.stdlib_module_names else top] += microseconds
    print(f"{len(least)} modules, {sum(least.values()) / 1e3:.1f} ms")
    for name, microseconds in [*packages.most_common(12), *Counter(least).most_common(25)]:
        print(f"{microseconds / 1e3:7.1f} ms  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--other", metavar="PYTHON")
    parser.add_argument("--modules", action="store_true")
    wanted = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    if wanted.modules:
        modules(wanted.other or sys.executable, wanted.rounds)
    else:
        commands([sys.executable, *filter(None, [wanted.other])], wanted.rounds)


if __name__ == "__main__":
    main()

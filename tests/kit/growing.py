"""A program that grows by known lines on request, and may do so in several processes."""

import subprocess
from pathlib import Path

#: Each line of its input is `N [PAUSE [PROCESSES]]`: it grows by N times 1.25 MiB, by its lines 5 and 7, with pauses of
#: so many seconds, and prints `done`. Of several processes its children grow, and it prints the exit status of each.
PROGRAM = """
import os, sys, time
kept = []
def load_index():
    kept.append(bytearray(1 << 20))
def cache_user():
    kept.append(bytearray(256 << 10))
for line in sys.stdin:
    n, pause, processes = map(float, (*line.split(), "0", "1")[:3])
    children = []
    while processes > 1 and len(children) < processes and (pid := os.fork()):
        children.append(pid)
    if len(children) > 1 and len(children) == processes:
        print("ends", *sorted(os.waitpid(pid, 0)[1] for pid in children), flush=True)
        sys.exit()
    for _ in range(int(n)):
        load_index()
        cache_user()
        if pause:
            time.sleep(pause)
    print("done", flush=True)
"""


def growing(folder: Path) -> str:
    """The path of the program, `app.py` in that folder."""
    file = folder / "app.py"
    file.write_text(PROGRAM)
    return str(file)


def grow(program: subprocess.Popen[str], n: int) -> None:
    """Lets the program grow by n times 1.25 MiB, and waits until it has."""
    print(n, file=program.stdin, flush=True)
    assert program.stdout.readline() == "done\n"

"""What the answers from a file cost: CPU seconds and peak memory of `report` and of each other form of a large trace.

    python tests/benchmarks/report.py [--pages 1048576] [--rounds 5] [--other PYTHON]

Goals for 1M faults: <= 1 x the version before, 200 MB. With --other, the Python of another installation is measured in
turn, A B A B; it must read the files that this one writes. Compile both first (`python -m compileall`).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from cost import cost

#: Two lines touch every page; with `again` the pages are given back and touched again, 256 times as many as stay.
PROGRAM = """
import mmap, os, sys
pages, again = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
def first(pages):
    for at in range(pages // 2): memory[at * 4096] = 1
def second(pages):
    for at in range(pages // 2, pages): memory[at * 4096] = 1
for _ in range(again):
    first(pages); second(pages); memory.madvise(mmap.MADV_DONTNEED)
first(pages); second(pages)
os._exit(0)
"""


#: form -> the words of the command behind its trace; OUT is a new file
FORMS = {
    "report": ("report", "TRACE"),
    "report --by kind": ("report", "TRACE", "--by", "kind"),
    "HTML": ("report", "TRACE", "--force", "--html", "OUT.html"),
    "jsonl": ("report", "TRACE", "--format", "jsonl"),
    "folded": ("report", "TRACE", "--format", "folded"),
    "pprof": ("convert", "TRACE", "--force", "-o", "OUT.pb.gz"),
    "Perfetto": ("convert", "TRACE", "--force", "-o", "OUT.pftrace"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pages", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", help="the Python of another installation")
    wanted = parser.parse_args()
    pythons = [sys.executable, *([wanted.other] if wanted.other else [])]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        for what, pages, again in (("all pages stay", wanted.pages, 0), ("1 of 256 stays", wanted.pages >> 8, 255)):
            trace = f"{folder}/{again}.wst"
            subprocess.run([sys.executable, "-m", "wstrace", "run", "-q", "-o", trace, "--",
                            sys.executable, str(program), str(pages), str(again)], check=True)  # fmt: skip
            print(f"{what}: {Path(trace).stat().st_size:,} bytes")
            for form in FORMS:
                words = [word.replace("TRACE", trace).replace("OUT", f"{trace}.out") for word in FORMS[form]]
                rounds = [[cost([python, "-m", "wstrace", *words]) for python in pythons] for _ in range(wanted.rounds)]
                for number, python in enumerate(pythons):
                    cpu, _, memory = zip(*(one[number] for one in rounds), strict=True)
                    median = statistics.median(cpu)
                    print(f"  {form}: {min(cpu):.2f} s CPU (median {median:.2f}), {max(memory):.0f} MB  {python}")


if __name__ == "__main__":
    main()

"""What does `import numpy` bring into memory, from which files, and with how many page faults?

    python examples/import_numpy.py [MODULE]

A fault is not a page: the kernel maps the neighbours of a file's page with it, and populates memory without any fault.
So the pages that are new in memory are counted by two snapshots, and the faults by a session between them. Another
process does the import, because wstrace itself uses numpy.
"""

from __future__ import annotations

import subprocess
import sys

import wstrace

IMPORT = "print(flush=True); input(); import {}; print(flush=True); input()"


def main(module: str) -> None:
    command = [sys.executable, "-c", IMPORT.format(module)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        target.stdout.readline()  # the interpreter has started
        session = wstrace.Session(target.pid, sources=["page_faults"])
        try:
            session.start()
        except wstrace.Unavailable as refused:
            print(f"without page faults: {refused}")
            session = None
        before = wstrace.working_set(target.pid)
        target.stdin.write("\n")
        target.stdin.flush()
        target.stdout.readline()
        after = wstrace.working_set(target.pid)
        if session is not None:
            session.stop()
        target.communicate("\n")
    grown = after.total_bytes - before.total_bytes
    print(f"import {module}: {before.total_bytes / 2**20:.1f} MiB in memory, {grown / 2**20:.1f} MiB more after it")
    if session is not None:
        print(f"{len(session.faults):,} page faults for {grown // after.page_size:,} pages")
    was = {owner.name: owner for owner in before.by("module")}
    print("\n  new KiB   private  file")
    new = [(o.resident - was[o.name].resident if o.name in was else o.resident, o) for o in after.by("module")]
    for size, owner in sorted(new, key=lambda row: -row[0])[:12]:
        print(f"{size / 1024:9,.0f} {owner.private / 1024:9,.0f}  {owner.name}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "numpy")

"""A program whose orphans touch known pages while other processes come and go: each page is one fault."""

from pathlib import Path
from typing import Any

import numpy as np

from kit.recorded_run import compiled

#: Starts ORPHANS orphans, whose parents end at once, and executes argv[1...] in the midst of them. Each orphan touches
#: PAGES pages at BASE some time later. Ends when all have ended.
ORPHANS, PAGES, BASE = 400, 4, 0x5000_0000_0000
_SOURCE = f"""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef UNSEEN
#define fork() syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
#define execv(program, words) syscall(SYS_execve, program, words, environ)
#endif
static void orphan(int i) {{
    usleep(i * 7919 % 1600000);
    volatile char *p = mmap((void *){BASE:#x}, {PAGES} * 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise((void *)p, {PAGES} * 4096, MADV_NOHUGEPAGE);
    for (int page = 0; page < {PAGES}; page++) p[page * 4096] = 1;
    _exit(0);
}}
int main(int argc, char **argv) {{
    int ends[2];
    char none;
    if (pipe(ends)) return 1;
    for (int i = 0; i < {ORPHANS}; i++) {{
        pid_t parent = fork();
        if (!parent) {{
            close(ends[0]);
            if (!fork()) orphan(i);
            _exit(0);
        }}
        waitpid(parent, 0, 0);
        if (i == {ORPHANS} / 3 && !fork()) execv(argv[1], argv + 1);
    }}
    close(ends[1]);
    while (read(ends[0], &none, 1) > 0);
    while (wait(0) > 0);
    return 0;
}}
"""


def fork_storm(folder: Path, *, unseen: bool) -> Path:
    """The compiled program; `unseen`: nothing that it imports says that it starts processes."""
    return compiled(folder, _SOURCE, *["-DUNSEEN"] * unseen)


def touched(faults: Any) -> tuple[int, int]:
    """(the faults in the orphans' pages, how many different pages of different orphans these are)."""
    mine = faults[(faults.va >= BASE) & (faults.va < BASE + PAGES * 4096)]
    return len(mine), len(np.unique(np.stack([mine.pid, mine.va >> np.uint64(12)]), axis=1).T)

"""A process whose first thread has ended by pthread_exit() and whose name has ends of lines in it: it goes on."""

import subprocess

import pytest
from kit.recorded_run import compiled

from wstrace_plugins.os.linux import procfs

pytestmark = pytest.mark.usefixtures("full_level")

PAGES = 2000
#: the first thread ends; the second waits for a line (or so many ms), touches pages of its own and says where
HEADLESS = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
static long n;
static void *goes_on(void *wait) {
    char line[8];
    usleep(200000);
    if (wait) { puts("ready"); fflush(stdout); fgets(line, 8, stdin); }
    char *p = mmap(0, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, n * 4096, MADV_NOHUGEPAGE);
    for (long i = 0; i < n; i++) { p[i * 4096] = 1; if (i % 500 == 0) usleep(100000); }
    printf("%lu\n", (unsigned long)p);
    fflush(stdout);
    if (wait) fgets(line, 8, stdin);
    exit(0);
}
int main(int argc, char **argv) {
    pthread_t thread;
    n = atol(argv[1]);
    prctl(PR_SET_NAME, "a\x0cVmHWM: zz");
    pthread_create(&thread, 0, goes_on, argc > 2 ? argv[2] : 0);
    pthread_exit(0);
}
"""


@pytest.fixture
def headless(tmp_path):
    return compiled(tmp_path, HEADLESS)


@pytest.fixture
def waiting(headless):
    command = [headless, str(PAGES), "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_it_is_traced_to_its_end(trace, headless, capfd):
    traced = trace([headless, PAGES])
    base = int(capfd.readouterr().out)
    va = traced.faults().va
    assert int(((va >= base) & (va < base + PAGES * 4096)).sum()) == PAGES
    assert traced.usage.peak_resident_bytes >= PAGES * 4096
    traced.assert_balanced()


def test_it_can_be_attached(attach, waiting):
    assert not procfs.stat(waiting.pid).gone
    assert procfs.memory_task(waiting.pid) != waiting.pid
    trace = attach(waiting.pid)
    waiting.stdin.write("\n")
    waiting.stdin.flush()
    base = int(waiting.stdout.readline())
    trace.drain(lambda: len(trace.faults()) >= PAGES)
    named = {trace.context.strings[code] for code in trace.column("address_space", "file").tolist()}
    trace.stop()
    va = trace.faults().va
    assert int(((va >= base) & (va < base + PAGES * 4096)).sum()) == PAGES
    assert str(waiting.args[0]) in named
    assert trace.usage.peak_resident_bytes >= PAGES * 4096


def test_its_pages_are_reported(waiting):
    import wstrace

    assert wstrace.working_set(waiting.pid).total_bytes > 100_000


def test_a_zombie_is_gone():
    process = subprocess.Popen(["true"])
    while procfs.stat(process.pid).state != "Z":
        pass
    assert procfs.stat(process.pid).gone
    assert process.wait() == 0

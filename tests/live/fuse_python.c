/* A program that passes for a CPython 3.13 and lays a file over its _PyRuntime, and another place of it that it runs
 * code in: whoever reads either waits for the file's owner. offsets.h: see test_python_stacks_forged.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include "offsets.h"

const unsigned Py_Version = 0x030d00f0;
unsigned long _PyRuntime[8192] __attribute__((aligned(4096))) = {
    0x7970677562656478 /* xdebugpy */, 0x030d00f0, 0, OFFSETS};

int main(int count, char **words) {
    int file = open(words[1], O_RDONLY);
    volatile char *code = mmap(0, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    void *over = mmap(_PyRuntime, sizeof _PyRuntime, PROT_READ, MAP_SHARED | MAP_FIXED, file, 1 << 16);
    if (file < 0 || code == MAP_FAILED || over == MAP_FAILED) return 1;
    printf("%d\n", getpid());
    fflush(stdout);
    for (;;) {
        volatile char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *page = code[0];
        madvise((void *)code, 4096, MADV_DONTNEED);
        munmap((void *)page, 4096);
        usleep(1000);
    }
}

// Touches one page a step and prints: pid, time before and after, address, offset in the file, kind, file. Fixed
// addresses, so that each step finds another thing where the one before was, in every process and image.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PAGE_BYTES
#define PAGE_BYTES 4096
#endif
#define PAGE ((long)PAGE_BYTES)
#define N 64
static char *const AT = (char *)0x200000000000;
static int out;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

__attribute__((noinline)) static void shown(long before, char *p, long offset, const char *kind, const char *file) {
    dprintf(out, "%d\t%ld\t%ld\t%lu\t%ld\t%s\t%s\n", getpid(), before, now(), (unsigned long)p, offset, kind, file);
}

__attribute__((noinline)) static void reads(char *p, long offset, const char *kind, const char *file) {
    long before = now();
    (void)*(volatile char *)p;
    shown(before, p, offset, kind, file);
}

__attribute__((noinline)) static void writes(char *p, long offset, const char *kind, const char *file) {
    long before = now();
    *(volatile char *)p = 1;
    shown(before, p, offset, kind, file);
}

static char *maps(char *at, int fd, long page, int flags) {
    int prot = fd >= 0 && !(flags & MAP_SHARED) ? PROT_READ : PROT_READ | PROT_WRITE;
    char *p = mmap(at, N * PAGE, prot, (at ? MAP_FIXED : 0) | flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, page * PAGE);
    if (p == MAP_FAILED) { perror("mmap"); exit(9); }
    madvise(p, N * PAGE, MADV_NOHUGEPAGE);
    if (fd >= 0) madvise(p, N * PAGE, MADV_RANDOM);
    return p;
}

__attribute__((noinline)) static void deep(void) {
    char room[40 * PAGE];
    writes(room + 10 * PAGE + 17, 0, "stack", "[stack]");
}

int main(int argc, char **argv) {
    char *a = argv[1], *b = argv[2];
    int fa = open(a, O_RDONLY), fb = open(b, O_RDONLY), again = argc > 5;
    out = again ? atoi(argv[5]) : open(argv[4], O_WRONLY | O_APPEND | O_CREAT, 0600);

    if (again) {  // the same addresses in another image
        reads(maps(AT, fb, 4, MAP_PRIVATE) + 9, 4 * PAGE + 9, "file", b);
        maps(AT + N * PAGE, -1, 0, MAP_PRIVATE);
        writes(AT + N * PAGE + 1, 0, "anon", "[anon]");
        return 0;
    }
    // one thing after the other at one address: shown by MAP_FIXED, or unmapped before
    reads(maps(AT, fa, 0, MAP_PRIVATE) + 3 * PAGE + 5, 3 * PAGE + 5, "file", a);
    munmap(AT, N * PAGE);
    writes(maps(AT, -1, 0, MAP_PRIVATE) + 3 * PAGE, 0, "anon", "[anon]");
    reads(maps(AT, fb, 2, MAP_PRIVATE) + 3 * PAGE, 5 * PAGE, "file", b);
    writes(maps(AT, -1, 0, MAP_SHARED) + 3 * PAGE, 3 * PAGE, "shared memory", "[shared memory]");
    int memfd = memfd_create("truth", 0);
    if (ftruncate(memfd, N * PAGE)) return 8;
    writes(maps(AT, memfd, 0, MAP_SHARED) + 3 * PAGE, 3 * PAGE, "shared memory", "/memfd:truth");
    // a hole in a mapping, and the pieces beside it
    maps(AT, fa, 0, MAP_PRIVATE);
    mmap(AT + 8 * PAGE, 4 * PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE, fb, 32 * PAGE);
    reads(AT + 7 * PAGE, 7 * PAGE, "file", a);
    reads(AT + 8 * PAGE, 32 * PAGE, "file", b);
    reads(AT + 12 * PAGE, 12 * PAGE, "file", a);
    // mprotect splits it: still the same file at the same offset
    mprotect(AT + 20 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    writes(AT + 20 * PAGE + 2, 20 * PAGE + 2, "file", a);
    // heap and stack
    char *heap = sbrk(30 * PAGE);
    writes(heap + 20 * PAGE, 0, "heap", "[heap]");
    deep();
    // the kernel writes into a new page
    char *page = maps(0, -1, 0, MAP_PRIVATE) + 5 * PAGE;
    long before = now();
    if (pread(fa, page, 1, 0) != 1) return 7;
    shown(before, page, 0, "anon", "[anon]");
    // a library opened while it runs
    void *library = dlopen(argv[3], RTLD_NOW);
    if (!library) { puts(dlerror()); return 6; }
    char *constants = dlsym(library, "constants");
    reads(constants + 40 * PAGE, -1, "file", argv[3]);
    // a child has what its parent had, and then its own
    int status;
    maps(AT, fa, 0, MAP_PRIVATE);
    if (fork() == 0) {
        reads(AT + 30 * PAGE, 30 * PAGE, "file", a);
        reads(maps(AT, fb, 0, MAP_PRIVATE) + 31 * PAGE, 31 * PAGE, "file", b);
        char number[12];
        snprintf(number, sizeof number, "%d", out);
        execl("/proc/self/exe", argv[0], a, b, argv[3], argv[4], number, (char *)0);
        return 5;
    }
    wait(&status);
    if (status) return 5;
    reads(AT + 31 * PAGE, 31 * PAGE, "file", a);
    // moved by mremap(), which only tracefs tells of: memory over a file, then a file elsewhere
    char *moved = maps(AT + 2 * N * PAGE, -1, 0, MAP_PRIVATE);
    mremap(moved, N * PAGE, N * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AT);
    writes(AT + 33 * PAGE, 0, "anon", "[anon]");
    maps(moved, fb, 1, MAP_PRIVATE);
    mremap(moved + 2 * PAGE, 10 * PAGE, 10 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AT + 40 * PAGE);
    reads(AT + 44 * PAGE, 7 * PAGE, "file", b);
    return 0;
}

// Takes content away in every way that is traced, and writes what it did to a file: event, start, end and to of each.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef PAGE_BYTES
#define PAGE_BYTES 4096
#endif
#define PAGE ((long)PAGE_BYTES)
static char *const AT = (char *)0x200000000000, *const NEW = (char *)0x300000000000;
static void did(const char *event, char *start, long pages, char *to) {
    printf("%s\t%lu\t%lu\t%lu\n", event, (unsigned long)start, (unsigned long)(start + pages * PAGE), (unsigned long)to);
}
#define must(holds) ((holds) ? (void)0 : _exit(__LINE__))
int main(int argc, char **argv) {
    must(argc == 2 && freopen(argv[1], "w", stdout) != 0);
    setvbuf(stdout, malloc(65536), _IOFBF, 65536);
    char *p = mmap(AT, 64 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(p == AT);
    madvise(p, 64 * PAGE, MADV_NOHUGEPAGE);
    memset(p, 1, 64 * PAGE);
    // what fails, or does nothing, takes nothing away
    must(madvise(p + 1, PAGE, MADV_DONTNEED) && madvise(p, -PAGE, MADV_DONTNEED) && madvise(p, PAGE, 9999));
    must(madvise(p, PAGE, MADV_REMOVE) && !madvise(p, 0, MADV_DONTNEED) && munmap(p + 1, PAGE));
    must(mmap(p, PAGE, 3, MAP_PRIVATE | MAP_FIXED, 999, 0) == MAP_FAILED && !mprotect(p, 64 * PAGE, 3));
    must(mmap(p, PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    must(mremap(p, PAGE, 65 * PAGE, 0) == MAP_FAILED && p[0] == 1 && p[63 * PAGE] == 1);
    // what succeeds
    must(!madvise(p, PAGE - 7, MADV_DONTNEED) && p[0] == 0), did("discarded", p, 1, 0);
    must(!madvise(p + PAGE, 2 * PAGE, MADV_FREE)), did("lazily freed", p + PAGE, 2, 0);
    must(!madvise(p + 3 * PAGE, PAGE, MADV_DONTNEED_LOCKED)), did("discarded", p + 3 * PAGE, 1, 0);
    must(!munmap(p + 8 * PAGE, PAGE)), did("unmapped", p + 8 * PAGE, 1, 0);
    must(madvise(p + 7 * PAGE, 3 * PAGE, MADV_DONTNEED) && p[9 * PAGE] == 0), did("discarded", p + 7 * PAGE, 3, 0);
    must(mmap(p + 10 * PAGE, 2 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 10 * PAGE);
    did("replaced by a new mapping", p + 10 * PAGE, 2, 0);
    must(mremap(p + 16 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, NEW) == NEW && NEW[0] == 1);
    did("replaced by a new mapping", NEW, 8, 0), did("moved", p + 16 * PAGE, 4, NEW);
    must(mremap(NEW, 8 * PAGE, 3 * PAGE, 0) == NEW), did("unmapped", NEW + 3 * PAGE, 5, 0);
    char *shared = mmap(AT + 100 * PAGE, 4 * PAGE, 3, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    memset(shared, 1, 4 * PAGE);
    must(!madvise(shared, PAGE, MADV_REMOVE) && shared[0] == 0), did("discarded", shared, 1, 0);
    if (!madvise(p + 40 * PAGE, PAGE, MADV_GUARD_INSTALL)) did("discarded", p + 40 * PAGE, 1, 0);  // Linux 6.13
    int segment = shmget(IPC_PRIVATE, 5 * PAGE, 0600);
    char *attached = shmat(segment, AT + 200 * PAGE, 0);
    must(attached == AT + 200 * PAGE && !shmctl(segment, IPC_RMID, 0)), memset(attached, 1, 5 * PAGE);
    must(shmdt(attached + PAGE) && !shmdt(attached)), did("unmapped", attached, 5, 0);
    char *heap = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & -PAGE);
    must(!brk(heap + 10 * PAGE) && !brk(heap + 4 * PAGE - 100)), did("brk shrank", heap + 4 * PAGE, 6, 0);
    brk((char *)PAGE);  // refused, which glibc does not tell
    must(!brk(heap + 2 * PAGE)), did("brk shrank", heap + 2 * PAGE, 2, 0);
    fflush(stdout);
    return 0;
}

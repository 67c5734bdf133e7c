// As pagemap_truth.py, for functions of a program without stacks: which of them made each page arrive.
// Run as: FILE FOLDER; writes `page function` (0 = none) of each page, then `copies 0`.
#include "pagemap.h"

// DO() calls a function and then looks at `whole`.
TOUCHES(load, *at = 1)
TOUCHES(rewrite, *at = 2)
TOUCHES(grow, *at = 3)
TOUCHES(bring_again, *at = 4)
TOUCHES(second_tenant, *at = 5)
TOUCHES(peek, (void)*at)
TOUCHES(peek_later, (void)*at)
TOUCHES(touch_huge, *at = 6)
#define DO(who, start, pages, whole, of_whole) (who(start, pages), look(whole, of_whole, #who))

static char *mapped(void *at, size_t size, int flags) {
    char *got = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    assert(got != MAP_FAILED);
    madvise(got, size, MADV_NOHUGEPAGE); // refused by a kernel without huge pages
    return got;
}

int main(int argc, char **argv) {
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    char *forked = mapped(NULL, BIG, 0);
    DO(load, forked, N, forked, N);
    if (!fork()) _exit(0);
    wait(NULL);
    rewrite(forked, N);
    look(forked, N, NULL); // copies, where the tracer still looks at the child's memory

    char *here = mapped(NULL, BIG, 0), *there = mapped(NULL, 2 * BIG, 0);
    DO(load, here, N, here, N);
    assert(mremap(here, BIG, 2 * BIG, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
    moved(here, there, N);
    DO(grow, there, 2 * N, there, 2 * N);
    mapped(here, BIG, MAP_FIXED);
    DO(second_tenant, here, N / 2, here, N);

    char *gone = mapped(NULL, BIG, 0);
    DO(load, gone, N, gone, N);
    madvise(gone, BIG / 2, MADV_DONTNEED);
    look(gone, N, "0");
    DO(bring_again, gone, N / 4, gone, N);

    char name[PAGE];
    snprintf(name, sizeof name, "%s/file", argv[2]);
    int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (int k = 0; k < N; k++) assert(write(file, name, PAGE) == PAGE);
    char *text = mmap(NULL, BIG, PROT_READ, MAP_SHARED, file, 0);
    DO(peek, text + 3 * PAGE, 1, text, N);
    DO(peek_later, text, N, text, N);

    char *huge = mapped(NULL, 2 * HUGE, 0);
    huge = (char *)(((uintptr_t)huge + HUGE - 1) & -HUGE);
    madvise(huge, HUGE, MADV_HUGEPAGE);
    DO(touch_huge, huge + 7 * PAGE, 1, huge, HUGE / PAGE);

    look(mapped(NULL, BIG, MAP_POPULATE), N, "0");
    tell(argv[1]);
}

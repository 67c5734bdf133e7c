// Pages that arrive without a fault of the program's own code, and what fork and writes do to them: which function's
// touch made each page arrive, by the program's own pagemap. Run as: FILE FOLDER; writes `page function` (0 = none).
#include "pagemap.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

TOUCHES(load, *at = 1)
TOUCHES(rewrite, *at = 2)
TOUCHES(fill, *at = 3)

static char *mapped(size_t size) {
    char *got = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(got != MAP_FAILED);
    madvise(got, size, MADV_NOHUGEPAGE); // refused by a kernel without huge pages
    return got;
}

// A child holds all memory while the parent writes.
static void beside_a_child(void (*write_to)(char *, int), char *start, int pages) {
    int go[2], ready[2];
    char byte = 0;
    assert(!pipe(go) && !pipe(ready));
    int child = fork();
    if (!child) {
        assert(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    assert(read(ready[0], &byte, 1) == 1);
    write_to(start, pages);
    assert(write(go[1], &byte, 1) == 1);
    assert(waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv) {
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    char name[PAGE];
    snprintf(name, sizeof name, "%s/direct", argv[2]);
    int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (int k = 0; k < N; k++) assert(write(file, name, PAGE) == PAGE);
    assert(!fsync(file));

    // read by the device into memory that nobody has touched; half of it is then written beside a child
    int direct = open(name, O_RDONLY | O_DIRECT);
    char *read_into = mapped(BIG);
    if (direct >= 0 && read(direct, read_into, BIG) == (ssize_t)BIG) look(read_into, N, "0");
    beside_a_child(rewrite, read_into, N / 2);
    look(read_into, N, NULL);

    // pinned by a pipe: the pages that load() brought are lent to it, and written again
    char *lent = mapped(BIG);
    load(lent, 16);
    look(lent, N, "load");
    int ends[2];
    assert(!pipe(ends));
    struct iovec part = {lent, 16 * PAGE};
    if (vmsplice(ends[1], &part, 1, 0) > 0) {
        rewrite(lent, 8);
        look(lent, N, NULL);
    }
    beside_a_child(rewrite, lent, 16); // pinned pages are copied as the fork is made: the parent keeps its own
    look(lent, N, NULL);

    // written by another task into memory that nobody has touched: no fault of a program's own
    char *sent = mapped(BIG);
    struct iovec from = {lent, 16 * PAGE}, to = {sent, 16 * PAGE};
    if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 16 * PAGE) look(sent, N, "0");
    fill(sent + 16 * PAGE, 16);
    look(sent, N, "fill");

    // filled by userfaultfd, before anybody has touched it; then shared with a child and written
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    char *copied = mapped(BIG);
    if (uffd >= 0) {
        struct uffdio_api api = {.api = UFFD_API};
        struct uffdio_register all = {{(unsigned long)copied, BIG}, UFFDIO_REGISTER_MODE_MISSING, 0};
        struct uffdio_copy copy = {(unsigned long)copied, (unsigned long)lent, 16 * PAGE, 0, 0};
        assert(!ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &all));
        assert(!ioctl(uffd, UFFDIO_COPY, &copy));
        look(copied, N, "0");
        assert(!ioctl(uffd, UFFDIO_UNREGISTER, &all.range));
        beside_a_child(rewrite, copied, 8);
        look(copied, N, NULL);
    }
    fill(copied + 16 * PAGE, 16);
    look(copied, N, "fill");

    // put together by the kernel out of pages of one function and of none
    char *huge = mapped(2 * HUGE);
    huge = (char *)(((uintptr_t)huge + HUGE - 1) & -HUGE);
    load(huge, N);
    look(huge, N, "load");
    look(huge + BIG, HUGE / PAGE - N, "0");
    madvise(huge, HUGE, MADV_HUGEPAGE);
    if (!madvise(huge, HUGE, 25 /* MADV_COLLAPSE */)) look(huge, N, NULL), look(huge + BIG, HUGE / PAGE - N, "0");
    tell(argv[1]);
}

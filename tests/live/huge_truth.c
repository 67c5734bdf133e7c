// Huge pages that are split, read first, rewritten behind a fork, moved or put together: which function brought each page.
// Run as: FILE FOLDER; writes as pagemap_truth.c.
#include "pagemap.h"
#include <signal.h>
#include <sys/prctl.h>

enum { H = PAGE / 8 }; // pages of a huge page
TOUCHES(load, *at = 1)
TOUCHES(rewrite, *at = 2)
TOUCHES(bring_again, *at = 3)
TOUCHES(peek, (void)*at)
TOUCHES(load_small, *at = 4)
TOUCHES(write_zeros, *at = 5)

// Huge pages that nobody else's are beside.
static char *huge(int count) {
    char *got = mmap(NULL, (count + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(got != MAP_FAILED);
    got = (char *)(((uintptr_t)got + HUGE - 1) & -HUGE);
    madvise(got, count * HUGE, MADV_HUGEPAGE);
    return got;
}

static void at(void (*touch)(char *, int), const char *who, char *start, int first, int pages, int of) {
    touch(start + (size_t)first * PAGE, pages);
    look(start, of, who);
}
#define AT(touch, ...) at(touch, #touch, __VA_ARGS__)

static pid_t sleeper(char *page) {
    int ready[2];
    char byte = 0;
    assert(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (page) *page = 9; // splits the huge page of the child alone
        assert(write(ready[1], &byte, 1) == 1);
        for (;;) pause();
    }
    assert(read(ready[0], &byte, 1) == 1);
    return child;
}

int main(int argc, char **argv) {
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    char *discarded = huge(1), *freed = huge(1), *locked = huge(1), *cut = huge(1), *parted = huge(1);
    AT(load, discarded, 7, 1, H);
    madvise(discarded + 100 * PAGE, 10 * PAGE, MADV_DONTNEED);
    look(discarded, H, "0");
    AT(bring_again, discarded, 100, 5, H);
    AT(load, freed, 7, 1, H);
    madvise(freed + 100 * PAGE, 10 * PAGE, MADV_FREE);
    AT(rewrite, freed, 100, 5, H);
    AT(load, locked, 7, 1, H);
    assert(!mprotect(locked + 100 * PAGE, 10 * PAGE, PROT_READ));
    assert(!mprotect(locked + 100 * PAGE, 10 * PAGE, PROT_READ | PROT_WRITE));
    AT(rewrite, locked, 90, 30, H);
    AT(load, cut, 7, 1, H);
    assert(!munmap(cut + 100 * PAGE, 10 * PAGE));
    look(cut, H, "0");
    AT(load, parted, 7, 1, H);
    char *to = huge(1) + PAGE;
    assert(mremap(parted + 100 * PAGE, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    moved(parted + 100 * PAGE, to, 64);
    look(to, 64, NULL);

    char *rewritten = huge(4), *split = huge(1);
    AT(load, rewritten, 0, 4 * H, H), look(rewritten + HUGE, H, "load");
    look(rewritten + 2 * HUGE, H, "load"), look(rewritten + 3 * HUGE, H, "load");
    AT(load, split, 7, 1, H);
    pid_t child = sleeper(split);
    rewrite(rewritten, 4 * H);
    for (int k = 0; k < 4; k++) look(rewritten + k * HUGE, H, NULL);
    rewrite(split + 200 * PAGE, 5);
    look(split, H, NULL);
    kill(child, SIGKILL), waitpid(child, NULL, 0);
    rewrite(split, H);
    look(split, H, NULL);

    char *zeros = huge(1), *some = huge(1), *later = huge(1);
    AT(peek, zeros, 3, 200, H);
    AT(write_zeros, zeros, 5, 1, H), AT(write_zeros, zeros, 0, H, H);
    AT(peek, some, 3, 1, H);
    AT(write_zeros, some, 3, 1, H);
    AT(peek, later, 3, 1, H);
    to = huge(1);
    assert(mremap(later, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    AT(write_zeros, to, 8, 20, H);

    char *small = mmap(NULL, N * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(small, N * PAGE, MADV_NOHUGEPAGE);
    AT(peek, small, 0, N, N);
    to = mmap(NULL, N * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(mremap(small, N * PAGE, N * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    AT(write_zeros, to, 0, N, N);

    char *made = huge(1); // put together of pages of one function and of none, then written while a child has it
    madvise(made, HUGE, MADV_NOHUGEPAGE);
    AT(load_small, made, 0, 30, H);
    madvise(made, HUGE, MADV_HUGEPAGE);
    madvise(made, HUGE, 25); // MADV_COLLAPSE
    look(made, H, "0");
    child = sleeper(NULL);
    kill(child, SIGKILL), waitpid(child, NULL, 0);
    rewrite(made + 300 * PAGE, 2);
    look(made, H, NULL);
    tell(argv[1]);
}

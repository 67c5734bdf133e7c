// What a fork shared that no fault of its own had brought, and how many frames the writes of parent and child made.
// Run as: FILE FOLDER MODE. Writes `copies N`.
#include "pagemap.h"

enum { PAGES = PAGE / 8 };
extern char **environ;
static char *areas[3];
static int sizes[3];

static void write_to(char *start, int pages) {
    for (int i = 0; i < pages; i++) start[(size_t)i * PAGE] = 7;
}

static void frames(uint64_t *into) {
    int own = open("/proc/self/pagemap", O_RDONLY);
    for (int a = 0; a < 3; a++) {
        assert(pread(own, into, sizes[a] * 8, (uintptr_t)areas[a] / PAGE * 8) == sizes[a] * 8);
        into += sizes[a];
    }
    close(own);
}

int main(int argc, char **argv) {
    int rewritten = argv[3][0] == 'r';
    char *huge = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    huge = (char *)(((uintptr_t)huge + HUGE - 1) & -HUGE);
    madvise(huge, HUGE, MADV_HUGEPAGE);
    huge[5 * PAGE] = 1;
    areas[0] = huge, sizes[0] = PAGES;
    areas[1] = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    sizes[1] = 64;
    char *last = environ[0];
    for (char **one = environ; *one; one++) last = *one;
    areas[2] = (char *)((uintptr_t)last & ~(uintptr_t)(PAGE - 1)), sizes[2] = 1;
    static uint64_t before[PAGES + 65];
    uint64_t *childs = mmap(NULL, sizeof before, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static uint64_t parents[PAGES + 65];
    int ready[2], go[2];
    assert(!pipe(ready) && !pipe(go));
    frames(before);
    char byte = 0;
    if (!fork()) {
        write_to(huge + 100 * PAGE, 200);
        write_to(areas[1], 40);
        last[0] = last[0];
        ((volatile char *)last)[0] = last[0];
        frames(childs);
        assert(write(ready[1], &byte, 1) == 1);
        assert(read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    assert(read(ready[0], &byte, 1) == 1);
    if (rewritten) write_to(huge, PAGES);
    write_to(areas[1], 64);
    ((volatile char *)last)[0] = last[0];
    frames(parents);
    int copies = 0;
    for (int i = 0; i < PAGES + 65; i++) copies += before[i] >> 63 && childs[i] != parents[i];
    FILE *out = fopen(argv[1], "w");
    fprintf(out, "copies %d\nhuge %d\n", copies, !!(before[7] >> 63));
    fclose(out);
    assert(write(go[1], &byte, 1) == 1);
    wait(NULL);
    usleep(500000);
    _exit(0);
}

// What a program sees of its own pages: which of its functions made each page arrive.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PAGE_BYTES // recorded_run.compiled() tells those of this machine
#define PAGE_BYTES 4096
#endif
enum { PAGE = PAGE_BYTES, N = 256, MOST = 1 << 18 };
static const size_t BIG = N * PAGE, HUGE = (size_t)PAGE * PAGE / 8; // a huge page: as many as fill a page table
static int pagemap, kpageflags;
static struct { uintptr_t page; uint64_t frame; int of_file; const char *who; } all[MOST];

static int place(uintptr_t page) {
    static int n;
    int i = page % MOST;
    while (all[i].page && all[i].page != page) i = (i + 1) % MOST;
    if (!all[i].page) assert(++n < MOST / 2);
    all[i].page = page;
    return i;
}

// Whether it is that of the page of zeros, or one of the huge page of zeros: they are in no resident set.
static int is_zeros(uint64_t frame) {
    uint64_t flags;
    if (!kpageflags) kpageflags = open("/proc/kpageflags", O_RDONLY);
    assert(pread(kpageflags, &flags, 8, frame * 8) == 8);
    return flags >> 24 & 1; // KPF_ZERO_PAGE
}

// What has arrived at these pages since the last time is `who`'s; NULL = whose it was. A page that is copied is whose
// it was; one that takes the place of a page of a file is new.
static void look(char *start, int pages, const char *who) {
    static uint64_t entries[PAGE / 8];
    assert(pages <= PAGE / 8);
    assert(pread(pagemap, entries, pages * 8, (uintptr_t)start / PAGE * 8) == pages * 8);
    for (int k = 0; k < pages; k++) {
        int i = place((uintptr_t)start / PAGE + k), of_file = entries[k] >> 61 & 1;
        uint64_t frame = entries[k] >> 63 ? entries[k] & ((1ull << 55) - 1) : 0;
        if (frame && frame != all[i].frame && is_zeros(frame)) frame = 0;
        int copied = frame && all[i].frame && of_file == all[i].of_file;
        if (frame != all[i].frame && !copied && (who || !frame)) all[i].who = frame ? who : NULL;
        all[i].frame = frame, all[i].of_file = of_file;
    }
}

// What is known of pages goes with them.
static void moved(char *from, char *to, int pages) {
    for (int k = 0; k < pages; k++) {
        int a = place((uintptr_t)from / PAGE + k), b = place((uintptr_t)to / PAGE + k);
        all[b].frame = all[a].frame, all[b].of_file = all[a].of_file, all[b].who = all[a].who;
        all[a].frame = 0, all[a].who = NULL;
    }
}

// A function that touches the first byte of pages.
#define TOUCHES(name, touch) \
    static __attribute__((noinline)) void name(char *start, int pages) { \
        for (int k = 0; k < pages; k++) { volatile char *at = start + (size_t)k * PAGE; touch; } \
    }

// Writes `page function` of each page that is there (0 = no function's), then `copies 0`, and ends.
static __attribute__((noreturn)) void tell(const char *path) {
    FILE *out = fopen(path, "w");
    for (int i = 0; i < MOST; i++)
        if (all[i].frame) fprintf(out, "%lu %s\n", (unsigned long)all[i].page, all[i].who);
    fprintf(out, "copies 0\n");
    fclose(out);
    usleep(500000); // the memory of a program that ends within some ms is not held for a snapshot
    _exit(0);
}

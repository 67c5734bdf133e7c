/* A program that passes for a CPython 3.13 and lies about its frames: _PyRuntime and all behind it are its own.
 *
 * offsets.h, which the test writes, has OFFSETS: the numbers of _Py_DebugOffsets that name the members below.
 * Each lie touches a region of its own; a line `BASE PAGES NAME` tells of it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "offsets.h"

typedef unsigned long u64;
struct code { u64 first_line, unused[2], version, file, name, lines, unused2, instructions[8]; };
struct frame { u64 code; struct frame *previous; u64 instruction; unsigned char owner; };
struct thread { u64 unused; struct thread *next; struct frame *frame; u64 id, native_id; };
struct interpreter { u64 next, unique_id; struct thread *threads; };
struct text { u64 head[2], length, hash, state; char characters[24 << 10]; };
struct bytes { u64 head[2], length, hash; unsigned char data[24 << 10]; };

const unsigned Py_Version = 0x030d00f0;
u64 _PyRuntime[512] = {0x7970677562656478 /* xdebugpy */, 0x030d00f0, FREE_THREADED, OFFSETS};

static struct text name = {.length = 6, .hash = -1, .state = 1 << 2 | 1 << 6, .characters = "honest"};
static struct text file = {.length = 8, .hash = -1, .state = 1 << 2 | 1 << 6, .characters = "forge.py"};
static struct bytes lines = {.length = 2, .hash = -1, .data = {0xEF, 0x00}}; /* eight units of the first line */
static struct code code;
static struct frame frame, caller;
static struct thread thread, other;
static struct interpreter interpreter;
static volatile char *page;

static void describe(struct code *one, u64 version) {
    *one = (struct code){.first_line = 7, .version = version, .file = (u64)&file, .name = (u64)&name, .lines = (u64)&lines};
}

static void begin(void) {
    describe(&code, 1);
    frame = (struct frame){(u64)&code, 0, (u64)code.instructions, 0};
    caller = frame;
    thread = (struct thread){0, 0, &frame, pthread_self(), 0};
    interpreter = (struct interpreter){0, 2, &thread};
    name.length = 6;
    file.length = 8;
    lines.length = 2;
}

static void region(const char *of, int pages) {
    page = mmap(0, pages * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)page, pages * 4096L, MADV_NOHUGEPAGE);
    printf("%p %d %s\n", (void *)page, pages, of);
}

static void touch(int pages) {
    for (int i = 0; i < pages; i++) page[i * 4096L] = 1;
}

static void lie(const char *of) {
    region(of, 50);
    touch(50);
    begin();
}

int main(void) {
    static const u64 lengths[] = {1UL << 62, (1UL << 63) - 1, -1UL};
    static const u64 places[] = {0xFFFFFFFF81000000UL, 1UL << 63, 4096, 8, -8UL};
    begin();
    _PyRuntime[PLACE_OF_INTERPRETERS / 8] = (u64)&interpreter;
    usleep(500000); /* until it is known */
    lie("honest");
    /* frames at the end and the beginning of a page between pages that cannot be read */
    char *between = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct frame *first = (struct frame *)(between + 4096), *last = (struct frame *)(between + 2 * 4096) - 1;
    *first = *last = frame;
    mprotect(between, 4096, PROT_NONE);
    mprotect(between + 2 * 4096, 4096, PROT_NONE);
    thread.frame = last, last->previous = first;
    lie("edges");
    thread.frame = first, first->previous = last, last->previous = 0;
    lie("edges");
    frame.previous = &frame;
    lie("ring of one");
    frame.previous = &caller, caller.previous = &frame;
    lie("ring of two");
    for (int i = 0; i < 3; i++) {
        name.length = lengths[i];
        lie("long");
        file.length = lengths[i];
        lie("long");
        lines.length = lengths[i];
        lie("long");
        code.version = 100 + i, name.length = file.length = lines.length = lengths[i];
        lie("long");
    }
    for (int i = 0; i < 5; i++) {
        frame.previous = (void *)places[i];
        lie("nowhere");
        frame.code = places[i];
        lie("nowhere");
        thread.frame = (void *)places[i];
        lie("nowhere");
        code.version = 200 + i, code.name = code.file = code.lines = places[i];
        lie("nowhere");
        thread.id = 1, thread.next = (void *)places[i];
        lie("nowhere");
    }
    thread.id = other.id = 1, thread.next = &other, other.next = &thread, other.frame = &frame;
    lie("ring of threads");
    region("flood", FLOOD);
    lines.length = sizeof lines.data, name.length = file.length = sizeof name.characters;
    memset(name.characters, 'x', sizeof name.characters);
    memset(file.characters, 'y', sizeof file.characters);
    for (int i = 0; i < FLOOD; i++) {
        code.version = 1000 + i;
        page[i * 4096L] = 1;
    }
    return 0;
}

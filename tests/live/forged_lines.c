/* A program that passes for a CPython 3.13 whose lines are learned from samples of its stack: its loop, its code
 * objects and its names are its own. `forged_python SECONDS [lie]`: it is honest first, and then, where asked to, lies.
 *
 * offsets.h, which the test writes, has OFFSETS: the numbers of _Py_DebugOffsets that name the members below.
 * For each region whose pages the loop touched a line `BASE PAGES NAME`: page i by unit i % LINES of the bytecode.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "offsets.h"

typedef unsigned long u64;
enum { WRITE = 30, READ, JUMP, LINES = 8, PAGES = 160, BAITS = 100, FLOOD = 4096, MOST_UNITS = 1 << 18 };
struct code {
    u64 references; void *type; u64 units; unsigned first_line, unused; void *file, *name;
    unsigned version, unused2; void *lines; unsigned char instructions[2 * LINES + 2];
};
struct text { u64 references; void *type; u64 length, hash; unsigned state, unused; char characters[16 << 10]; };
struct bytes { u64 references; void *type; u64 size, hash; unsigned char data[MOST_UNITS]; };

const unsigned Py_Version = 0x030d00f0;
u64 _PyRuntime[512] = {0x7970677562656478 /* xdebugpy */, 0x030d00f0, 0, OFFSETS};
u64 PyCode_Type[64], PyUnicode_Type[64], PyBytes_Type[64];

#define TEXT(of) {1, PyUnicode_Type, sizeof of - 1, -1, 1 << 2 | 1 << 6, 0, of}
static struct text honest = TEXT("honest"), other = TEXT("other"), file = TEXT("forge.py");
static struct bytes lines, many;
static struct code code;
static struct { u64 head[2]; struct code code; } *flood; /* four thousand of them, one behind the other */

/* The loop. `executed` points behind the instruction that is executed; `stack` has what the caller wants there. */
__attribute__((noinline)) u64 _PyEval_EvalFrameDefault(unsigned char *next, volatile char *page, long pages, void **baits) {
    /* between zeros: a run of more than 256 pointers to code is no table of instructions */
    static void *const targets[258] = {
        0, [1 ... 256] = &&unknown, [1 + WRITE] = &&write, [1 + READ] = &&read, [1 + JUMP] = &&jump};
    void *volatile stack[BAITS];
    unsigned char *volatile executed;
    unsigned char *first = next;
    u64 sum = 0;
    for (int i = 0; i < BAITS; i++) stack[i] = baits ? baits[i] : 0;
    goto dispatch;
write:
    *page = 1;
    page += 4096;
    goto dispatch;
read:
    sum += *page;
    page += 4096;
    goto dispatch;
jump:
    next = first;
dispatch:
    if (!pages-- ) return sum + (u64)stack[0];
    if (*next == JUMP) pages++;
    executed = next += 2;
    goto *targets[1 + next[-2]];
unknown:
    abort();
}

/* Touches a page on a stack whose innermost return address is the caller's choice. */
void touch_from(volatile char *page, void **stack);
__asm__(".globl touch_from\ntouch_from:\n.cfi_startproc\nmov %rsp, %rdx\nmov %rsi, %rsp\nmovb $1, (%rdi)\n"
        "mov %rdx, %rsp\nret\n.cfi_endproc\n.size touch_from, . - touch_from\n.type touch_from, @function\n");

static void begin(void) {
    code = (struct code){1, PyCode_Type, LINES + 1, 10, 0, &file, &honest, 0, 0, &lines, {0}};
    for (int i = 0; i < LINES; i++) code.instructions[2 * i] = i & 1 ? READ : WRITE;
    code.instructions[2 * LINES] = JUMP;
    lines.references = many.references = 1, lines.type = many.type = PyBytes_Type, lines.size = 3 * (LINES + 1);
    for (int i = 0; i <= LINES; i++) memcpy(lines.data + 3 * i, i ? "\xD8\0\0" : "\xD0\0\0", 3); /* each on the next line */
    file.length = 8, honest.length = 6;
}

static volatile char *region(const char *of) {
    char *page = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(page, PAGES * 4096, MADV_NOHUGEPAGE);
    printf("%p %d %s\n", (void *)page, PAGES, of);
    return page;
}

static void lie(const char *of, void **baits) {
    _PyEval_EvalFrameDefault(code.instructions, region(of), PAGES, baits);
    usleep(20000);
    begin();
}

static void lies(void) {
    static const u64 lengths[] = {1UL << 62, (1UL << 63) - 1, -1UL, 1025, 1 << 14};
    static void *const places[] = {(void *)0xFFFFFFFF81000000UL, (void *)(1UL << 63), (void *)4096, (void *)8, (void *)-8UL};
    void *baits[BAITS];
    for (int i = 0; i < 5; i++) {
        honest.length = lengths[i], lie("long name", 0);
        file.length = lengths[i], lie("long file", 0);
        lines.size = lengths[i], lie("long table", 0);
        code.units = lengths[i], lie("long code", 0);
        code.name = places[i], lie("name nowhere", 0);
        code.file = places[i], lie("file nowhere", 0);
        code.lines = places[i], lie("table nowhere", 0);
        code.type = places[i], lie("of no type", 0);
        for (int j = 0; j < BAITS; j++) baits[j] = places[i];
        lie("nowhere", baits);
    }
    /* line tables that lie: more units, fewer, no entries, numbers that do not end, a line beyond all */
    lines.size -= 3, lie("short table", 0);
    lines.size += 3, lie("longer table", 0);
    memset(lines.data, 0, 64), lie("no table", 0);
    memset(lines.data, 0xF7, 3 * (LINES + 1)), lie("long numbers", 0);
    code.first_line = -1, lie("no line", 0);
    code.first_line = 0x7FFFFFFF, lie("last line", 0);
    /* another name for as long as the faults take, and from then on */
    code.name = &other, lie("flipped", 0);
    for (int i = 0; i < PAGES; i++) {
        code.name = i & 1 ? &other : &honest;
        _PyEval_EvalFrameDefault(code.instructions, region("flipping") + 4096 * i, 1, 0);
    }
    begin();
    /* frames that are none: the loop was called from nowhere, at each of its places, and has what it never had */
    void *stack[2 * BAITS];
    volatile char *page = region("frames");
    for (int i = 0; i < PAGES; i++) {
        stack[0] = (char *)_PyEval_EvalFrameDefault + i * 4;
        for (int j = 1; j < 2 * BAITS; j++) stack[j] = j & 1 ? code.instructions + 2 + 4 * (i % 4) : stack[0];
        touch_from(page + 4096L * i, stack);
    }
    /* code objects that share one name of 16,384 characters and one table of 262,144 units */
    memset(other.characters, 'x', sizeof other.characters), other.length = 1024;
    memset(many.data, 0x80 | 15 << 3, sizeof many.data), many.size = sizeof many.data;
    flood = mmap(0, FLOOD * sizeof *flood + 2 * MOST_UNITS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < FLOOD; i++)
        flood[i].code = (struct code){1, PyCode_Type, MOST_UNITS, 10, 0, &file, &other, i + 1, 0, &many, {WRITE, 0, READ, 0}};
    for (int i = 0; i < FLOOD / BAITS; i++) {
        for (int j = 0; j < BAITS; j++) baits[j] = flood[i * BAITS + j].code.instructions + 2;
        lie("flood", baits);
    }
}

int main(int count, char **words) {
    struct timespec now;
    (void)count;
    begin();
    _PyRuntime[PLACE_OF_INTERPRETERS / 8] = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double end = now.tv_sec + now.tv_nsec / 1e9 + atof(words[1]);
    do {
        lie("honest", 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec + now.tv_nsec / 1e9 < end);
    if (words[2]) lies();
    usleep(500000);
    return 0;
}

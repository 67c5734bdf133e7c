// Regions of memory, each touched by one function alone, called in a known way.
// Prints `START END PID FUNCTION CALLER`: a child and its parent may have regions at one address.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGES 600
#define KEEP __attribute__((noinline, noclone))
static volatile int never;
static char *region(const char *function, const char *caller) {
    char *p = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, PAGES * 4096, MADV_NOHUGEPAGE);
    printf("%p %p %d %s %s\n", p, p + PAGES * 4096, getpid(), function, caller);
    return p;
}
KEEP static void one(volatile char *p) { for (int i = 0; i < PAGES; i++) p[i * 4096] = 1; if (never) puts("1"); }
KEEP static void two(char *p) { memset(p, 7, PAGES * 4096); if (never) puts("2"); }
KEEP static void three(char *p) {
    int zeros = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < PAGES; i++) if (read(zeros, p + i * 4096, 4096) != 4096) abort();
    close(zeros);
}
KEEP static void four(volatile char *p, int depth) {
    if (depth) four(p, depth - 1);
    else for (int i = 0; i < PAGES; i++) p[i * 4096] = 1;
    if (never) puts("4");
}
KEEP static void five(char *p) {
    char secret[64];  // not in the program's text as such, nor in its arguments
    for (int i = 0; i < 63; i++) secret[i] = "hvwuhw0zrug0ri0wkh0vwdfn"[i % 24] - 3;
    secret[63] = 0;
    for (int i = 0; i < PAGES; i++) p[i * 4096] = secret[i % 63];
    if (never) puts(secret);
}
KEEP static void by_one(void) { one(region("one", "by_one")); if (never) puts("a"); }
KEEP static void by_two(void) { two(region("two", "by_two")); if (never) puts("b"); }
KEEP static void by_three(void) { three(region("three", "by_three")); if (never) puts("c"); }
KEEP static void by_four(void) { four(region("four", "four"), 12); if (never) puts("d"); }
KEEP static void by_five(void) { five(region("five", "by_five")); if (never) puts("e"); }
KEEP static void *thread(void *unused) { one(region("one", "thread")); if (never) puts("f"); return unused; }
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 1); round++) {
        by_one(); by_two(); by_three(); by_four(); by_five();
        pthread_t made;
        pthread_create(&made, 0, thread, 0);
        pthread_join(made, 0);
        pid_t child = fork();
        if (!child) { one(region("one", "main")); fflush(stdout); _exit(0); }
        waitpid(child, 0, 0);
    }
}

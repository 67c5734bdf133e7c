/* storms NAME SECONDS: processes that end at once, a chain of 1,000 living processes every few seconds (to fork 4,000,
   each of the one before, Linux takes minutes by itself: every fork copies the anon_vma chains of all), or mappings. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void process(char *self) {
    char *words[] = {self, NULL};
    pid_t pid;
    if (posix_spawn(&pid, self, NULL, NULL, words, environ) == 0) waitpid(pid, NULL, 0);
}

static void chain(void) {
    pid_t first = fork();
    if (first == 0) {
        setpgid(0, 0);
        for (int i = 0; i < 1000; i++) {
            pid_t next = fork();
            if (next > 0) pause();
            if (next != 0) break; /* no more are permitted */
        }
        kill(0, SIGKILL);
    }
    waitpid(first, NULL, 0);
    sleep(5);
}

static void mapping(int file) {
    char *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    *(volatile char *)at;
    munmap(at, 4096);
}

int main(int count, char **words) {
    if (count < 3) return 0;
    double end = now() + atof(words[2]);
    int file = open("/proc/self/exe", O_RDONLY);
    long n = 0;
    for (; now() < end; n++)
        if (!strcmp(words[1], "processes")) process(words[0]);
        else if (!strcmp(words[1], "chain")) chain();
        else mapping(file);
    printf("%ld\n", n);
    return 0;
}

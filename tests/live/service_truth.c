/* Times its own page faults: `service_truth MODE N [FILE]` prints for each of them its address, how long the access took, and
   how long the fault took at least (where a handler of our own let it wait); in ns of CLOCK_MONOTONIC. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20, MOST = 1 << 16 };
static const long SLOW_NS = 2000000;
static struct { unsigned long address; long took, least; } seen[MOST];
static int n_seen;
static char *slow;  /* served by the handler */
static long least[MOST];
static int handler_fd, pages, reads, walks, zero;
static pid_t faulting;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void on_cpu(pid_t tid, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(tid, sizeof one, &one);
}

static char *fresh(size_t bytes) {
    char *p = mmap(0, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((unsigned long)p + HUGE - 1) & ~(unsigned long)(HUGE - 1));
}

static void timed(char *p) {
    long begin = now();
    if (reads) (void)*(volatile char *)p;
    else *(volatile char *)p = 1;
    long took = now() - begin;
    int i = __atomic_fetch_add(&n_seen, 1, __ATOMIC_RELAXED);
    seen[i].address = (unsigned long)p;
    seen[i].took = took;
}

static void *serve(void *unused) {
    static char filled[PAGE];
    struct uffd_msg message;
    for (int i = 0; read(handler_fd, &message, sizeof message) == sizeof message; i++) {
        long begin = now();
        struct timespec wait = {0, SLOW_NS};
        if (walks) on_cpu(faulting, i % walks);
        nanosleep(&wait, 0);
        unsigned long at = message.arg.pagefault.address & ~(PAGE - 1UL);
        struct uffdio_copy copy = {.dst = at, .src = (unsigned long)filled, .len = PAGE};
        least[(at - (unsigned long)slow) / PAGE] = now() - begin;
        ioctl(handler_fd, UFFDIO_COPY, &copy);
    }
    return unused;
}

static void register_slow(int n) {
    struct uffdio_api api = {.api = UFFD_API};
    slow = mmap(0, (size_t)n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {{(unsigned long)slow, (size_t)n * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    handler_fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (handler_fd < 0 || ioctl(handler_fd, UFFDIO_API, &api) || ioctl(handler_fd, UFFDIO_REGISTER, &all)) {
        perror("userfaultfd");
        exit(3);
    }
}

static void make_slow(int n) {
    pthread_t thread;
    register_slow(n);
    pthread_create(&thread, 0, serve, 0);
}

static void *half(void *which) {
    on_cpu(0, 0);
    for (long i = (long)which; i < pages; i += 2) timed(slow + i * PAGE);
    return 0;
}

static char *in_signals;
static void signalled(int number) { timed(in_signals), in_signals += PAGE; (void)number; }

static void refused(int number, siginfo_t *info, void *unused) {
    struct timespec wait = {0, SLOW_NS};
    nanosleep(&wait, 0);
    mprotect((void *)((unsigned long)info->si_addr & ~(PAGE - 1UL)), PAGE, PROT_READ | PROT_WRITE);
    (void)number, (void)unused;
}

static void *executes(void *program) {
    struct timespec wait = {0, 300000000};
    nanosleep(&wait, 0);
    execl(program, program, (char *)0);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argv[1];
    int n = pages = atoi(argv[2]);
    memset(seen, 1, sizeof seen), memset(seen, 0, sizeof seen), memset(least, 1, sizeof least);
    zero = open("/dev/zero", O_RDONLY);
    if (!strcmp(mode, "touch")) {
        char *p = fresh((size_t)n * PAGE);
        madvise(p, (size_t)n * PAGE, MADV_NOHUGEPAGE);
        for (int i = 0; i < n; i++) timed(p + (size_t)i * PAGE);
    } else if (!strcmp(mode, "kernel")) {
        char *p = fresh((size_t)n * PAGE);
        madvise(p, (size_t)n * PAGE, MADV_NOHUGEPAGE);
        for (int i = 0; i < n; i++) {
            long begin = now();
            if (read(zero, p + (size_t)i * PAGE, 1) != 1) return 4;
            seen[n_seen].took = now() - begin;
            seen[n_seen++].address = (unsigned long)p + (size_t)i * PAGE;
        }
    } else if (!strcmp(mode, "file")) {
        int fd = open(argv[3], O_RDONLY);
        struct stat known;
        if (fstat(fd, &known)) return 5;  /* the kernel asks the file system for the size only then */
        char *p = mmap(0, (size_t)n * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
        reads = 1;
        for (int i = 0; i < n; i++) timed(p + (size_t)i * PAGE);
    } else if (!strcmp(mode, "huge")) {
        char *p = fresh((size_t)n * HUGE);
        madvise(p, (size_t)n * HUGE, MADV_HUGEPAGE);
        for (int i = 0; i < n; i++) timed(p + (size_t)i * HUGE);
    } else if (!strcmp(mode, "slow")) {
        make_slow(n);
        for (int i = 0; i < n; i++) timed(slow + (size_t)i * PAGE);
    } else if (!strcmp(mode, "moved")) {
        walks = sysconf(_SC_NPROCESSORS_ONLN), faulting = gettid();
        make_slow(n);
        for (int i = 0; i < n; i++) timed(slow + (size_t)i * PAGE);
    } else if (!strcmp(mode, "two")) {
        pthread_t other;
        make_slow(n), on_cpu(0, 0);
        pthread_create(&other, 0, half, (void *)1);
        half(0);
        pthread_join(other, 0);
    } else if (!strcmp(mode, "signals")) {
        struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
        char *p = fresh((size_t)n * PAGE);
        in_signals = fresh((size_t)MOST * PAGE);
        madvise(p, (size_t)n * PAGE, MADV_NOHUGEPAGE), madvise(in_signals, (size_t)MOST * PAGE, MADV_NOHUGEPAGE);
        signal(SIGALRM, signalled);
        setitimer(ITIMER_REAL, &often, 0);
        for (int i = 0; i < n && n_seen < MOST - 100; i++) timed(p + (size_t)i * PAGE);
        setitimer(ITIMER_REAL, &never, 0);
    } else if (!strcmp(mode, "refused")) {
        struct sigaction action = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO | SA_NODEFER};
        char *p = mmap(0, (size_t)n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigaction(SIGSEGV, &action, 0);
        for (int i = 0; i < n; i++) timed(p + (size_t)i * PAGE);
    } else if (!strcmp(mode, "again")) {
        char *p = fresh(HUGE);
        madvise(p, HUGE, MADV_NOHUGEPAGE);
        for (int i = 0; i < n; i++) madvise(p, PAGE, MADV_DONTNEED), timed(p);
    } else if (!strcmp(mode, "executed")) {
        pthread_t other;
        register_slow(1);
        pthread_create(&other, 0, executes, argv[3]);
        *(volatile char *)slow = 1;  /* nobody serves it: the exec ends it */
    }
    for (int i = 0; i < n_seen; i++) {
        unsigned long at = seen[i].address;
        if (slow && at >= (unsigned long)slow && at < (unsigned long)slow + (size_t)n * PAGE)
            seen[i].least = least[(at - (unsigned long)slow) / PAGE];
        printf("%lu %ld %ld\n", at, seen[i].took, seen[i].least);
    }
    return 0;
}

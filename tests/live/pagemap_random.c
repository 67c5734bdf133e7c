// A random mix of what brings pages and what takes them away: which function made each page that is left arrive.
// Run as: FILE FOLDER SEED STEPS KINDS; writes as pagemap_truth.c. KINDS: one letter for each kind of step, as in step().
#include "pagemap.h"
#include <linux/falloc.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SIZE = 48, REGIONS = 10, FORKS = 12, H = PAGE / 8 };
enum kind { ANON, SHARED_ANON, FILE_SHARED, FILE_PRIVATE, FILE_READ, KINDS };
static struct { char *at; enum kind kind; int file, pages; } regions[REGIONS]; // of huge pages: H pages or more
static int n_children, self;
static const char whole[SIZE * PAGE] = {1};

TOUCHES(write_a, *at = 1)
TOUCHES(write_b, *at = 2)
TOUCHES(write_c, *at = 3)
TOUCHES(write_d, *at = 4)
TOUCHES(read_a, (void)(*at + 1))
TOUCHES(read_b, (void)*at; asm volatile("nop"))
TOUCHES(read_c, (void)*at; asm volatile("nop; nop"))
static const struct { void (*touch)(char *, int); const char *name; } writers[] = {
    {write_a, "write_a"}, {write_b, "write_b"}, {write_c, "write_c"}, {write_d, "write_d"},
}, readers[] = {{read_a, "read_a"}, {read_b, "read_b"}, {read_c, "read_c"}};

static uint64_t state;
static unsigned below(unsigned most) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % most;
}

// Room for huge pages.
static char *aligned(size_t size) {
    char *got = mmap(NULL, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((uintptr_t)got + HUGE - 1) & -HUGE);
}

static void look_at(int r, const char *who) {
    for (int first = 0; first < regions[r].pages; first += H)
        look(regions[r].at + (size_t)first * PAGE, regions[r].pages - first < H ? regions[r].pages - first : H, who);
}

static void map_again(int r, char *at) {
    int flags = regions[r].kind == ANON ? MAP_PRIVATE | MAP_ANONYMOUS
        : regions[r].kind == SHARED_ANON ? MAP_SHARED | MAP_ANONYMOUS
        : regions[r].kind == FILE_PRIVATE ? MAP_PRIVATE : MAP_SHARED;
    int may = regions[r].kind == FILE_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    size_t size = regions[r].pages * PAGE;
    if (!at && size >= HUGE) at = aligned(size);
    char *got = mmap(at, size, may, flags | (at ? MAP_FIXED : 0), regions[r].file, 0);
    assert(got != MAP_FAILED);
    madvise(got, size, size < HUGE ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    regions[r].at = got;
}

static int step(char what) {
    int r = below(REGIONS), size = regions[r].pages, first = below(size), pages = 1 + below(size - first);
    char *at = regions[r].at + (size_t)first * PAGE;
    enum kind kind = regions[r].kind;
    size_t bytes = (size_t)pages * PAGE;
    const char *who = "0";
    switch (what) {
    case 'w':
        if (kind == FILE_READ) return 0;
        int w = below(4);
        if (pages > 8) pages = 8;
        writers[w].touch(at, pages), who = writers[w].name;
        break;
    case 'r':
        w = below(3);
        if (pages > 4) pages = 4;
        readers[w].touch(at, pages), who = readers[w].name;
        break;
    case 'd': madvise(at, bytes, MADV_DONTNEED); break;
    case 'f': madvise(at, bytes, MADV_FREE); break;
    case 'u':
        munmap(regions[r].at, size * PAGE);
        look_at(r, "0");
        map_again(r, regions[r].at);
        break;
    case 'o': map_again(r, regions[r].at); break;
    case 'm': {
        char *to = aligned(size * PAGE) + (size >= H ? below(2) * PAGE : 0);
        assert(mremap(regions[r].at, size * PAGE, size * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        moved(regions[r].at, to, size);
        regions[r].at = to;
        break;
    }
    case 'k':
        if (n_children++ >= FORKS) return 0;
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
        break;
    case 'e': {
        pid_t child = fork();
        if (!child) _exit(0);
        waitpid(child, NULL, 0);
        break;
    }
    case 'p':
        if (kind < FILE_SHARED) return 0;
        assert(!fallocate(regions[r].file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first * PAGE, bytes));
        break;
    case 't':
        if (kind < FILE_SHARED) return 0;
        assert(!ftruncate(regions[r].file, first * PAGE));
        look(regions[r].at, SIZE, "0");
        assert(!ftruncate(regions[r].file, SIZE * PAGE));
        break;
    case 'c': // pages of files leave where they can
        if (kind < FILE_SHARED) return 0;
        fdatasync(regions[r].file);
        madvise(at, bytes, MADV_PAGEOUT);
        look(regions[r].at, SIZE, "0");
        posix_fadvise(regions[r].file, 0, 0, POSIX_FADV_DONTNEED);
        break;
    case 'D': // pages of files that are not written back are unmapped, and stay in the page cache
        if (kind < FILE_SHARED) return 0;
        madvise(at, bytes, MADV_PAGEOUT);
        break;
    case 'F': // in one piece, so that its folios are large where the file system has such
        if (kind < FILE_SHARED) return 0;
        assert(!ftruncate(regions[r].file, 0));
        look(regions[r].at, SIZE, "0");
        assert(pwrite(regions[r].file, whole, sizeof whole, 0) == sizeof whole);
        break;
    case 'l': if (!mlock(at, bytes)) munlock(at, bytes); break;
    case 'L': if (!mlockall(MCL_FUTURE)) map_again(r, regions[r].at), munlockall(); break;
    case 'R': madvise(at, bytes, 22); break; // MADV_POPULATE_READ
    case 'W': madvise(at, bytes, 23); break; // MADV_POPULATE_WRITE
    case 'P': {
        struct iovec one = {at, bytes};
        syscall(SYS_process_madvise, self, &one, 1, MADV_DONTNEED, 0);
        break;
    }
    case 'H': madvise(at, bytes, 25); break; // MADV_COLLAPSE
    case 'x':
        if (kind == FILE_READ) return 0;
        mprotect(at, bytes, PROT_READ), mprotect(at, bytes, PROT_READ | PROT_WRITE);
        break;
    case 'K': // as k, and the child writes
        if (n_children++ >= FORKS) return 0;
        if (kind != ANON) return 0;
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            write_a(at, pages);
            for (;;) pause();
        }
        usleep(20000);
        break;
    case 'S':
        if (kind != SHARED_ANON) return 0;
        int segment = shmget(IPC_PRIVATE, SIZE * PAGE, 0600);
        assert(shmat(segment, regions[r].at, SHM_REMAP) == regions[r].at && !shmctl(segment, IPC_RMID, 0));
        break;
    default: abort();
    }
    look_at(r, who);
    if (kind >= FILE_SHARED && strchr("ptcDF", what)) // what was taken from the file
        for (int other = 0; other < REGIONS; other++)
            if (regions[other].kind >= FILE_SHARED) look(regions[other].at, SIZE, "0");
    return 1;
}

int main(int argc, char **argv) {
    assert(argc == 6);
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    char name[PAGE];
    self = syscall(SYS_pidfd_open, getpid(), 0);
    for (int r = 0; r < REGIONS; r++) {
        regions[r].kind = r < 3 ? ANON : r == 3 ? SHARED_ANON : FILE_SHARED + (r - 4) % 3;
        regions[r].file = -1;
        regions[r].pages = r < 3 && strchr(argv[5], 'H') ? (1 + r) * H : SIZE;
        if (regions[r].kind >= FILE_SHARED) {
            snprintf(name, sizeof name, "%s/file%d", argv[2], (r - 4) / 3);
            regions[r].file = open(name, O_CREAT | O_RDWR, 0600);
            for (int k = 0; k < SIZE; k++) assert(pwrite(regions[r].file, name, PAGE, k * PAGE) == PAGE);
        }
        map_again(r, NULL);
    }
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 1;
    for (int k = 0; k < 20; k++) below(2);
    for (int k = 0; k < atoi(argv[4]);) k += step(argv[5][below(strlen(argv[5]))]);
    fflush(stdout);
    tell(argv[1]);
}

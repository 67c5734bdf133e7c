/* A stand-in for psapi.dll where the system's own watch calls do nothing (Wine).

   It keeps what Microsoft's pages say of InitializeProcessForWsWatch and GetWsChangesEx; everything else
   is the system's own, forwarded to kernel32. The records come from the target itself: it appends them to a named
   section of its own (tests/wine/faulting.py), so that a test knows each of them in advance:

     section wstrace-watch-PID: struct watch below; mutex wstrace-watch-lock-PID around every access.

   QueryWorkingSet is made of the system's QueryWorkingSetEx, which answers for the calling process alone in Wine. Of
   another process a committed page of a file counts as resident, and a private one if it holds anything but zeros, as
   reading the process shows; what EmptyWorkingSet has taken out does not come back. What no Wine has is made up by
   address: NUMA nodes 0 and 1, share counts of 2 to 7. */
#define PSAPI_VERSION 1
#include <windows.h>
#include <stdio.h>
#include <string.h>

typedef struct { ULONG_PTR pc, lost_or_va, thread, flags; } record; /* PSAPI_WS_WATCH_INFORMATION_EX */
typedef struct { void *VirtualAddress; ULONG_PTR VirtualAttributes; } ex_information;
_Static_assert(sizeof(record) == 32, "x64");

#define CAPACITY 1024 /* what Windows 10 and 11 keep for a process */

struct watch {
    ULONG enabled, count;
    ULONGLONG lost, faults; /* faults: what the kernel's own counter would have counted */
    record records[CAPACITY];
};

#define SLOTS 128
static struct { DWORD pid; struct watch *watch; HANDLE lock; } slots[SLOTS];
static CRITICAL_SECTION guard;

BOOL WINAPI DllMain(HINSTANCE module, DWORD reason, void *reserved) {
    (void)module, (void)reserved;
    if (reason == DLL_PROCESS_ATTACH) InitializeCriticalSection(&guard);
    return TRUE;
}

/* The section of a process: created for the watch, else NULL when nobody made it. */
static int slot_of(HANDLE process, BOOL create) {
    DWORD pid = GetProcessId(process);
    int slot = -1;
    char name[64];
    if (!pid) return -1;
    EnterCriticalSection(&guard);
    for (int i = 0; i < SLOTS && slot < 0; i++)
        if (slots[i].pid == pid || !slots[i].pid) slot = i;
    if (slot >= 0 && !slots[slot].pid) {
        HANDLE section;
        snprintf(name, sizeof name, "wstrace-watch-%lu", pid);
        section = create ? CreateFileMappingA(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE, 0, sizeof(struct watch), name)
                         : OpenFileMappingA(FILE_MAP_ALL_ACCESS, FALSE, name);
        if (section) {
            slots[slot].watch = MapViewOfFile(section, FILE_MAP_ALL_ACCESS, 0, 0, sizeof(struct watch));
            snprintf(name, sizeof name, "wstrace-watch-lock-%lu", pid);
            slots[slot].lock = CreateMutexA(NULL, FALSE, name);
            slots[slot].pid = pid;
        } else
            slot = -1;
    }
    LeaveCriticalSection(&guard);
    return slot;
}

/* The slots of handles that were watched: GetProcessId asks Wine's server, which takes a drain of 50 processes 1 ms more
   than it would take Windows. (A later handle of the same number is watched first, too.) */
static struct { HANDLE process; int slot; } watched[4 * SLOTS];

static int slot_of_watched(HANDLE process) {
    size_t place = (ULONG_PTR)process / 4 % (sizeof watched / sizeof *watched);
    return watched[place].process == process ? watched[place].slot : slot_of(process, FALSE);
}

BOOL WINAPI InitializeProcessForWsWatch(HANDLE process) {
    int slot = slot_of(process, TRUE);
    size_t place = (ULONG_PTR)process / 4 % (sizeof watched / sizeof *watched);
    watched[place].process = slot < 0 ? NULL : process;
    watched[place].slot = slot;
    if (slot < 0) {
        SetLastError(ERROR_INVALID_HANDLE);
        return FALSE;
    }
    WaitForSingleObject(slots[slot].lock, INFINITE);
    slots[slot].watch->enabled = 1; /* once more flushes nothing */
    ReleaseMutex(slots[slot].lock);
    return TRUE;
}

BOOL WINAPI GetWsChangesEx(HANDLE process, record *buffer, DWORD *size) {
    int slot = slot_of_watched(process);
    struct watch *watch = slot < 0 ? NULL : slots[slot].watch;
    DWORD error = 0, room = *size;
    if (!watch || !watch->enabled) {
        SetLastError(GetProcessId(process) ? ERROR_GEN_FAILURE : ERROR_INVALID_HANDLE);
        return FALSE;
    }
    if (room % sizeof *buffer) {
        SetLastError(ERROR_BAD_LENGTH);
        return FALSE;
    }
    if ((!watch->count && !watch->lost) || /* nothing: shown without the lock, which costs two calls of Wine's server */
        WaitForSingleObject(slots[slot].lock, 0) == WAIT_TIMEOUT) { /* another query is under way */
        SetLastError(ERROR_NO_MORE_ITEMS);
        return FALSE;
    }
    *size = (watch->count + 1) * sizeof *buffer; /* in and out: the bytes that it needs, or gave */
    if (room < *size)
        error = ERROR_INSUFFICIENT_BUFFER;
    else {
        memcpy(buffer, watch->records, watch->count * sizeof *buffer);
        buffer[watch->count] = (record){.lost_or_va = watch->lost};
        watch->count = watch->lost = 0;
    }
    ReleaseMutex(slots[slot].lock);
    SetLastError(error);
    return !error;
}

BOOL WINAPI K32GetProcessMemoryInfo(HANDLE process, void *counters, DWORD size);
BOOL WINAPI K32QueryWorkingSetEx(HANDLE process, void *buffer, DWORD size);
BOOL WINAPI K32EmptyWorkingSet(HANDLE process);

BOOL WINAPI GetProcessMemoryInfo(HANDLE process, void *counters, DWORD size) {
    int slot = slot_of(process, FALSE);
    if (!K32GetProcessMemoryInfo(process, counters, size)) return FALSE;
    if (slot >= 0) ((DWORD *)counters)[1] = (DWORD)slots[slot].watch->faults;
    return TRUE;
}

/* Win32 protection -> Protection of PSAPI_WORKING_SET_BLOCK */
static ULONG_PTR protection(ULONG_PTR win32) {
    static const struct { ULONG_PTR win32, block; } map[] = {
        {PAGE_READONLY, 1}, {PAGE_EXECUTE, 2}, {PAGE_EXECUTE_READ, 3}, {PAGE_READWRITE, 4}, {PAGE_WRITECOPY, 5},
        {PAGE_EXECUTE_READWRITE, 6}, {PAGE_EXECUTE_WRITECOPY, 7}};
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (map[i].win32 == (win32 & 0xff)) return map[i].block | (win32 & PAGE_GUARD ? 16 : 0);
    return 0;
}

static DWORD emptied; /* the pid of the other process that was emptied last */

BOOL WINAPI EmptyWorkingSet(HANDLE process) {
    DWORD pid = GetProcessId(process);
    if (pid && pid != GetCurrentProcessId()) emptied = pid;
    return K32EmptyWorkingSet(process);
}

#define AT_ONCE 32
typedef ULONG_PTR page[512];

/* Marks those of some pages in a row that hold anything as valid. */
static void read_pages(HANDLE process, ex_information *pages, DWORD n) {
    page content[AT_ONCE];
    SIZE_T done;
    if (!ReadProcessMemory(process, pages->VirtualAddress, content, n * sizeof *content, &done)) return;
    for (DWORD i = 0; i < n; i++)
        for (DWORD word = 0; word < 512 && !(pages[i].VirtualAttributes & 1); word++)
            if (content[i][word]) pages[i].VirtualAttributes |= 1;
}

/* The valid, share count, protection, shared and node bits of PSAPI_WORKING_SET_EX_BLOCK. */
BOOL WINAPI QueryWorkingSetEx(HANDLE process, ex_information *pages, DWORD size) {
    DWORD pid = GetProcessId(process), n = size / sizeof *pages;
    MEMORY_BASIC_INFORMATION region = {0};
    if (pid == GetCurrentProcessId()) {
        if (!K32QueryWorkingSetEx(GetCurrentProcess(), pages, size)) return FALSE;
    } else
        for (DWORD i = 0, of; i < n; i += of) {
            char *at = pages[i].VirtualAddress, *end = (char *)region.BaseAddress + region.RegionSize;
            if (at < (char *)region.BaseAddress || at >= end) {
                if (!VirtualQueryEx(process, at, &region, sizeof region)) return FALSE;
                end = (char *)region.BaseAddress + region.RegionSize;
            }
            for (of = 0; of < AT_ONCE && i + of < n && at + of * 4096 < end; of++) {
                if (pages[i + of].VirtualAddress != at + of * 4096) break;
                pages[i + of].VirtualAttributes = (ULONG_PTR)(region.Protect & 0x7ff) << 4;
                if (region.State == MEM_COMMIT && region.Type != MEM_PRIVATE)
                    pages[i + of].VirtualAttributes |= 1 | 1 << 15;
            }
            if (region.State == MEM_COMMIT && region.Type == MEM_PRIVATE && pid != emptied)
                read_pages(process, pages + i, of);
        }
    for (DWORD i = 0; i < n; i++) {
        ULONG_PTR number = (ULONG_PTR)pages[i].VirtualAddress >> 12, *bits = &pages[i].VirtualAttributes;
        if (!(*bits & 1)) continue;
        *bits = (*bits & ~(ULONG_PTR)0x3f000e) | (number & 1) << 16 | (*bits >> 15 & 1) * (2 + number % 6) << 1;
    }
    return TRUE;
}

BOOL WINAPI QueryWorkingSet(HANDLE process, ULONG_PTR *buffer, DWORD size) {
    enum { BLOCK = 512 };
    ex_information pages[BLOCK];
    MEMORY_BASIC_INFORMATION region;
    ULONG_PTR room = size / sizeof *buffer, found = 0;
    if (!room) {
        SetLastError(ERROR_BAD_LENGTH);
        return FALSE;
    }
    for (char *at = 0; VirtualQueryEx(process, at, &region, sizeof region);
         at = (char *)region.BaseAddress + region.RegionSize) {
        if (region.State != MEM_COMMIT) continue;
        for (SIZE_T page = 0; page < region.RegionSize; page += BLOCK * 4096ull) {
            SIZE_T n = (region.RegionSize - page) / 4096;
            if (n > BLOCK) n = BLOCK;
            for (SIZE_T i = 0; i < n; i++) pages[i].VirtualAddress = (char *)region.BaseAddress + page + i * 4096;
            if (!QueryWorkingSetEx(process, pages, n * sizeof *pages)) continue;
            for (SIZE_T i = 0; i < n; i++) {
                ULONG_PTR bits = pages[i].VirtualAttributes;
                if (!(bits & 1)) continue;
                if (++found < room)
                    buffer[found] = (ULONG_PTR)pages[i].VirtualAddress | (bits >> 16 & 7) << 9 | (bits >> 15 & 1) << 8 |
                                    (bits >> 1 & 7) << 5 | protection(bits >> 4 & 0x7ff);
            }
        }
    }
    buffer[0] = found;
    SetLastError(found < room ? 0 : ERROR_BAD_LENGTH);
    return found < room;
}

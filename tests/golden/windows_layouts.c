/* Known values in the structures of psapi.h, memoryapi.h and winternl.h, as a C compiler lays them out.
   tests/golden/make_windows_layouts builds it and writes windows_layouts.json. */
#include <windows.h>
#include <psapi.h>
#include <winternl.h>

#define GOLD(name) __attribute__((section(name), used))
#define P(n) ((void *)(UINT_PTR)(n))

#define PC 0x7ffb12345678ull
#define VA 0x1d2f4a6b8c10ull
#define KERNEL_PC 0xfffff80212345678ull

/* soft fault: bit 0 of FaultingVa; then a hard one from the kernel; then the terminator: 7 lost */
GOLD("wswatchx") PSAPI_WS_WATCH_INFORMATION_EX watch_ex[3] = {
    {{P(PC), P(VA | 1)}, 4711, 0}, {{P(KERNEL_PC), P(0x20000)}, 4712, 0}, {{P(0), P(7)}, 0, 0}};

GOLD("wsblocks") struct {
    ULONG_PTR NumberOfEntries;
    PSAPI_WORKING_SET_BLOCK blocks[2];
} blocks = {2,
            {{.Protection = 3, .ShareCount = 7, .Shared = 1, .VirtualPage = 0x7ffb1},
             {.Protection = 4 + 16, .ShareCount = 0, .Shared = 0, .VirtualPage = 0x500}}};

GOLD("wsex") PSAPI_WORKING_SET_EX_INFORMATION ex[2] = {
    {P(0x10000), {.Valid = 1, .ShareCount = 5, .Win32Protection = PAGE_EXECUTE_READ, .Shared = 1, .Node = 33,
                   .Locked = 1, .LargePage = 1}},
    {P(0x20000), {.Valid = 0, .Shared = 1}}};

GOLD("mbi") MEMORY_BASIC_INFORMATION mbi = {
    .BaseAddress = P(0x7ff10000), .AllocationBase = P(0x7ff00000), .AllocationProtect = PAGE_EXECUTE_WRITECOPY,
    .RegionSize = 0x3000, .State = MEM_COMMIT, .Protect = PAGE_EXECUTE_READ, .Type = MEM_IMAGE};

GOLD("pmc") PROCESS_MEMORY_COUNTERS pmc = {
    .cb = sizeof(PROCESS_MEMORY_COUNTERS), .PageFaultCount = 123456, .PeakWorkingSetSize = 0x2000000,
    .WorkingSetSize = 0x1000000, .PagefileUsage = 0x300000, .PeakPagefileUsage = 0x400000};

GOLD("token") TOKEN_PRIVILEGES token = {1, {{{20, 0}, SE_PRIVILEGE_ENABLED}}};

GOLD("pbi") PROCESS_BASIC_INFORMATION pbi = {.PebBaseAddress = P(0x7ffe1000), .UniqueProcessId = 42, .InheritedFromUniqueProcessId = 7};

GOLD("spi") SYSTEM_PROCESS_INFORMATION spi = {
    .NextEntryOffset = 0x180, .CreateTime.QuadPart = 0x1dc00000, .ImageName = {14, 16, P(0x12340)}, .UniqueProcessId = P(42),
    .InheritedFromUniqueProcessId = P(7), .VirtualMemoryCounters = {.WorkingSetSize = 0x1000000}};

GOLD("startup") STARTUPINFOEXW startup = {
    .StartupInfo = {.cb = sizeof(STARTUPINFOEXW)}, .lpAttributeList = (LPPROC_THREAD_ATTRIBUTE_LIST)P(0x12340)};

GOLD("created") PROCESS_INFORMATION created = {P(0x44), P(0x48), 42, 43};

GOLD("version") OSVERSIONINFOW version = {
    .dwOSVersionInfoSize = sizeof(OSVERSIONINFOW), .dwMajorVersion = 10, .dwBuildNumber = 26100};

GOLD("privset") PRIVILEGE_SET privset = {1, 0, {{{20, 0}, 0}}};

GOLD("joblimit") JOBOBJECT_EXTENDED_LIMIT_INFORMATION joblimit = {.BasicLimitInformation = {.LimitFlags = 0x2800}};

GOLD("jobpids") JOBOBJECT_BASIC_PROCESS_ID_LIST jobpids = {3, 1, {42}};

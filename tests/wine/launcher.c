/* A launcher as `py`, `uv run` and the Python Install Manager's python.exe are, for tests/wine/test_wine_launchers.py: it
   starts the program that LAUNCHED names, with its own words and output, in a job that every child of that program
   leaves, waits, and passes the exit code on. Without LAUNCHED it starts nothing. */
#include <windows.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {
        .BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK};
    STARTUPINFOA start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES,
                          .hStdInput = GetStdHandle(STD_INPUT_HANDLE), .hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE),
                          .hStdError = GetStdHandle(STD_ERROR_HANDLE)};
    PROCESS_INFORMATION made;
    HANDLE job = CreateJobObjectA(NULL, NULL);
    static char line[32768], program[4096];
    char *rest = GetCommandLineA();
    DWORD code = 99;
    if (!GetEnvironmentVariableA("LAUNCHED", program, sizeof program)) {
        fprintf(stderr, "no Python is installed\n");
        return 3;
    }
    rest = *rest == '"' ? strchr(rest + 1, '"') + 1 : rest + strcspn(rest, " ");
    snprintf(line, sizeof line, "\"%s\"%s", program, rest);
    SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &made)) return 98;
    AssignProcessToJobObject(job, made.hProcess);
    WaitForSingleObject(made.hProcess, INFINITE);
    GetExitCodeProcess(made.hProcess, &code);
    return (int)code;
}

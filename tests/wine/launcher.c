/* A launcher as `py` and `uv run` are, for tests/wine/test_wine_launchers.py: it asks the program for its version first
   and keeps that output to itself, then starts the words behind its own with its own output, waits, and passes the exit
   code on. Without words it starts nothing. */
#include <windows.h>
#include <stdio.h>
#include <string.h>

static DWORD started(char *line, HANDLE output) {
    STARTUPINFOA start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES,
                          .hStdInput = GetStdHandle(STD_INPUT_HANDLE), .hStdOutput = output,
                          .hStdError = GetStdHandle(STD_ERROR_HANDLE)};
    PROCESS_INFORMATION made;
    DWORD code = 99;
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &made)) return code;
    WaitForSingleObject(made.hProcess, INFINITE);
    GetExitCodeProcess(made.hProcess, &code);
    CloseHandle(made.hProcess);
    CloseHandle(made.hThread);
    return code;
}

int main(int count, char **words) {
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    HANDLE kept, theirs, ours;
    char line[32768], *rest = GetCommandLineA();
    if (count < 2) return 3;
    if (!CreatePipe(&kept, &theirs, &inherited, 0)) return 98;
    snprintf(line, sizeof line, "\"%s\" --version", words[1]);
    started(line, theirs);
    /* Rust's and the py launcher's children have a copy of the handle, with another number */
    if (!DuplicateHandle(GetCurrentProcess(), GetStdHandle(STD_OUTPUT_HANDLE), GetCurrentProcess(), &ours, 0, TRUE,
                         DUPLICATE_SAME_ACCESS))
        ours = GetStdHandle(STD_OUTPUT_HANDLE);
    rest = *rest == '"' ? strchr(rest + 1, '"') + 1 : strchr(rest, ' ');
    while (*rest == ' ') rest++;
    return (int)started(rest, ours);
}

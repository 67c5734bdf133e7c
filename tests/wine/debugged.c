/* A DLL that exports one function and keeps two to itself: its debug information names all three. */
__attribute__((noinline)) static int hidden_static(int x) {
    volatile int y = x;
    return y * 3 + 1;
}

__attribute__((noinline)) int hidden_external(int x) { return hidden_static(x) + 2; }

__declspec(dllexport) int shown(int x) { return hidden_external(x) ^ 5; }

/* where they lie */
__declspec(dllexport) void *const places[] = {(void *)hidden_static, (void *)hidden_external, (void *)shown};

// Faults under all that makes unwinding hard: signals, exceptions, alloca, realigned frames, recursion, threads, a PLT.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>
static char *area;
static volatile long at;
__attribute__((noinline)) void touch() { area[(at++ % 60000) * 4096] = 1; }
static void on_signal(int) { touch(); }
__attribute__((noinline)) int recurse(int depth) {
    volatile char used[40];
    used[0] = depth;
    if (!depth) {
        touch();
        raise(SIGUSR1);
        return 0;
    }
    return recurse(depth - 1) + used[0];
}
struct alignas(64) Wide { double values[8]; };
__attribute__((noinline)) double realigned(int n) {
    Wide wide[4];
    memset(wide, n, sizeof wide);
    asm volatile("" ::"r"(wide) : "memory");
    touch();
    return wide[1].values[2];
}
__attribute__((noinline)) double with_alloca(int n) {
    volatile char *p = (char *)__builtin_alloca(n);
    p[n - 1] = 1;
    touch();
    return p[n - 1];
}
__attribute__((noinline)) void thrower(int n) {
    std::string text(20000 + n, 'x');
    touch();
    throw std::runtime_error(text);
}
int main() {
    area = (char *)mmap(0, 60000L * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, on_signal);
    auto work = [] {
        std::map<int, std::vector<std::string>> kept;
        for (int i = 0; i < 1500; i++) {
            kept[i % 50].push_back(std::string(300 + i, 'y'));
            recurse(i % 30);
            realigned(i);
            with_alloca(1000 + i);
            try {
                thrower(i);
            } catch (std::exception &) {
            }
            std::vector<int> numbers(5000, i);
            std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return a > b; });
        }
    };
    std::thread first(work), second(work);
    work();
    first.join();
    second.join();
}

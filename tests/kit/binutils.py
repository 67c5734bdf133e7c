"""Programs with answers that are compared with ours, and the images that both read."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <cstdio>
#include <vector>
namespace shop { template <class T> struct Basket { std::vector<T> items; void add(T x); }; }
template <class T> __attribute__((noinline)) void shop::Basket<T>::add(T x) { items.push_back(x); }
int table[1000] = {1};
static int empty[5000];
__attribute__((noinline)) static int local(int x) { for (int i = x; i; i--) empty[i] += i * x; return empty[x]; }
int main(int n, char **) { shop::Basket<double> b; b.add(n); std::printf("%d", local(n) + table[n]); }
"""
FLAVOURS = {
    "pie": ["-O1", "-pie", "-fPIE"],
    "fixed": ["-O1", "-no-pie", "-static"],
    "shared": ["-O1", "-shared", "-fPIC"],
    "old_layout": ["-O1", "-Wl,-z,noseparate-code"],
    "no_build_id": ["-O1", "-Wl,--build-id=none"],
}


def run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def need(*programs: str) -> None:
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")

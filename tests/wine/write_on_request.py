"""A target with a write watch of 64 pages and an agent: a line of page numbers is written to. Ends when stdin does."""

import sys

import numpy as np

import wstrace

watch = wstrace.WriteWatch(64 * 4096)
array = np.frombuffer(watch, "u1")
agent = wstrace.agent()
print(f"{array.ctypes.data:x}", flush=True)
for line in sys.stdin:
    for page in line.split():
        array[int(page) * 4096] = 7
    print("written", flush=True)

"""A target: makes page faults that the test knows, at addresses that are really mapped, and waits until they are taken.

Arguments: rounds, records a round. Record i of round n: instruction ntdll + n, page i of a buffer (byte 16 * n), thread
100 + n, hard when i is a multiple of 4. Prints the two addresses. Ends with code 3.
"""

import ctypes
import sys
import time

import faulting

rounds, count = int(sys.argv[1]), int(sys.argv[2])
buffer = ctypes.create_string_buffer(count * 4096)
heap = ctypes.addressof(buffer)
ntdll = ctypes.cast(ctypes.WinDLL("ntdll").NtClose, ctypes.c_void_p).value
print(f"{ntdll:x} {heap:x}", flush=True)
for n in range(rounds):
    faulting.faults((ntdll + n, heap + i * 4096 + 16 * n, 100 + n, i % 4 == 0) for i in range(count))
    until = time.monotonic() + 20
    while faulting.waiting() and time.monotonic() < until:
        time.sleep(0.001)
# What is behind their addresses is read next, which needs a living process: beside three busy loops 3 of 44 had ended.
time.sleep(0.5)
sys.exit(3)

"""A target: `now N` makes N page faults, `wait N` first waits until somebody watches. Ends when stdin does."""

import sys
import time

import faulting

print("ready", flush=True)
for line in sys.stdin:
    word, count = line.split()
    until = time.monotonic() + 30
    while word == "wait" and not faulting.enabled() and time.monotonic() < until:
        time.sleep(0.01)
    faulting.faults((0x7F0000001000 + n, 0x40000 + 4096 * n, 7, n % 2 == 0) for n in range(int(count)))
    print("done", count, flush=True)

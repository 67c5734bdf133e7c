"""Service times: how long the kernel took to serve each fault, by two eBPF programs.

programs: what runs at a fault's entry and at its end. calibration: what the programs' own work costs, and how much that
varies. rows: the times in the fault rings and the samples that they belong to. capture: all of it, for the source.

Why programs and not a pair of events with rings, which would need no privilege: perf gives all events of one kind the
time of whichever comes first, so beside `perf record -e page-faults` the entry would carry another clock's time, and
nothing shows that it does; and an entry row lost in one ring lets an end take the entry of another fault.
"""

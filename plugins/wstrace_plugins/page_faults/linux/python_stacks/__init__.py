"""Python stacks at page faults: an eBPF program on the fault events walks CPython's frames, exactly and from outside.

bpf: instructions, maps and programs by bpf(2). programs: what runs in the kernel at each fault. kernel:
these programs as loaded, and the kernel's structures. interpreters: which process runs which CPython. protocol: what
the programs and the tracer agree on. decoder: what they tell. capture: all of it, for the source.
"""

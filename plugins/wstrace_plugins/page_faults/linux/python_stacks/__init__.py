"""Python stacks at page faults: an eBPF program on the fault events walks CPython's frames, exactly and from outside.

assembler, bpf: instructions, maps and programs by bpf(2). program: what runs in the kernel at each fault. btf, elf,
layouts: where the kernel, an ELF file and a CPython keep what is read. interpreters: which process runs which CPython.
rows: the stack rows in the fault rings and the faults that they belong to. code_objects, stack_records: what the
program tells of code and stacks. capture: all of it, for the source.
"""

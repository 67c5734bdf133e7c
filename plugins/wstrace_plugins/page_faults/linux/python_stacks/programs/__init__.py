# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What runs in the kernel at each page fault: an entry that finds the process's CPython, and a walker for each version.

The entry hangs on the fault events. It tells which CPython the faulting process runs (`reported` by the tracer, or its
parent's), and goes on to that version's walker, which finds the thread's state, reads the frames from the innermost one
outwards, and hashes them. Where the hash is new, what it stands for goes to the tracer in the ring buffer: first the
code objects that are new, then the frames. Where it is not that of the thread's fault before on this CPU, a row with it
goes into the ring of the faults, and the kernel's sample follows directly behind: software events run with preemption
off, so nothing gets between. A memory access that fails is an answer, never a fault.

Only memory of the current process is read, never written. What is read may be anything: each number is checked where
the verifier wants it, and where a wrong one would be believed.
"""

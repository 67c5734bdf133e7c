"""A program of 400 bytes that holds a launched command before its execve(), so that its own counters begin at 0.

The kernel carries a process's fault counts and peak across execve(). Between fork() and execve(), Python causes some
430 faults in a process of 8 MiB, which a command that measures itself (getrusage(2)) would see as its own. Therefore
the forked child executes this program. Even that process is not the one to be measured: it starts a sibling, which is
a child of the tracer (CLONE_PARENT) with counters of its own and a memory of a few pages, and ends. The sibling

1. makes its two descriptors close-on-exec and sends its pid, u64;
2. waits until it can read a byte, and ends when there is none;
3. sends its struct rusage, 144 bytes, and executes argv[0] with argv[1:] and its environment;
4. sends the errno, u64, if that is refused.

It is machine code because wstrace runs on machines without a compiler. `tests/plugins/test_os_linux_held_image.py`
compares it with the assembled listing below. Machines other than x86-64 do without it (`image()` is None).

Source: System V ABI, AMD64 supplement, 3.4.1 (the stack of a new process); elf(5); syscall_64.tbl in arch/x86/entry.
"""

from __future__ import annotations

import platform
import struct

_LOAD_AT, _HEADERS = 0x400000, 64 + 2 * 56
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_GNU_STACK, _READ, _WRITE, _EXECUTE = 1, 0x6474E551, 4, 2, 1
GO, ANSWER = 0x11111111, 0x22222222  # Placeholders in the code for the descriptors' numbers.

#: The machine code, with its assembly behind each piece.
_CODE = (
    "4989e4"  # mov r12, rsp
    "bf11800000"  # mov edi, 0x8011  ; CLONE_PARENT | SIGCHLD
    "31f6"  # xor esi, esi
    "31d2"  # xor edx, edx
    "4531d2"  # xor r10d, r10d
    "4531c0"  # xor r8d, r8d
    "b838000000"  # mov eax, 56  ; clone
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "0f88b8000000"  # js quit
    "7409"  # jz child
    "31ff"  # xor edi, edi
    "b8e7000000"  # mov eax, 231  ; exit_group
    "0f05"  # syscall
    # child:
    "bf11111111"  # mov edi, 0x11111111
    "be02000000"  # mov esi, 2  ; F_SETFD
    "ba01000000"  # mov edx, 1  ; FD_CLOEXEC
    "b848000000"  # mov eax, 72  ; fcntl
    "0f05"  # syscall
    "bf22222222"  # mov edi, 0x22222222
    "b848000000"  # mov eax, 72  ; fcntl
    "0f05"  # syscall
    "b827000000"  # mov eax, 39  ; getpid
    "0f05"  # syscall
    "50"  # push rax
    "bf22222222"  # mov edi, 0x22222222
    "4889e6"  # mov rsi, rsp
    "ba08000000"  # mov edx, 8
    "b801000000"  # mov eax, 1  ; write
    "0f05"  # syscall
    "bf11111111"  # mov edi, 0x11111111
    "4889e6"  # mov rsi, rsp
    "ba01000000"  # mov edx, 1
    "31c0"  # xor eax, eax  ; read
    "0f05"  # syscall
    "83f801"  # cmp eax, 1
    "7559"  # jne quit
    "4881ec90000000"  # sub rsp, 144
    "31ff"  # xor edi, edi
    "4889e6"  # mov rsi, rsp
    "b862000000"  # mov eax, 98  ; getrusage
    "0f05"  # syscall
    "bf22222222"  # mov edi, 0x22222222
    "4889e6"  # mov rsi, rsp
    "ba90000000"  # mov edx, 144
    "b801000000"  # mov eax, 1  ; write
    "0f05"  # syscall
    "498b7c2408"  # mov rdi, [r12+8]
    "498d742410"  # lea rsi, [r12+16]
    "498b1424"  # mov rdx, [r12]
    "498d54d410"  # lea rdx, [r12+rdx*8+16]
    "b83b000000"  # mov eax, 59  ; execve
    "0f05"  # syscall
    "48f7d8"  # neg rax
    "50"  # push rax
    "bf22222222"  # mov edi, 0x22222222
    "4889e6"  # mov rsi, rsp
    "ba08000000"  # mov edx, 8
    "b801000000"  # mov eax, 1  ; write
    "0f05"  # syscall
    # quit:
    "bf7e000000"  # mov edi, 126
    "b8e7000000"  # mov eax, 231  ; exit_group
    "0f05"  # syscall
)


def image(go: int, answer: int) -> bytes | None:
    """The ELF file for these two descriptors; None if there is none for this machine."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    code = bytes.fromhex(_CODE)
    code = code.replace(struct.pack("<I", GO), struct.pack("<I", go))
    code = code.replace(struct.pack("<I", ANSWER), struct.pack("<I", answer))
    size = _HEADERS + len(code)
    # ELFCLASS64, little-endian, version 1, System V | ET_EXEC, EM_X86_64
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = _ELF.pack(ident, 2, 62, 1, _LOAD_AT + _HEADERS, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = _SEGMENT.pack(_PT_LOAD, _READ | _EXECUTE, 0, _LOAD_AT, _LOAD_AT, size, size, 4096)
    stack = _SEGMENT.pack(_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code

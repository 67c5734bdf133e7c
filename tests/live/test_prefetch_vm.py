"""The memory file of a virtual machine: a list made by tracing its monitor has the pages that the guest touched.

The guest is a boot sector that reads known pages; the monitor is QEMU, which maps the file privately, as monitors do
that restore a snapshot. With KVM the guest's accesses are no page faults of the monitor's code, and reach the list by
the snapshot at its exit; with QEMU's own translator they are, and stand in order.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from binutils import need
from command_line import wstrace

from wstrace_plugins.prefetch.start_list import decoded

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # nested KVM took 25 s on a busy machine

FIRST, CLUSTER, STEP, CLUSTERS = 4096, 16, 64, 128  # pages: 8 MiB in parts of 64 KiB, one every 256 KiB, from 16 MiB on
BOOT = f"""
.code16
.globl _start
_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdt table
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmp $8, $protected
.code32
protected:
    movw $16, %ax
    movw %ax, %ds
    movl ${CLUSTERS * CLUSTER}, %ecx
next:                      # page number ecx - 1: its cluster is the number / 16, from the last one down
    decl %ecx
    movl %ecx, %eax
    shrl $4, %eax
    imull ${STEP << 12}, %eax, %eax
    movl %ecx, %ebx
    andl $15, %ebx
    shll $12, %ebx
    addl %ebx, %eax
    addl ${FIRST << 12}, %eax
    movb (%eax), %bl
    testl %ecx, %ecx
    jnz next
    movw $0xf4, %dx        # QEMU's isa-debug-exit ends with 2 * al + 1
    movb $8, %al
    outb %al, %dx
halt:
    hlt
    jmp halt
.p2align 3
segments: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
table: .word 23
    .long segments
.org 510
.word 0xaa55
"""


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_a_list_has_the_pages_that_the_guest_touched(accelerator: str, tmp_path: Path) -> None:
    need("qemu-system-x86_64", "as", "ld")
    if accelerator == "kvm" and not os.access("/dev/kvm", os.W_OK):
        pytest.skip("needs /dev/kvm")
    memory, boot, source = tmp_path / "guest.mem", tmp_path / "boot.img", tmp_path / "boot.s"
    source.write_text(BOOT)
    subprocess.run(["as", "--32", "-o", tmp_path / "boot.o", source], check=True)
    linked = ["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", boot, tmp_path / "boot.o"]
    subprocess.run(linked, check=True)
    with memory.open("wb") as file:
        for _ in range(128):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    with memory.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    backend = f"memory-backend-file,id=ram,size=128M,mem-path={memory},share=off"
    machine = ["-accel", accelerator, "-m", "128", "-object", backend, "-machine", "pc,memory-backend=ram"]
    quiet = ["-display", "none", "-no-reboot", "-nodefaults", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]
    disk = ["-drive", f"format=raw,file={boot}"]
    traced = ["timeout", "500", sys.executable, "-m", "wstrace", "run", "-q", "-o", str(tmp_path / "x.wst"), "--"]
    monitor = ["qemu-system-x86_64", *machine, *quiet, *disk]
    done = subprocess.run([*traced, *monitor], capture_output=True, text=True)
    assert done.returncode == 17, done.stderr
    done = wstrace("prefetch", tmp_path / "x.wst", "-o", tmp_path / "start.list", "--gap", "0")
    assert done.returncode == 0, done.stderr
    found = [
        page
        for one in decoded((tmp_path / "start.list").read_bytes(), "it")
        if one.file.path == os.fsencode(memory)
        for page in range(one.offset // mmap.PAGESIZE, -(-(one.offset + one.length) // mmap.PAGESIZE))
        if page >= FIRST
    ]
    touched = {FIRST + STEP * cluster + page for cluster in range(CLUSTERS) for page in range(CLUSTER)}
    assert len(found) == len(set(found))
    assert touched <= set(found)
    around = {page + away for page in touched for away in range(-32, 33)}
    assert len(set(found) - around) < 256, "beside what the kernel reads around a page, only the firmware's"
    if accelerator == "tcg":
        clusters = [page for page in found if page in touched and (page - FIRST) % STEP == 0]
        assert clusters == sorted(clusters, reverse=True), "in order of first touch"

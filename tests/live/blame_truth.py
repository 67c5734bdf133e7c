"""Brings known pages by known lines, then ends without freeing any: each function has what it says."""

import mmap
import os
import signal

PAGES, PAGE = 1024, mmap.PAGESIZE
SIZE = PAGES * PAGE


def anonymous():
    return mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def load(memory):
    for at in range(0, SIZE, PAGE):
        memory[at] = 1  # 2 * PAGES: of the block that a child shared, and of the one that was moved


def rewrite(memory):
    for at in range(0, SIZE, PAGE):
        memory[at] = 2  # nothing: the pages were there


def bring_again(memory):
    for at in range(0, SIZE, PAGE):
        memory[at] = 3  # PAGES: load's had been discarded


def copy(memory):
    for at in range(0, SIZE, PAGE):
        memory[at] = 4


shared = anonymous()
load(shared)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
rewrite(shared)

moved = anonymous()
wall = anonymous()  # lies where the first would grow
load(moved)
moved.resize(64 * SIZE)
rewrite(moved)

discarded = anonymous()
load(discarded)
discarded.madvise(mmap.MADV_DONTNEED)
bring_again(discarded)

shown, tell = os.pipe()
four = anonymous()
bring_again(four)
children = []
for _ in range(4):
    children.append(os.fork())
    if not children[-1]:
        copy(four)
        os.write(tell, b"x")
        signal.pause()
for _ in children:
    os.read(shown, 1)
copy(four)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
os._exit(0)

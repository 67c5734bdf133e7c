# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Finds the state of the faulting thread, and its innermost frame."""

from __future__ import annotations

from collections.abc import Callable

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.page_faults.linux.python_stacks.bpf import BYTE, FP, R0, R1, R2, R3, R4, R7, R9
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import VALUE, Walk
from wstrace_plugins.page_faults.linux.python_stacks.protocol import S

_NEXT_ID = 16  # behind interpreters.head and .main: the next one's id, 0 or -1 before the first one
_THREADS = 8192  # thread states that a search looks at


def thread(a: Walk, o: Layout) -> None:
    """R7 = the innermost frame of the thread, from the state that its thread pointer finds; or goes on elsewhere."""
    a.get(R7, S.PROCESS + 8)
    a.read(S.WORDS, _NEXT_ID + 8, R7, o.interpreters, "untouched")
    a.get(R7, S.WORDS)
    a.get(R2, S.WORDS + _NEXT_ID)
    a.jump_if(R7, "!=", 0, "interpreter")
    a.jump_if(R2, "==", 0, "unborn")
    a.jump_if(R2, "==", -1, "unborn")
    a.jump("empty")  # the last one has ended
    a.label("interpreter")
    a.put(S.INTERPRETER, R7)
    a.get(R1, S.SALT)  # each interpreter numbers its code objects, and may have those of an ended one in their place
    a.load64(R4, a.maps.multiplier)
    a.mix(R1, R2)
    a.put(S.SALT, R1)
    # -- remembered: (state, first interpreter, states made so far, salt), all that tells whether it still holds
    a.key(S.IDS)
    a.lookup(a.maps.threads.fd, "search")
    a.mov(R9, R0)
    a.load(R1, R9, 8)
    a.jump_if(R1, "!=", R7, "search")
    a.load(R1, R9, 24)
    a.get(R2, S.SALT)
    a.jump_if(R1, "!=", R2, "search")
    a.load(R7, R9, 0)
    a.jump_if(R7, "==", 0, "none before")
    at = _read_state(a, o, "search")
    a.get(R1, at(o.thread_id))
    a.get(R2, S.THREAD_POINTER)
    a.jump_if(R1, "!=", R2, "search")
    if o.code_generation is not None:  # of the one interpreter
        a.get(R3, S.INTERPRETER)
        a.read(S.UNIQUE, 8, R3, o.code_generation, "state was read")
        a.load64(R4, a.maps.multiplier)
        a.get(R1, S.SALT)
        a.get(R2, S.UNIQUE)
        a.mix(R1, R2)
        a.put(S.EPOCH, R1)
    a.jump("state was read")
    a.label("none before")
    a.get(R7, S.INTERPRETER)
    a.peek(R1, R7, o.threads - 8, "bad")  # next_unique_id: a state was made since then if it has changed
    a.load(R2, R9, 16)
    a.jump_if(R1, "==", R2, "empty")
    # -- all states of all interpreters, the newest first; where a thread has several, the newest one with a frame
    a.label("search")
    a.get(R7, S.INTERPRETER)
    a.read(S.UNIQUE, 8, R7, o.threads - 8, "no thread")
    a.put(S.NEXT, R7)
    for place in (S.CURSOR, S.FOUND, S.NEWBORN, S.ENDED):
        a.put(place, 0)
    a.repeat(_THREADS, lambda again: _state(a, o, again))
    # -- kept where there is one interpreter: a thread has no other state then, until another interpreter comes first
    a.get(R7, S.INTERPRETER)
    a.peek(R1, R7, o.interpreter_next, "not kept")
    a.jump_if(R1, "!=", 0, "not kept")
    a.when(S.FOUND, "!=", 0, "keep")
    a.when(S.NEWBORN, "!=", 0, "not kept")
    a.when(S.ENDED, "==", 0, "not kept")
    a.label("keep")
    a.get(R1, S.FOUND)
    a.store(FP, VALUE, R1)
    a.store(FP, VALUE + 8, R7)
    a.get(R1, S.UNIQUE)
    a.store(FP, VALUE + 16, R1)
    a.get(R1, S.SALT)
    a.store(FP, VALUE + 24, R1)
    a.key(S.IDS)
    a.update(a.maps.threads.fd)
    a.label("not kept")
    a.get(R7, S.FOUND)
    a.jump_if(R7, "!=", 0, "state")
    a.when(S.ENDED, "==", 0, "no thread")
    a.jump("empty")
    a.label("state")
    _read_state(a, o, "bad")
    a.label("state was read")
    _current_frame(a, o, "bad", at)
    a.mov(R7, R1)


def _read_state(a: Walk, o: Layout, unreadable: str) -> Callable[[int], int]:
    """Reads what is wanted of the thread state R7, at once; gives the place of each member in the scratch memory."""
    low, high = sorted((o.thread_id, o.current_frame if o.cframe is None else o.cframe))
    a.read(S.WORDS, high + 8 - low, R7, low, unreadable)
    return lambda member: S.WORDS + member - low


def _state(a: Walk, o: Layout, again: str) -> None:
    """A step of a search: S.CURSOR is the next thread state, 0 = those of the interpreter S.NEXT begin."""
    a.get(R7, S.CURSOR)
    a.jump_if(R7, "!=", 0, "state?")
    a.get(R7, S.NEXT)
    a.put(S.ENDED, 1)
    a.jump_if(R7, "==", 0, "searched")
    a.put(S.ENDED, 0)
    a.read(S.NEXT, 8, R7, o.interpreter_next, "searched")
    a.read(S.CURSOR, 8, R7, o.threads, "searched")
    a.jump(again)
    a.label("state?")
    at = _read_state(a, o, "searched")
    a.get(R3, at(o.thread_id))
    a.put(S.OFFSET, R3)
    _current_frame(a, o, "searched", at)
    if o.base_frame:
        _no_base_frame(a, o, "searched")
    a.get(R3, S.OFFSET)
    a.get(R2, S.THREAD_POINTER)
    a.jump_if(R1, "==", 0, "no frame")
    a.jump_if(R3, "==", 0, "no frame")
    a.jump_if(R3, "!=", R2, "next one")
    a.put(S.FOUND, R7)
    a.jump("searched")
    a.label("no frame")  # another thread's, idle; or that of a thread about to start, which has no or a wrong id
    a.put(S.NEWBORN, 1)
    a.jump_if(R3, "!=", R2, "next one")
    a.when(S.FOUND, "!=", 0, "next one")
    a.put(S.FOUND, R7)
    a.label("next one")
    a.read(S.CURSOR, 8, R7, o.thread_next, "searched")
    a.jump(again)
    a.label("searched")


def _current_frame(a: Walk, o: Layout, unreadable: str, at: Callable[[int], int]) -> None:
    """R1 = the innermost frame of the thread state that was read, 0 = none; `at` finds the state's members."""
    if o.cframe is None:
        a.get(R1, at(o.current_frame))
    else:
        a.get(R3, at(o.cframe))
        a.peek(R1, R3, o.current_frame, unreadable)


def _no_base_frame(a: Walk, o: Layout, unreadable: str) -> None:
    """R1 = the frame R1, 0 where that is the one below all of Python's."""
    some = a.name("some")
    a.jump_if(R1, "==", 0, some)
    a.put(S.CODE, R1)
    low = min(o.frame_previous, o.frame_owner) & ~7
    a.mov(R3, R1)
    a.read(S.WORDS, (max(o.frame_previous, o.frame_owner) & ~7) + 8 - low, R3, low, unreadable)
    a.get(R1, S.CODE)
    a.get(R2, S.WORDS + o.frame_previous - low)
    a.jump_if(R2, "!=", 0, some)
    a.get(R2, S.WORDS + o.frame_owner - low, BYTE)
    a.jump_if(R2, "<", o.owner_skip, some)
    a.mov(R1, 0)
    a.label(some)

"""Where CPython keeps its frames: the offsets of structure members, by version.

3.11 and 3.12 have no description of themselves: theirs are the offsets of Include/internal/pycore_runtime.h,
pycore_interp.h, pycore_frame.h, cpython/pystate.h and cpython/code.h, the same in all their releases (a test compiles
offsetof() against the headers that are installed). From 3.13 on _Py_DebugOffsets stands at the start of _PyRuntime, in
the file's own data; it lacks co_version, which stands 24 bytes behind co_firstlineno in all versions that have it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 15))
READ = "stacks are read of {0[0]}.{0[1]} to {1[0]}.{1[1]}".format(VERSIONS[0], VERSIONS[-1])
_COOKIE = b"xdebugpy"
_VERSION_BEHIND_FIRST_LINE = 24

#: the u64 of _Py_DebugOffsets, behind cookie[8], in their order: structure.member, "size" being sizeof
_TEXT_313 = (
    "version free_threaded runtime.size runtime.finalizing runtime.interpreters "
    "is.size is.id is.next is.threads is.gc is.modules is.sysdict is.builtins is.gil is.gil_state is.gil_enabled "
    "is.gil_locked is.gil_holder "
    "ts.size ts.prev ts.next ts.interp ts.frame ts.thread_id ts.native_thread_id ts.chunk ts.status "
    "frame.size frame.previous frame.executable frame.instr_ptr frame.locals frame.owner "
    "code.size code.filename code.name code.qualname code.linetable code.firstlineno code.argcount code.names "
    "code.localspluskinds code.adaptive"
)
#: what a version has behind some of them, and those after it
_NEW_SINCE = {
    (3, 14): {
        "is.threads": "is.main_thread", "is.gil_holder": "is.code_generation is.tlbc_generation",
        "frame.owner": "frame.stackpointer frame.tlbc", "code.adaptive": "code.tlbc",
    },
    (3, 15): {
        "ts.frame": "ts.base_frame ts.profiled_frame ts.profiled_frame_number",
        "ts.status": "ts.holds_gil ts.gil_requested ts.exception ts.exceptions exception.value",
    },
}  # fmt: skip


def fields_of(version: tuple[int, int]) -> Sequence[str]:
    """The u64 of that version's _Py_DebugOffsets behind its cookie, by name and in order."""
    names = _TEXT_313.split()
    for since, new in _NEW_SINCE.items():
        if version >= since:
            names = [one for name in names for one in (name, *new.get(name, "").split())]
    return names


#: bytes at the start of _PyRuntime that layout() wants
DEBUG_OFFSETS_BYTES = 8 * (1 + len(fields_of(VERSIONS[-1])))
_LARGEST = 1 << 20
#: the members that are read at once, and the bytes that they may stand apart: the programs have room for 112
_READ_AT_ONCE = [some.split() for some in (
    "ts.thread_id ts.frame", "frame.executable frame.previous frame.instr_ptr frame.owner",
    "code.firstlineno code.filename code.qualname code.linetable",
)]  # fmt: skip
_MOST_APART = 104


class NoLayoutError(ValueError):
    """This CPython's frames cannot be read: says why."""


class Layout(NamedTuple):
    """Offsets in bytes, by structure and member.

    cframe: of tstate's pointer to the structure with the current frame, None where tstate has that itself.
    owner_skip: from this `owner` on a frame is the interpreter's own. tag_bits: bits of the frame's code pointer that
    are no address. base_frame: a thread always has a frame, the outermost of which is no Python frame. code_version: of
    co_version, None where there is none. ascii, compact: where the characters of a string begin. code_generation: of an
    interpreter's count of code objects that were freed, None where there is none.
    """

    version: tuple[int, int]
    interpreters: int
    interpreter_next: int
    threads: int
    thread_next: int
    thread_id: int
    native_thread_id: int
    cframe: int | None
    current_frame: int
    frame_code: int
    frame_previous: int
    frame_instr: int
    frame_owner: int
    code_firstlineno: int
    code_filename: int
    code_qualname: int
    code_linetable: int
    code_adaptive: int
    code_version: int | None
    owner_skip: int = 3
    tag_bits: int = 0
    base_frame: bool = False
    ascii: int = 40
    compact: int = 56
    code_generation: int | None = None


_FIXED = {
    (3, 11): Layout(
        (3, 11), 40, 0, 16, 8, 152, 160, 56, 8, 32, 48, 56, 69, 72, 112, 128, 136, 184, None,
        owner_skip=255, ascii=48, compact=72,
    ),
    (3, 12): Layout((3, 12), 40, 0, 72, 8, 136, 144, 56, 0, 0, 8, 56, 70, 68, 112, 128, 136, 192, 92),
}  # fmt: skip


def layout(version: tuple[int, int], runtime: bytes) -> Layout:
    """The layout of a CPython.

    version: (3, 12). runtime: the first DEBUG_OFFSETS_BYTES bytes of _PyRuntime, as they stand in the file. Raises
    NoLayoutError: of this version nothing is known, or its description is damaged, or of a build without a GIL.
    """
    if version in _FIXED:
        return _FIXED[version]
    if version not in VERSIONS:
        raise NoLayoutError(f"CPython {version[0]}.{version[1]}: {READ}")
    return _from_debug_offsets(version, runtime)


def _from_debug_offsets(version: tuple[int, int], runtime: bytes) -> Layout:
    """The layout that a CPython describes itself, from 3.13 on. Raises NoLayoutError."""
    names = fields_of(version)
    if len(runtime) < 8 * (1 + len(names)) or not runtime.startswith(_COOKIE):
        raise NoLayoutError(
            f"CPython {version[0]}.{version[1]}: there is no _Py_DebugOffsets at the start of _PyRuntime"
        )
    at = dict(zip(names, struct.unpack_from(f"<{len(names)}Q", runtime, 8), strict=True))
    if (at["version"] >> 24, at["version"] >> 16 & 255) != version:
        raise NoLayoutError(f"CPython {version[0]}.{version[1]}: its _Py_DebugOffsets are of {at['version']:#x}")
    if at["free_threaded"]:
        raise NoLayoutError(f"CPython {version[0]}.{version[1]} without a GIL (free-threaded): its frames are not read")
    apart = (max(at[name] for name in some) - (min(at[name] for name in some) & ~7) for some in _READ_AT_ONCE)
    code = [at[name] for name in _READ_AT_ONCE[-1]]
    if any(at[name] > _LARGEST for name in names[2:]) or max(apart) > _MOST_APART or code != sorted(code):
        raise NoLayoutError(f"CPython {version[0]}.{version[1]}: its _Py_DebugOffsets are damaged")
    return Layout(
        version, at["runtime.interpreters"], at["is.next"], at["is.threads"], at["ts.next"], at["ts.thread_id"],
        at["ts.native_thread_id"], None, at["ts.frame"], at["frame.executable"], at["frame.previous"],
        at["frame.instr_ptr"], at["frame.owner"], at["code.firstlineno"], at["code.filename"], at["code.qualname"],
        at["code.linetable"], at["code.adaptive"], at["code.firstlineno"] + _VERSION_BEHIND_FIRST_LINE,
        tag_bits=7 if version >= (3, 14) else 0,
        base_frame=version >= (3, 14),
        code_generation=at.get("is.code_generation"),
    )  # fmt: skip

"""Programs that pass for a CPython, whose structures are their own."""

from collections.abc import Mapping

from wstrace_plugins.os.linux.cpython.layouts import fields_of

#: the members of tests/live/forged_python.c
PLACES = {
    "version": 0x030D00F0, "runtime.interpreters": 2048, "is.next": 0, "is.threads": 16, "ts.next": 8, "ts.frame": 16,
    "ts.thread_id": 24, "ts.native_thread_id": 32, "frame.executable": 0, "frame.previous": 8, "frame.instr_ptr": 16,
    "frame.owner": 24, "code.firstlineno": 0, "code.filename": 32, "code.qualname": 40, "code.linetable": 48,
    "code.adaptive": 64,
}  # fmt: skip


def offsets(places: Mapping[str, int]) -> str:
    """The head of a forged CPython: the members of its structures are at these places."""
    fields = fields_of((3, 13))[2:]  # version and free_threaded stand in the program
    numbers = ", ".join(str(places.get(name, 0)) for name in fields)
    return f"#define OFFSETS {numbers}\n#define PLACE_OF_INTERPRETERS {places['runtime.interpreters']}\n"

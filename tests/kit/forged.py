"""Programs that pass for a CPython, whose structures are their own."""

from __future__ import annotations

from collections.abc import Mapping

from wstrace_plugins.os.linux.cpython import layouts


def offsets(places: Mapping[str, int]) -> str:
    """The head of a forged CPython: the members of its structures are at these places."""
    fields = layouts._FIELDS_313[2:]  # version and free_threaded stand in the program
    numbers = ", ".join(str(places.get(name, 0)) for name in fields)
    return f"#define OFFSETS {numbers}\n#define PLACE_OF_INTERPRETERS {places['runtime.interpreters']}\n"

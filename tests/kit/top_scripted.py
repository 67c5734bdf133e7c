"""Refreshes of the live screen, of scripted traces."""

from dataclasses import replace

from wstrace.analysis.dimensions import Label, Row
from wstrace_exporters.live_screen.refresh import Refresh

MIB = 1 << 20


def owner(label: str, resident: int = 0, *, private: int | None = None, faults: int = 0, major: int = 0) -> Row:
    private = resident if private is None else private
    return Row((Label(label),), {"resident": resident, "private": private, "shared": resident - private,
                                 "faults": faults, "from_disk": major})  # fmt: skip


def first() -> Refresh:
    """Two lines, a process and a worker; two faults from disk."""
    owners = [owner("load_model app.py:31", 50 * MIB, faults=800, major=4), owner("(before the trace)", 12 * MIB)]
    workers = [owner("app (7)", 40 * MIB, private=10 * MIB, faults=500), owner("app (8)", 22 * MIB, faults=300)]
    return Refresh(1_000_000_000, 2.0, owners=owners, workers=workers,
                resident=62 * MIB, recent=800, faults=800, major=4,
                completeness="complete: 800 faults, 0 lost")  # fmt: skip


def second() -> Refresh:
    """A second later: a line has grown by 8 MiB, another one has come."""
    owners = [owner("load_model app.py:31", 58 * MIB, faults=2000), owner("(before the trace)", 12 * MIB),
              owner("import pandas app.py:3", 3 * MIB, faults=700)]  # fmt: skip
    return replace(first(), time_ns=2_000_000_000, span=1.0, owners=owners, resident=73 * MIB, recent=2700, faults=3500,
                   major=14)  # fmt: skip

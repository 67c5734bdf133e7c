"""When the resident pages of a flight recorder's recording were read, in words."""

from __future__ import annotations

from collections.abc import Mapping

from wstrace.text import duration


def as_of_the_look(extra: Mapping[str, object]) -> str:
    """`as of 4 ms before the trigger`: of when the resident pages of a recording are; "" = it is none, or has none.

    A recording goes on for a while after its trigger: its faults are more than what the look has seen.
    """
    if "recording" not in extra:
        return ""
    from wstrace.firing import Recording  # with all that a recording tells: 2 ms that few traces need

    fired = Recording.of(extra)
    if fired is None or not fired.last_look_ns:
        return ""
    early = fired.time_ns - fired.last_look_ns
    return f"as of {duration(abs(early) / 1e9)} {'before' if early >= 0 else 'after'} the trigger"

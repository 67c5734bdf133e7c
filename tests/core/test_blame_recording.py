"""The first line of a recording: the size, what was gained before, whose it is, and what of that is not known."""

import pytest
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script, composition

from wstrace.analysis.recording import first_lines, moment_of
from wstrace.firing import ENDED, KILLED, REACHED, Firing, Recording
from wstrace.schema import LOSS_EVENTS, PAGE_EXCLUSIVE

SECOND = 1_000_000_000
MIB = 256  # pages


def recording(how: str, *, looked_at: int | None = 90, pages: int = 5 * MIB):
    """APP brought 2 MiB before what is shown, then 3 MiB at 50 s, SAVE 1 MiB at 60 s and 1 MiB at 95 s; 100 s: fired.

    looked_at: when 6 MiB were seen, in s.
    """
    script = Script()
    for first, n, second, stack in ((0, 2, 5, APP), (2, 3, 50, APP), (5, 1, 60, SAVE), (6, 1, 95, SAVE)):
        for page in range(first * MIB, (first + n) * MIB):
            script.fault(second * SECOND + page, ANON + page * PAGE, stack)
    if looked_at is not None:
        script.snapshot(looked_at * SECOND, (ANON, pages, PAGE_EXCLUSIVE))
    trace = script.trace()
    trace.info.content_losses = LOSS_EVENTS[1:]
    sizes = ((1, 1 << 20), (10 * SECOND, 2 << 20), (60 * SECOND, 5 << 20))
    firing = Firing(100 * SECOND, "rss=7MiB", "api", how, 7 << 20, last_look_ns=(looked_at or 0) * SECOND, sizes=sizes)
    trace.info.extra["recording"] = firing.to_facts(10 * SECOND, {"page_fault": 1234, "process": 1}, 90.0)
    return trace


def shown(trace) -> list[str]:
    fired = Recording.of(trace.info.extra)
    return first_lines(composition(trace, at=moment_of(fired), pids=fired.pids), fired)


def test_a_size_that_was_reached_names_the_lines_of_the_pages_that_are_there():
    trace = recording(REACHED, looked_at=100, pages=7 * MIB)
    line, kept = shown(trace)
    assert line == "api: at 7.0 MiB; +5.0 in the last 90 s: 3.0 by load_frame app.py:31, 2.0 by save app.py:40"
    assert kept == "trigger rss=7MiB; kept 90 s before it, 1,235 older records were let go"


def test_a_kill_has_the_last_snapshot_and_what_came_after_it():
    line, _ = shown(recording(KILLED, pages=6 * MIB))
    assert line == (
        "api: killed at 7.0 MiB; +5.0 in the last 90 s: 3.0 by load_frame app.py:31, 1.0 by save app.py:40"
        " (at the last look, 10 s before, at 6.0; brought after it 1.0 by save app.py:40)"
    )


def test_what_a_cgroup_is_charged_for_and_what_is_resident_are_named():
    """Its size has the page cache and kernel memory, and pages of libraries are charged to who brought them first."""
    trace = recording(KILLED, pages=6 * MIB)
    trace.info.extra["recording"] |= {"cgroup": "/pod/api"}
    line, _ = shown(trace)
    assert line == (
        "api: killed at 7.0 MiB charged; +5.0 in the last 90 s: resident 3.0 by load_frame app.py:31,"
        " 1.0 by save app.py:40 (at the last look, 10 s before, at 6.0 resident;"
        " brought after it 1.0 by save app.py:40)"
    )


def test_what_no_snapshot_saw_is_reported_as_brought():
    line, _ = shown(recording(ENDED, looked_at=None))
    assert line == (
        "api: ended at 7.0 MiB; +5.0 in the last 90 s: brought, which may have been given back: "
        "3.0 by load_frame app.py:31, 2.0 by save app.py:40"
    )


def test_what_is_gone_at_the_look_is_no_bodys():
    line, _ = shown(recording(REACHED, looked_at=100, pages=2 * MIB + 1))
    assert line == "api: at 7.0 MiB; +5.0 in the last 90 s: 0.0 by load_frame app.py:31"


def test_a_full_ring_says_that_it_kept_less():
    trace = recording(REACHED)
    trace.info.extra["recording"]["asked_seconds"] = 600.0
    assert "kept 90 s of 10 min 00 s: their size was at its limit before it" in shown(trace)[1]


@pytest.mark.parametrize("name", ["{0}{", "\x1b[2J"])
def test_names_from_outside_are_text(name):
    trace = recording(REACHED)
    trace.info.extra["recording"]["who"] = name
    assert shown(trace)[0].startswith(name if name.isprintable() else r"\x1b[2J: at 7.0 MiB")


def test_of_several_cgroups_only_its_own_processes_count():
    trace = recording(ENDED, looked_at=None)
    trace.info.extra["recording"]["pids"] = [8]
    assert shown(trace)[0].endswith(": no fault was recorded then, and its memory was not looked at")
    trace.info.extra["recording"]["pids"] = [7, 8]
    assert "3.0 by load_frame app.py:31" in shown(trace)[0]

"""The screen of `top` as text: views, keys, hostile names and small terminals, without a terminal."""

from dataclasses import replace

import pytest
from kit.top_scripted import MIB, first, owner, second
from rich.cells import cell_len

from wstrace_exporters.live_screen.refresh import Refresh
from wstrace_exporters.live_screen.screen import Screen


def screen(*refreshes: Refresh) -> Screen:
    made = Screen("python3 app.py (7)")
    for one in refreshes or (first(), second()):
        made.take(one)
    return made


def press(shown: Screen, *keys: str) -> list[str]:
    for key in keys:
        shown.press(key, key if len(key) == 1 else None)
    return shown.lines(80, 24)


NOW = """\
now  2,700 faults/s  73.0 MiB resident  14 from disk  0 lost  python3 app.py (7)
complete: 800 faults, 0 lost
FAULTS/S  DISK/S  SINCE START  RESIDENT  LINE
   2,000       0     +8.0 MiB  58.0 MiB  load_model app.py:31
     700       0     +3.0 MiB   3.0 MiB  import pandas app.py:3"""


def test_now_shows_who_faults_and_who_has_grown():
    lines = screen().lines(80, 24)
    assert "\n".join(lines[:5]) == NOW
    assert lines[-2] == "   2,700       0    +11.0 MiB  61.0 MiB  total of 2"
    assert lines[-1].startswith("n now")
    assert lines[-1].endswith("q quit")
    assert len(lines) == 24


def test_big_shows_all_that_is_resident_and_its_total():
    lines = press(screen(), "b")
    assert [line.split("  ")[0].strip() for line in lines[3:6]] == ["58.0 MiB", "12.0 MiB", "3.0 MiB"]
    assert lines[-2].startswith("73.0 MiB")


def test_workers_shows_the_shared_part_of_each_process():
    lines = press(screen(), "w")
    assert lines[2].split() == ["RESIDENT", "SHARED", "SINCE", "START", "PRIVATE", "FAULTS/S", "PROCESS"]
    assert lines[3].split()[:3] == ["40.0", "MiB", "75%"]
    assert lines[3].endswith("app (7)")


def test_m_marks_and_d_shows_only_what_has_changed_since():
    shown = screen(first())
    press(shown, "b", "m", "d")
    assert "nothing to show" in "\n".join(shown.lines(80, 24))
    shown.take(second())
    lines = shown.lines(80, 24)
    assert lines[2].startswith("SINCE MARK")
    assert [line.split()[0] for line in lines[3:5]] == ["+8.0", "+3.0"]
    assert "before the trace" not in "\n".join(lines)
    shown.take(replace(second(), owners=[owner("load_model app.py:31", 58 * MIB)], time_ns=3_000_000_000))
    assert any("-12.0 MiB" in line and "before the trace" in line for line in shown.lines(80, 24)), "what is gone"


def test_o_goes_through_the_owners_and_what_has_grown_is_counted_from_the_first_refresh_of_them():
    shown = screen(first(), second())
    press(shown, "b", "o")
    assert shown.by == "function"
    shown.take(replace(second(), by="function", owners=[owner("load_model", 58 * MIB)], time_ns=3_000_000_000))
    lines = shown.lines(80, 24)
    assert lines[2].split() == ["RESIDENT", "SINCE", "MARK", "PRIVATE", "FAULTS/S", "FUNCTION"], "counted from here on"
    assert lines[3].split()[:4] == ["58.0", "MiB", "0", "B"]
    shown.take(replace(second(), by="function", owners=[owner("load_model", 60 * MIB)], time_ns=4_000_000_000))
    assert press(shown, "d")[3].split()[:2] == ["+2.0", "MiB"]


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;evil\x07", "[red]x[/red]", "a\nb\rc", "\u202eexe.txt", "漢字" * 90, ""]
)
def test_a_hostile_name_stays_text_on_its_line(name):
    shown = screen(first(), replace(second(), owners=[owner(name, MIB, faults=9)], completeness=name))
    shown.name = name
    for view in "nbw":
        lines = press(shown, view)
        assert len(lines) == 24
        assert all(cell_len(line) <= 80 and line.isprintable() for line in lines)
    assert "[red]x[/red]" not in name or any(line.endswith("[red]x[/red]") for line in press(shown, "b"))


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 6), (1, 1), (80, 24), (300, 90)])
def test_every_size_of_a_terminal_is_kept(width, height):
    shown = screen()
    for view in "nbw":
        press(shown, view)
        lines = shown.lines(width, height)
        assert len(lines) <= height
        assert all(cell_len(line) <= width for line in lines)
    if (width, height) == (40, 10):
        press(shown, "b")
        assert any(line.startswith("58.0 MiB") and "load_model" in line for line in shown.lines(width, height))


def test_a_thousand_processes_can_be_scrolled_through():
    workers = [owner(f"worker ({n})", n * 4096 + 4096) for n in range(1000)]
    shown = screen(replace(first(), workers=workers), replace(second(), workers=workers))
    lines = press(shown, "w")
    assert "worker (999)" in lines[3]
    assert "total of 1,000, 981 hidden" in lines[-2]
    assert "worker (980)" in press(shown, "pagedown")[3]
    assert "worker (0)" in press(shown, "end")[-3]
    assert "worker (999)" in press(shown, "home")[3]


def test_a_lesser_level_says_what_it_cannot_show():
    level = "level counters: perf_event_paranoid is 4; run as root"
    counted = replace(second(), counted=True, level=level, owners=[owner("(not recorded at level counters)", MIB)])
    lines = press(screen(first(), counted), "n")
    assert lines[1] == level
    assert "faults not recorded" in lines[0]


def test_loss_and_the_end_of_the_target_are_on_the_first_line():
    lines = press(screen(first(), replace(second(), lost=1234, ended=True)))
    assert "1,234 lost" in lines[0]
    assert lines[0].startswith("ENDED")

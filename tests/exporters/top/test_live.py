"""The exporter behind `top`: what it has let go changes no number that it shows, and its memory is bounded."""

import pytest
from kit.blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script

from wstrace.interfaces import Context, Exporter, Level
from wstrace.schema import LOSS_EVENTS, LOSS_MOVED, LOSS_POPULATED, LOSS_UNMAPPED, PAGE_EXCLUSIVE, PAGE_FILE
from wstrace.table import Selection
from wstrace.testing import ExporterContract, ScriptedTarget
from wstrace_exporters.live_screen.live import Live
from wstrace_exporters.live_screen.screen import Screen


class TestLive(ExporterContract):
    def make(self) -> Exporter:
        return Live()


class Shown:
    """A live view of a script that comes bit by bit."""

    def __init__(self, script: Script) -> None:
        self.script, self.live = script, Live()
        context = Context(strings=script.strings)
        context.info.page_size, context.info.content_losses = PAGE, LOSS_EVENTS[1:]
        self.live.start(context)
        self._reported = {}

    def refresh(self):
        """Tells what the script has beyond what was shown, and refreshes."""
        self.live._due = float("inf")
        found = {}
        for batch in self.script.trace().read(Selection()):
            stream = batch.schema.name
            if batch.snapshot is not None:
                stream += str(batch.snapshot)
            at, found[stream] = found.get(stream, 0), found.get(stream, 0) + len(batch)
            new = max(self._reported.get(stream, 0) - at, 0)
            if new < len(batch):
                self.live.export(batch.take(slice(new, None)) if new else batch)
        self._reported = found
        self.live._refresh()
        return self.live.latest


def grow(script: Script, shown: Shown | None, steps: int) -> None:
    """Each step keeps 4 pages, and takes 64 that are given back before the refresh at its end."""
    for step in range(steps):
        t = 1000 * (step + 1)
        for page in range(64):
            script.fault(t + page, ANON + (1 << 24) + page * PAGE, SAVE)
        script.lose(t + 100, LOSS_UNMAPPED, start=ANON + (1 << 24), end=ANON + (1 << 24) + 64 * PAGE)
        for page in range(4):
            script.fault(t + 200 + page, ANON + (4 * step + page) * PAGE, APP)
        script.snapshot(t + 500, (ANON, 4 * (step + 1), PAGE_EXCLUSIVE), number=step)
        if shown is not None:
            shown.refresh()


def test_what_it_let_go_is_no_part_of_what_is_resident():
    script = Script()
    shown = Shown(script)
    grow(script, shown, 8)
    found = shown.live.latest
    everything = Script()
    grow(everything, None, 8)
    whole = everything.blame().rows("line")
    assert [(row.label, row["resident"], row["private"]) for row in found.owners if row["resident"]] == [
        (row.label, row["resident"], row["private"]) for row in whole if row["resident"]
    ]
    assert found.resident == 32 * PAGE
    assert found.faults == 8 * 68
    assert "complete" in found.completeness


def test_faults_that_are_older_than_the_refresh_before_and_came_after_it_count_once_in_rows_and_in_all():
    script = Script()
    shown = Shown(script)
    grow(script, shown, 1)  # that snapshot was taken now, long after the times of the script
    for page in range(5):
        script.fault(1300 + page, ANON + (1 << 26) + page * PAGE, SAVE)
    found = shown.refresh()
    assert {row.label: row["faults"] for row in found.owners if row["faults"]} == {"save app.py:40": 5}
    assert found.recent == 5
    assert shown.refresh().recent == 0


def test_pages_of_faults_to_come_are_not_said_to_be_from_before_the_trace(monkeypatch):
    """GIVEN records that come half a second late WHEN a snapshot has pages already THEN the one before it is shown."""
    second, script = 1_000_000_000, Script()
    shown = Shown(script)
    script.fault(second // 2, ANON, APP)
    script.snapshot(second, (ANON, 1, PAGE_EXCLUSIVE), number=1)
    script.snapshot(2 * second, (ANON, 8, PAGE_EXCLUSIVE), number=2)
    now = [2 * second + 300_000_000]
    monkeypatch.setattr("wstrace_exporters.live_screen.refresh.now_ns", lambda: now[0])
    assert {row.label: row["resident"] for row in shown.refresh().owners} == {"load_frame app.py:31": PAGE}
    for page in range(1, 8):
        script.fault(2 * second - 10 + page, ANON + page * PAGE, APP)
    now[0] += second
    assert {row.label: row["resident"] for row in shown.refresh().owners} == {"load_frame app.py:31": 8 * PAGE}


def unmapped(script: Script, base: int) -> None:
    script.lose(100, LOSS_UNMAPPED, start=base, end=base + 8 * PAGE)


def populated(script: Script, base: int) -> None:
    unmapped(script, base)
    script.lose(110, LOSS_POPULATED, start=base, end=base + 8 * PAGE)


def moved(script: Script, base: int) -> None:
    """What was unmapped came again without a fault at another address, and was moved."""
    there = base + (1 << 22)
    script.lose(90, LOSS_UNMAPPED, start=there, end=there + 8 * PAGE)
    script.losses.append((100, 7, LOSS_MOVED, there, there + 8 * PAGE, base, 0))


@pytest.mark.parametrize(("lose", "base", "flags"), [(unmapped, ANON, 0), (unmapped, FILE, PAGE_FILE),
                                                    (populated, ANON, 0), (moved, ANON, 0)])  # fmt: skip
def test_what_came_without_a_fault_is_one_row_in_all_snapshots(lose, base, flags):
    """GIVEN a loss before pages came WHEN it is old THEN no row has lost what another one of the screen has gained."""
    script = Script()
    script.batches.pop()  # the process was there before the trace: nothing tells that it began
    shown, screen = Shown(script), Screen("app")
    script.fault(1, ANON + (1 << 20), APP)
    lose(script, base)
    for number in range(4):
        script.snapshot(500 + 1000 * number, (base, 8, PAGE_EXCLUSIVE | flags), number=number)
        screen.take(shown.refresh())
        screen.press("b", "b")
        rows = [(row.name, row.resident, row.change) for row in screen.rows() if row.resident or row.change]
        assert rows == [("(not known)", 8 * PAGE, 0)]


class Counted(ScriptedTarget):
    """A process that may have ended."""

    over = False

    def wait(self, timeout: float) -> int | None:
        return 0 if self.over else None


def test_at_level_counters_it_says_what_it_lacks():
    live = Live()
    context = Context(targets=(Counted(),))
    live.start(context)
    context.info.level = Level("counters", "perf_event_paranoid is 4", "run as root")
    live._refresh()
    assert live.latest.counted
    assert live.latest.level == "level counters: perf_event_paranoid is 4; to lift it: run as root"


def test_it_says_when_the_target_has_ended():
    live, target = Live(), Counted()
    live.start(Context(targets=(target,)))
    live._refresh()
    assert not live.latest.ended
    target.over = True
    live._refresh()
    assert live.latest.ended

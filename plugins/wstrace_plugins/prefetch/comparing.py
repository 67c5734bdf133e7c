"""Measures a command cold and warm, with and without its list, in rounds of all four in random order."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from wstrace.conditions import UNSEEN, Conditions, run, streams
from wstrace.interfaces import Evicted, Platform
from wstrace.output_rights import temporary_folder
from wstrace.plugins import default_plugins
from wstrace.text import duration, number, plural
from wstrace_plugins.prefetch.applying import LIMIT, apply
from wstrace_plugins.prefetch.backend import Backend
from wstrace_plugins.prefetch.making import Made, made
from wstrace_plugins.prefetch.start_list import GAP, Range

#: (whether its files left the page cache before, whether the list is applied)
COLD, COLD_PREFETCHED, WARM, WARM_PREFETCHED = (True, False), (True, True), (False, False), (False, True)
WAYS = {COLD: "cold", COLD_PREFETCHED: "cold, prefetched", WARM: "warm", WARM_PREFETCHED: "warm, prefetched"}
#: A penalty says nothing that is smaller than this share of the warm run, or that fewer of the rounds have.
_LEAST_PENALTY, _LEAST_SLOWER = 0.02, 0.75
#: Fewer rounds tell no share: single runs differ by more than a list gains.
_LEAST_ROUNDS = 3


class Comparison:
    """A command in rounds of four runs, one of each of WAYS; what it reads and prints is nobody's.

    The time of a run is from before the list is applied, beside the command, to the command's end. What Python and
    wstrace take to start, where a command is run behind `wstrace prefetch --apply`, is not in it.

    Args:
        command: its words. ranges: of the list, whose files leave the page cache before a cold run. limit: see apply().
        also: further files that do, which it reads without mapping them.

    Attributes:
        seconds, majors: of each of WAYS the runs, in the order of the rounds.
        evicted: before a cold run, the least.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranges: Sequence[Range],
        system: Backend,
        limit: int = LIMIT,
        also: Sequence[str] = (),
    ) -> None:
        self._platform: Platform = default_plugins().platform
        self._command, self._ranges, self._system, self._limit = command, ranges, system, limit
        self._files = sorted({*also, *(os.fsdecode(one.file.path) for one in ranges)})
        self.seconds: dict[tuple[bool, bool], list[float]] = {way: [] for way in WAYS}
        self.majors: dict[tuple[bool, bool], list[int]] = {way: [] for way in WAYS}
        self.evicted: Evicted | None = None
        self._load = 0.0

    def run(self, rounds: int) -> int:
        """Runs it once to warm up, and so many rounds. Returns the first exit code that is not 0, else 0."""
        with streams(UNSEEN):
            code = self._once(WARM)[0]
            for _ in range(rounds):
                for way in random.sample(list(WAYS), len(WAYS)):
                    if code:
                        return code
                    code, seconds, majors = self._once(way)
                    self.seconds[way].append(seconds)
                    self.majors[way].append(majors)
                self._load = max(self._load, self._system.load())
        return code

    def _once(self, way: tuple[bool, bool]) -> tuple[int, float, int]:
        """Exit code, seconds, page faults from disk."""
        cold, prefetched = way
        with Conditions(cold=cold).held(self._platform, self._files) as evicted:
            target = self._platform.launch(self._command)
        with closing(target):
            begun = time.perf_counter()
            if prefetched:
                self._system.beside(self._apply)
            code, used = run(target)
            seconds = time.perf_counter() - begun
        if cold:
            self.evicted = min((self.evicted or evicted, evicted), key=lambda one: one.before - one.after)
        return code, seconds, used.major or 0

    def _apply(self) -> None:
        apply(self._ranges, self._system, limit=self._limit)

    @property
    def penalty(self) -> float:
        """What a cold run takes more than a warm one: the median over the rounds, in seconds."""
        return statistics.median(a - b for a, b in zip(self.seconds[COLD], self.seconds[WARM], strict=True))

    @property
    def gain(self) -> float:
        """What the list takes off a cold run: the median over the rounds, in seconds."""
        return statistics.median(a - b for a, b in zip(self.seconds[COLD], self.seconds[COLD_PREFETCHED], strict=True))

    @property
    def share(self) -> float | None:
        """How much of the penalty the list takes off; None where too few rounds or no penalty to speak of tell it."""
        cold, warm = self.seconds[COLD], self.seconds[WARM]
        slower = sum(a > b for a, b in zip(cold, warm, strict=True))
        enough = self.penalty > _LEAST_PENALTY * statistics.median(warm) and slower >= _LEAST_SLOWER * len(cold)
        return self.gain / self.penalty if enough and len(cold) >= _LEAST_ROUNDS else None

    @property
    def loaded(self) -> str:
        """That more was running than there are processors, so that times are of little worth; "" = no."""
        processors = os.cpu_count() or 1
        return f"loaded: {self._load:.1f} runnable on {plural(processors, 'CPU')}" if self._load > processors else ""

    def lines(self) -> list[str]:
        """What a user reads."""
        found = [f"{'':<18}{'median':>10}  {'least to most':<22}{'from disk':>9}"]
        for way, name in WAYS.items():
            spread = f"{duration(min(self.seconds[way]))} to {duration(max(self.seconds[way]))}"
            median, majors = statistics.median(self.seconds[way]), statistics.median(self.majors[way])
            found.append(f"{name:<18}{duration(median):>10}  {spread:<22}{number(round(majors)):>9}")
        rounds = plural(len(self.seconds[COLD]), "round")
        if len(self.seconds[COLD]) < _LEAST_ROUNDS:
            found.append("too few rounds to tell how much of the cold penalty the list takes off: "
                         f"give --runs {_LEAST_ROUNDS} or more")  # fmt: skip
        elif self.share is None:
            found.append(f"no cold penalty to speak of: {duration(abs(self.penalty))} (medians of {rounds})")
        else:
            better = sum(a > b for a, b in zip(self.seconds[COLD], self.seconds[COLD_PREFETCHED], strict=True))
            sign = "takes off" if self.gain >= 0 else "adds"
            found.append(f"the list {sign} {duration(abs(self.gain))} of the cold penalty of {duration(self.penalty)}: "
                         f"{self.share:.0%} (medians of {rounds}; faster in {better})")  # fmt: skip
        found.append(f"cold: {self.evicted}")
        return [*found, *filter(None, [self.loaded])]

    def plain(self) -> dict[str, Any]:
        """The same for JSON; times in seconds."""
        evicted = None if self.evicted is None else self.evicted._asdict()
        runs = {name: {"seconds": self.seconds[way], "major": self.majors[way]} for way, name in WAYS.items()}
        return {"schema": 1, "runs": runs, "penalty": self.penalty, "gain": self.gain, "share": self.share,
                "evicted": evicted, "loaded": bool(self.loaded)}  # fmt: skip


def recorded(command: Sequence[str], system: Backend, gap: int = GAP) -> tuple[int, Made]:
    """A list of a command that is run and traced now: its exit code, and the list. Nothing of its output is seen."""
    import wstrace
    from wstrace.cli.tracing import Recording, Tracing

    with temporary_folder() as folder:
        path = os.path.join(folder, "start.wst")
        tracing = Tracing(sources=(), exporters=(), plugin=("no:console",), no_plugins=False, output=path, force=False,
                          duration=None, over_time=None, children=True, wait_children=False, quiet=True, verbose=False,
                          live=False, fail_on_loss=False, require="", config=None)  # fmt: skip
        recording = Recording(tracing)
        with streams(UNSEEN), closing(recording.plugins.platform.launch(command)) as target:
            code = recording.record([target], command)
        with wstrace.open_trace(path) as trace:
            return code, made(trace, system, gap)

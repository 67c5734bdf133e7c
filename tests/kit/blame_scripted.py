"""Scripted traces of faults, losses and snapshots whose composition is known."""

import time
from collections.abc import Iterable

from kit.stacks_scripted import Stacks
from wstrace.analysis.composition import Composition
from wstrace.analysis.filter import Filter
from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.schema import (
    CONTENT_LOSS,
    HOW_EXACT,
    HOW_NO_PYTHON,
    HOW_OWN,
    KIND_ANON,
    KIND_FILE,
    KIND_SHIFT,
    LOSS_EVENTS,
    MAP_READ,
    MAP_WRITE,
    MAPPING,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    RESIDENT_PAGES,
)
from wstrace.session import Session
from wstrace.table import Selection
from wstrace.testing import ScriptedSource, batch_of, trace_of
from wstrace.trace import Trace

PAGE = 4096
ANON, FILE, CODE, OWN_CODE = 0x7F0000000000, 0x7E0000000000, 0x400000, 0x600000
APP = [("load_frame", "/srv/app/app.py", 31), ("<module>", "/srv/app/app.py", 50)]
SAVE = [("save", "/srv/app/app.py", 40), ("<module>", "/srv/app/app.py", 51)]
PACKAGES = "/venv/lib/python3.11/site-packages"
IMPORT = [("__init__", f"{PACKAGES}/pandas/core/frame.py", 9), ("<module>", f"{PACKAGES}/pandas/core/api.py", 2),
          ("<module>", f"{PACKAGES}/pandas/__init__.py", 1), ("_call", "<frozen importlib._bootstrap>", 7),
          ("<module>", "/srv/app/app.py", 3)]  # fmt: skip


class Script:
    """A trace in the making: faults, losses and snapshots of processes, at times that are given."""

    def __init__(self) -> None:
        self.strings = Dictionary()
        self.stacks = Stacks(self.strings)
        self.faults = []
        self.losses = []
        self._files = []
        self.batches = [
            batch_of(MAPPING, self.strings, id=[1, 2, 3, 4, 5], time_ns=1, pid=7,
                     start=[ANON, FILE, CODE, OWN_CODE, OWN_CODE + (1 << 20)], offset=0,
                     end=[ANON + (1 << 30),
                          *(code + (1 << 20) for code in (FILE, CODE, OWN_CODE, OWN_CODE + (1 << 20)))],
                     dev=[0, 1, 1, 1, 1], ino=[0, 5, 6, 7, 8], build_id=0,
                     file=["[anon]", "/usr/lib/libbig.so", "/usr/lib/libc.so", "/srv/app/own", "/srv/app/libown.so"],
                     flags=[MAP_READ | MAP_WRITE | KIND_ANON << KIND_SHIFT, *[MAP_READ | KIND_FILE << KIND_SHIFT] * 4]),
            batch_of(PROCESS, self.strings, time_ns=1, pid=7, ppid=1, tid=7, event=PROCESS_EXEC, name="app", code=-1),
        ]  # fmt: skip

    def fault(self, time: int, va: int, stack=(), pid: int = 7, flags: int = 0, *, pc: int = CODE + 64, tid: int = 0,
              native=(), native_how: int = HOW_OWN, how: int = HOW_NO_PYTHON, sampled: int = 1,
              cgroup: str = "", cut: bool = False, page_size: int = PAGE) -> None:  # fmt: skip
        """stack: of Python; native: a sampled stack of (mapping, offset); both innermost frame first.

        how: why there is no stack of Python. sampled: one of so many faults was recorded then. cut: the stack of Python
        lacks its outer frames. page_size: of the page-table entry.
        """
        how = HOW_EXACT if stack else how
        self.faults.append((time, pid, va, flags, self.stacks.python(stack, cut=cut), how, tid or pid, pc,
                            4 if pc >= OWN_CODE else 3, self.stacks.native(native), native_how, sampled,
                            self.strings.code(cgroup), page_size))  # fmt: skip

    def lose(self, time: int, event: int, pid: int = 7, start: int = 0, end: int = (1 << 64) - 1, other: int = 0,
             to: int = 0) -> None:  # fmt: skip
        self.losses.append((time, pid, event, start, end, to, other))

    def map_file(self, path: str) -> int:
        """Maps a file of its own. Returns its address."""
        self._files.append((path, FILE + (len(self._files) + 1 << 24)))
        path, va = self._files[-1]
        self.batches.append(batch_of(MAPPING, self.strings, id=5 + len(self._files), time_ns=1, pid=7, start=va,
                                     end=va + (1 << 20), offset=0, dev=1, ino=20 + len(self._files), build_id=0,
                                     file=path, flags=MAP_READ | KIND_FILE << KIND_SHIFT))  # fmt: skip
        return va

    def process(self, time: int, pid: int, event: int, name: str) -> Batch:
        """A row of a process's own thread."""
        return batch_of(PROCESS, self.strings, time_ns=time, pid=pid, ppid=1, tid=pid, event=event, name=name, code=-1)

    def snapshot(
        self, time: int, *runs: tuple[int, int, int], pid: int = 7, number: int = 0, file: int = 2, **columns
    ) -> None:
        """Runs of (start, pages, flags). file: the mapping of those below ANON."""
        start, pages, flags = (list(column) for column in zip(*runs, strict=True))
        mapping = [1 if at >= ANON else file for at in start]
        kind = [KIND_ANON if at >= ANON else KIND_FILE for at in start]
        files = ["[anon]" if at >= ANON else "/usr/lib/libbig.so" for at in start]
        rows = batch_of(RESIDENT_PAGES, self.strings, start=start, pages=pages, flags=flags, mapping=mapping, kind=kind,
                        file=files, **columns)  # fmt: skip
        part = SnapshotPart(pid, number, 0, True, time, sum(pages))
        self.batches.append(Batch(RESIDENT_PAGES, rows.columns, strings=self.strings, snapshot=part))

    def trace(self) -> Trace:
        sites = [rows for tree in self.stacks.trees.values() if (rows := tree.new_rows()) is not None]
        names = ("time_ns", "pid", "va", "flags", "stack", "stack_how", "tid", "pc", "pc_mapping", "native_stack",
                 "native_how", "sampled", "cgroup", "page_size")  # fmt: skip
        columns = {name: list(column) for name, column in zip(names, zip(*self.faults, strict=True), strict=True)}
        every = columns["sampled"] if max(columns["sampled"]) > 1 else [1]
        if every == [1]:
            del columns["sampled"]
        if not any(columns["cgroup"]):
            del columns["cgroup"]
        batches = [*self.batches, *sites]
        if self.losses:
            lost = dict(
                zip((c.name for c in CONTENT_LOSS.columns), map(list, zip(*self.losses, strict=True)), strict=True)
            )
            batches.append(batch_of(CONTENT_LOSS, self.strings, **lost))
        own = {start >> 24: 6 + number for number, (_, start) in enumerate(self._files)}
        at = [own.get(va >> 24, 1 if va >= ANON else 2) for va in columns["va"]]
        kinds = [KIND_ANON if va >= ANON else KIND_FILE for va in columns["va"]]
        files = {}
        for batch in self.batches:
            if batch.schema.name == MAPPING.name:
                files |= dict(zip(batch["id"].tolist(), batch["file"].tolist(), strict=True))
        columns["weight"] = [int(bool(native)) for native in columns["native_stack"]]
        file, pc_file = ([files.get(number, 0) for number in ids] for ids in (at, columns["pc_mapping"]))
        batches.append(
            batch_of(PAGE_FAULT, self.strings, mapping=at, kind=kinds, file=file, pc_file=pc_file, **columns)
        )
        trace = trace_of(*batches)
        trace.info.page_size, trace.info.sampled = PAGE, max(1, round(sum(every) / len(every)))
        trace.info.content_losses = LOSS_EVENTS[1:]
        return trace

    def blame(self, **wanted) -> Composition:
        return composition(self.trace(), **wanted)


def composition(trace: Trace, at: str | int = "exit", **chosen) -> Composition:
    """The pages of a trace at a moment; chosen: of Filter."""
    return Composition(trace, at, chosen=Filter(**chosen))


class Paced(ScriptedSource):
    """Waits for so many seconds before each batch, so that whoever writes them keeps up."""

    pause = 0.0

    def drain(self, timeout: float) -> Iterable[Batch]:
        time.sleep(self.pause)
        return super().drain(timeout)


def saved(trace: Trace, path: str, *, pause: float = 0.0) -> None:
    """Writes the trace to a file, with what a scripted description says; pause: seconds before each batch."""
    source = Paced(trace.read(Selection()))
    source.pause = pause
    session = Session(sources=[source], exporters=[f"msgpack:path={path},force=true"], enrichers=[], record=False)
    info = session.context.info
    for name in ("command", "page_size", "content_losses", "usage", "extra", "incomplete", "sampled"):
        setattr(info, name, getattr(trace.info, name))
    with session:
        while not session.wait(0.05):
            pass

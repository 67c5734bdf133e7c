"""What tests of several files use: the enricher `mapped_files` driven row by row, and the need of a write watch."""

from typing import Any

import pytest
from kit.binutils import FLAVOURS, SOURCE, need, run

from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.schema import ADDRESS_SPACE, KIND_FILE, KIND_SHIFT, MAPPING, PAGE_FAULT, PROCESS, SPACE_MAP, SPACE_REPLACE
from wstrace.testing import ScriptedTarget, batch_of

FILE = KIND_FILE << KIND_SHIFT


class DrivenEnricher:
    """The enricher, driven row by row, and the mappings that it gave out."""

    def __init__(self, backend: Any = None) -> None:
        from wstrace_plugins.mapped_files.enricher import MappedFiles

        # a target that runs: the system may be read
        self.context = Context(targets=() if backend is None else (ScriptedTarget(),))
        self.enricher = MappedFiles()
        self.enricher.system = backend
        self.enricher.start(self.context)
        self.mappings = []

    def give(self, batch: Batch) -> list[Batch]:
        out = list(self.enricher.enrich(batch))
        for mapping in (b for b in out if b.schema.name == MAPPING.name):
            self.mappings += [{n: int(mapping[n][row]) for n in mapping} for row in range(len(mapping))]
        return [b for b in out if b.schema.name != MAPPING.name]

    def space(self, event: int, time: int, *rows: tuple[int, int, str], pid: int = 7, flags: int = FILE) -> None:
        start, end, files = zip(*rows, strict=True)
        columns = {"start": start, "end": end, "file": files, "offset": 0, "dev": 1, "ino": 2, "flags": flags}
        batch = batch_of(ADDRESS_SPACE, self.context.strings, time_ns=time, pid=pid, event=event, **columns)
        assert self.give(batch) == []

    def listing(self, time: int, *rows: tuple[int, int, str], pid: int = 7) -> None:
        self.space(SPACE_REPLACE, time, *rows[:1], pid=pid)
        if rows[1:]:
            self.space(SPACE_MAP, time, *rows[1:], pid=pid)

    def process(self, event: int, time: int, pid: int = 7, ppid: int = 1, tid: int = 0) -> None:
        row = batch_of(
            PROCESS, self.context.strings, time_ns=time, pid=pid, ppid=ppid, tid=tid or pid, event=event, name="x",
            code=0,
        )  # fmt: skip
        assert self.give(row) == [row]

    def fault(self, *faults: tuple[int, int], pid: int = 7) -> list[str]:
        """The files of faults (time, va)."""
        time, va = zip(*faults, strict=True)
        batch = batch_of(PAGE_FAULT, self.context.strings, time_ns=time, pid=pid, tid=pid, pc=va, va=va, flags=0)
        (out,) = self.give(batch)
        assert out["mapping"].tolist() == out["pc_mapping"].tolist()
        assert out["file"].tolist() == out["pc_file"].tolist()
        assert out["file"].dtype == out["mapping"].dtype == "<u4"
        return [self.context.strings[code] for code in out["file"].tolist()]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.mappings]


@pytest.fixture
def drive():
    """drive() or drive(backend): a new DrivenEnricher, which may ask that backend, if one is given."""
    return DrivenEnricher


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    need("g++", "readelf", "nm", "addr2line", "strip")
    folder = tmp_path_factory.mktemp("built")
    (folder / "shop.cc").write_text(SOURCE)
    for flavour, flags in FLAVOURS.items():
        run("g++", "-g", *flags, "-o", folder / flavour, folder / "shop.cc")
    run("strip", "-o", folder / "stripped", folder / "shared")
    return folder

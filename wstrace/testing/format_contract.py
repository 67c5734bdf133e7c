"""The contract of file formats."""

from __future__ import annotations

import errno
import inspect
import io
import tempfile
from typing import IO, TYPE_CHECKING

from wstrace.batch import Batch
from wstrace.hookspecs import Format
from wstrace.schema import PAGE_FAULT
from wstrace.testing.scripted import batch_of, trace_of

if TYPE_CHECKING:
    from wstrace.trace import Trace


class FormatContract:
    """The contract of every file format. Subclass it and define make()."""

    def make(self) -> Format:
        """Returns the format."""
        raise NotImplementedError

    def batches(self) -> list[Batch]:
        """Returns the batches of the trace that is written: page faults, with names that are made to harm."""
        names = ["/lib/a.so", '=1+"1",\n\x1b[31m\udcff</script>', "", "[heap]"]
        return [
            batch_of(
                PAGE_FAULT, time_ns=[1, 2, 3, 4], pid=7, tid=[7, 8, 7, 8], pc=[1, 2, 3, 4], flags=[0, 1, 0, 1],
                va=[0x1000, 0x2000, 0x3000, (1 << 64) - 1], file=names, pc_file=names[::-1], kind=[0, 1, 2, 3],
            )
        ]  # fmt: skip

    def write(self, trace: Trace, file: IO[bytes]) -> int:
        """Calls the format's function as `convert` does; returns the number of rows that it says it wrote."""
        from wstrace.plugins import load

        chosen = self.make()
        rows: int = load(chosen.write)(trace.batches("page_fault") if chosen.takes == "rows" else trace, file)
        return rows

    def test_it_is_named_and_has_suffixes(self) -> None:
        """Its name is a word, its help one line, and its suffixes can select it."""
        from wstrace.plugins import suffixes_of

        chosen = self.make()
        assert chosen.name.isidentifier()
        assert len(chosen.help.splitlines()) == 1
        assert set(suffixes_of("yours", [chosen], {})) == set(chosen.suffixes) != set()

    def test_its_options_have_types_and_defaults(self) -> None:
        """What follows trace and file are its options: keyword-only, annotated, and none has to be given."""
        from wstrace.plugins import load

        _, _, *options = inspect.signature(load(self.make().write)).parameters.values()
        for option in options:
            assert option.kind is option.KEYWORD_ONLY, f"{option.name} can be given without its name"
            assert option.annotation is not option.empty, f"{option.name} has no type"
            assert option.default is not option.empty, f"{option.name} has no default"

    def test_it_writes_every_row_that_it_is_given(self) -> None:
        """It writes something, leaves file and trace open, and returns the number of rows."""
        trace = trace_of(*self.batches())
        with tempfile.TemporaryFile() as file:
            rows = self.write(trace, file)
            assert not file.closed, "it closed the file, which is not its own"
            assert not trace.closed, "it closed the trace, which is not its own"
            assert file.seek(0, io.SEEK_END), "it wrote nothing"
        assert rows == trace.rows["page_fault"] if self.make().takes == "rows" else rows >= 0

    def test_a_trace_without_rows_is_a_file(self) -> None:
        """A trace without records is valid."""
        with tempfile.TemporaryFile() as file:
            assert self.write(trace_of(), file) == 0

    def test_a_disk_that_fails_is_told(self) -> None:
        """An error of the file is not swallowed: what was not written must not look whole."""
        try:
            self.write(trace_of(*self.batches()), _FullDisk())
        except OSError:
            return
        raise AssertionError("the disk was full, and it raised no OSError")


class _FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

"""Every built-in format keeps the contract of formats, so do an outsider's, and what breaks it does not pass."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from wstrace.formats import format_of
from wstrace.hookspecs import Format
from wstrace.plugins import default_plugins
from wstrace.testing import FormatContract, trace_of

MARKDOWN = Path(__file__).resolve().parents[2] / "examples" / "wstrace_example_format" / "wstrace_example_format.py"
THEIRS = "a_module_of_theirs"


class TestCsv(FormatContract):
    def make(self):
        return format_of("x.csv")[1]


class TestJsonLines(FormatContract):
    def make(self):
        return format_of("x.jsonl")[1]


class TestParquet(FormatContract):
    def make(self):
        return format_of("x.parquet")[1]


class TestFolded(FormatContract):
    def make(self):
        return format_of("x.folded")[1]


class TestPprof(FormatContract):
    def make(self):
        return format_of("x.pb.gz")[1]


class TestPerfetto(FormatContract):
    def make(self):
        return format_of("x.pftrace")[1]


class TestHtml(FormatContract):
    def make(self):
        return format_of("x.html")[1]


class TestAnOutsidersOfTheWholeTrace(FormatContract):
    def make(self):
        spec = importlib.util.spec_from_file_location("wstrace_example_format", MARKDOWN)
        sys.modules["wstrace_example_format"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (found,) = module.wstrace_formats()
        return found


def theirs(write, **fields) -> Format:
    """An outsider's format whose function is `write`."""
    module = types.ModuleType(THEIRS)
    module.write = write
    sys.modules[THEIRS] = module
    return Format(**{"name": "theirs", "suffixes": (".one",), "help": "one", "write": f"{THEIRS}:write"} | fields)


def addresses(rows, file, *, base: int = 16):
    """An outsider's format of rows: the addresses of any stream that has some, one on a line."""
    n = 0
    for batch in rows:
        for va in batch["va"].tolist() if "va" in batch else ():
            file.write(f"{va:#x}\n".encode() if base == 16 else f"{va}\n".encode())
        n += len(batch)
    return n


class TestAnOutsidersOfRows(FormatContract):
    def make(self):
        return theirs(addresses, takes="rows")


def test_all_built_in_formats_are_checked_here():
    ours = (TestCsv, TestJsonLines, TestParquet, TestFolded, TestPprof, TestPerfetto, TestHtml)
    checked = {kind().make().name for kind in ours}
    assert checked == {found.name for _, found in default_plugins().formats.values()}


def test_a_format_of_rows_is_given_what_the_user_selected(tmp_path, monkeypatch):
    given = []

    def write(rows, file):
        given.append(rows)
        return addresses(rows, file)

    monkeypatch.setattr(default_plugins(), "formats", {".one": ("they", theirs(write, takes="rows"))})
    (faults,) = FormatContract().batches()
    trace = trace_of(faults)
    assert trace.save(str(tmp_path / "a.one"), columns=["va"], start=2, end=4) == 2
    assert given[0].selection == ("page_fault", ("va",), 2, 4, None)
    assert (tmp_path / "a.one").read_text() == "0x2000\n0x3000\n"


def half(rows, file):
    for batch in rows:
        file.write(b"x")
        return len(batch) // 2
    return 0


def swallows(rows, file):
    try:
        return addresses(rows, file)
    except OSError:
        return 0


def fails_on_nothing(rows, file):
    return addresses(rows, file) if [*rows] else 1 // 0


def closes(rows, file):
    n = addresses(rows, file)
    file.close()
    return n


def positional(rows, file, base):
    return 0


def untyped(rows, file, *, base=16):
    return 0


def required(rows, file, *, base: int):
    return 0


@pytest.mark.parametrize(
    ("write", "fields", "test"),
    [
        (half, {}, "test_it_writes_every_row_that_it_is_given"),
        (swallows, {}, "test_a_disk_that_fails_is_told"),
        (fails_on_nothing, {}, "test_a_trace_without_rows_is_a_file"),
        (closes, {}, "test_it_writes_every_row_that_it_is_given"),
        (positional, {}, "test_its_options_have_types_and_defaults"),
        (untyped, {}, "test_its_options_have_types_and_defaults"),
        (required, {}, "test_its_options_have_types_and_defaults"),
        (addresses, {"suffixes": (".one", ".one")}, "test_it_is_named_and_has_suffixes"),
        (addresses, {"suffixes": ("one",)}, "test_it_is_named_and_has_suffixes"),
        (addresses, {"name": "two words"}, "test_it_is_named_and_has_suffixes"),
        (addresses, {"help": "two\nlines"}, "test_it_is_named_and_has_suffixes"),
    ],
)
def test_a_format_that_breaks_a_promise_does_not_pass(write, fields, test):
    class Contract(FormatContract):
        def make(self):
            return theirs(write, takes="rows", **fields)

    with pytest.raises((AssertionError, ValueError, ZeroDivisionError)):
        getattr(Contract(), test)()

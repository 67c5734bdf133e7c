"""The contracts of formats and plugins: all that are built in keep them, and each broken promise is found."""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from wstrace.batch import Batch, Dictionary, Translation
from wstrace.formats import format_of
from wstrace.hookspecs import Format
from wstrace.plugins import default_plugins
from wstrace.schema import Column, Schema
from wstrace.testing import FormatContract, ScriptedSource, SourceContract, batch_of, trace_of

NAMED = Schema("named", (Column("pid", "u32", "id"), Column("name", "u32", "str"), Column("where", "u32", "map")))


def contract(*batches: Batch, streams: tuple[Schema, ...] = (NAMED,)) -> SourceContract:
    class Scripted(ScriptedSource):
        def start(self, context) -> None:  # batches as they are: what a careless source does
            self.started = True

    class Contract(SourceContract):
        def make(self) -> ScriptedSource:
            source = Scripted(batches)
            source.streams = streams
            return source

    return Contract()


def test_a_good_source_passes():
    kept = contract(batch_of(NAMED, pid=[1, 2], name=["a", "b"], where=[0, 7]))
    for name in dir(kept):
        if name.startswith("test_"):
            getattr(kept, name)()


def test_a_source_that_gives_nothing_does_not_pass():
    for batches in ((), (batch_of(NAMED, pid=[], name=[], where=[]),)):
        with pytest.raises(AssertionError, match="no row"):
            contract(*batches).test_its_batches_keep_the_schema()
    with pytest.raises(AssertionError, match="gave nothing"):
        contract().test_its_names_survive_a_move()


def test_a_source_with_codes_of_no_name_does_not_pass():
    with pytest.raises(AssertionError, match="9 is the code of no name"):
        contract(batch_of(NAMED, pid=[1], name=[9])).test_its_names_survive_a_move()


@pytest.mark.parametrize(
    ("column", "why"),
    [(Column("x", "u8", "str"), "ids, which are u32"), (Column("x", "u32", "stacks"), "stacks")],
    ids=["narrow ids", "a semantic that nobody knows"],
)
def test_a_schema_that_says_something_unknown_does_not_pass(column, why):
    with pytest.raises(AssertionError, match=why):
        contract(streams=(Schema("odd", (column,)),)).test_its_columns_say_what_they_mean()


def test_recode_moves_ids_by_what_columns_mean_and_nothing_else():
    batch = batch_of(NAMED, pid=[1, 2, 3], name=["a", "", "b"], where=[0, 7, 8])
    ours = Dictionary()
    ours.code("b")
    moved = batch.recode(ours, map=lambda ids: np.where(ids == 0, 0, ids + 100).astype("<u4"))
    assert [ours[code] for code in moved["name"].tolist()] == ["a", "", "b"]
    assert moved["where"].tolist() == [0, 107, 108]
    assert moved["pid"].tolist() == [1, 2, 3]
    assert moved.strings is ours
    assert batch.recode(batch.strings) is batch


def test_a_translation_grows_with_its_dictionary_and_gives_0_for_codes_of_no_name():
    theirs, ours = Dictionary(), Dictionary()
    translate = Translation(theirs, ours, "@host")
    assert translate(np.array([0, 4_000_000_000], "<u4")).tolist() == [0, 0]
    code = theirs.code("late")
    assert translate(np.array([code, 0, code + 1], "<u4")).tolist() == [ours.code("late@host"), 0, 0]
    for n in range(100):
        theirs.code(str(n))
    found = translate(np.arange(1, len(theirs), dtype="<u4"))
    assert [ours[c] for c in found.tolist()] == ["late@host", *(f"{n}@host" for n in range(100))]


MARKDOWN = Path(__file__).resolve().parents[2] / "examples" / "wstrace_example_format" / "wstrace_example_format.py"
THEIRS = "a_module_of_theirs"


class TestBuiltIn(FormatContract):
    @pytest.fixture(autouse=True, params=sorted({found.suffixes[0] for _, found in default_plugins().formats.values()}))
    def suffix(self, request):
        self.chosen = format_of(f"x{request.param}")[1]

    def make(self):
        return self.chosen


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

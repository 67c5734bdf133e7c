"""The contract classes find what they are there for: each of these plugins breaks one promise."""

import numpy as np
import pytest

from wstrace.batch import Batch, Dictionary, Translation
from wstrace.schema import Column, Schema
from wstrace.testing import ScriptedSource, SourceContract, batch_of

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

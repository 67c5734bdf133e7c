"""The tree of call sites: against a dictionary of tuples, past its limit, with several threads, as a stream."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.analysis.call_tree import CallTree
from wstrace.batch import Batch, Dictionary, StackIds
from wstrace.call_sites import CallSites
from wstrace.schema import CALL_SITE, DTYPES, FRAME_CUT, FRAME_JIT, FRAME_NATIVE, FRAME_NONE, FRAME_PYTHON

COLUMNS = tuple(column.name for column in CALL_SITE.columns if column.name not in ("id", "parent"))
U64 = (1 << 64) - 1
#: few values of each column, so that frames repeat, and the greatest ones
FRAME = st.tuples(
    st.integers(0, 4),
    st.sampled_from([0, 1, (1 << 32) - 1]),
    st.sampled_from([0, 1, 4096, U64 - 1, U64]),
    st.integers(0, 2),
    st.sampled_from([0, 7]),
    st.sampled_from([0, 1, 2, (1 << 32) - 1]),
    st.sampled_from([0, 1, 16, 255]),
)
STACKS = st.lists(st.lists(FRAME, max_size=6), max_size=40)


def tree(limit: int = StackIds.LIMIT) -> CallSites:
    return CallSites(StackIds(limit), Dictionary())


def insert(sites: CallSites, stacks: list[list[tuple[int, ...]]]) -> list[int]:
    """The ids of whole stacks, outermost frame first, a level at a time as producers do it."""
    ids = np.zeros(len(stacks), "<u4")
    for level in range(max(map(len, stacks), default=0)):
        rows = [row for row, stack in enumerate(stacks) if len(stack) > level]
        columns = {name: np.array([stacks[row][level][at] for row in rows], "<u8") for at, name in enumerate(COLUMNS)}
        ids[rows] = sites.add(ids[rows], **columns)
    return ids.tolist()


def rows_of(sites: CallSites) -> dict[int, dict[str, int]]:
    """id -> its row, of all rows not given yet; callers stand before what they call."""
    batch = sites.new_rows()
    if batch is None:
        return {}
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*(batch[c].tolist() for c in batch), strict=True)]
    return {row["id"]: row for row in rows}


def stack_of(rows: dict[int, dict[str, int]], leaf: int) -> list[tuple[int, ...]]:
    found = []
    while leaf:
        found.append(tuple(rows[leaf][name] for name in COLUMNS))
        leaf = rows[leaf]["parent"]
    return found[::-1]


@given(st.lists(STACKS, max_size=3))
@settings(max_examples=60)
def test_stacks_come_back_as_they_went_in_and_equal_ones_have_one_id(batches):
    sites, rows, ids = tree(), {}, {}
    for stacks in batches:
        leaves = insert(sites, stacks)
        new = rows_of(sites)
        known = {0, *rows}
        for own, row in new.items():
            assert row["parent"] in known, "a caller's row comes first"
            assert own not in known
            known.add(own)
        rows |= new
        for stack, leaf in zip(stacks, leaves, strict=True):
            assert stack_of(rows, leaf) == stack
            assert ids.setdefault(tuple(stack), leaf) == leaf
    prefixes = {tuple(s[: i + 1]) for stacks in batches for s in stacks for i in range(len(s))}
    assert len(sites) == len(prefixes | {(cut_frame(),)})


def cut_frame() -> tuple[int, ...]:
    return (FRAME_NONE, 0, 0, 0, 0, 0, FRAME_CUT)


@given(STACKS, st.integers(1, 12))
@settings(max_examples=60)
def test_past_its_limit_a_stack_is_whole_or_cut_and_never_another_one(stacks, limit):
    sites = tree(limit)
    leaves = insert(sites, stacks)
    rows = rows_of(sites)
    assert len(sites) <= limit
    for stack, leaf in zip(stacks, leaves, strict=True):
        assert stack_of(rows, leaf) in (stack, [cut_frame()])
    lacking = [s for s, leaf in zip(stacks, leaves, strict=True) if leaf == sites.cut and s != [cut_frame()]]
    assert bool(lacking) == bool(sites.refused)
    assert insert(sites, stacks) == leaves, "what had no room has none later either, and what had some keeps it"


def test_a_hundred_thousand_frames_at_once_and_again():
    sites = tree()
    offsets = np.arange(100_000)
    first = sites.add(0, kind=FRAME_NATIVE, offset=offsets)
    assert len(np.unique(first)) == 100_000
    assert np.array_equal(sites.add(0, kind=FRAME_NATIVE, offset=offsets), first)
    below = sites.add(first, kind=FRAME_NATIVE, offset=1)
    assert not np.isin(below, first).any()
    batch = sites.new_rows()
    assert batch is not None
    assert len(batch) == 200_001
    assert sites.new_rows() is None


def test_a_tree_that_begins_without_an_id_left_is_refused():
    with pytest.raises(ValueError, match="no id of a call site is left"):
        tree(0)


def test_trees_of_several_threads_share_no_id():
    ids, found = StackIds(20_000), []
    trees = [CallSites(ids, Dictionary()) for _ in range(4)]  # before others take all ids, without which none is made

    def fill(sites):
        for start in range(0, 8_000, 100):
            sites.add(0, kind=FRAME_PYTHON, line=np.arange(start, start + 100))
        batch = sites.new_rows()
        assert batch is not None
        found.append(batch["id"])

    threads = [threading.Thread(target=fill, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = np.concatenate(found)
    assert len(given) == len(np.unique(given)) == 20_000
    assert (given.min(), given.max()) == (1, 20_000)


@pytest.mark.parametrize("lacking", [column.name for column in CALL_SITE.columns])
def test_a_damaged_file_s_rows_may_lack_any_column(lacking):
    columns = {c.name: np.ones(1, DTYPES[c.type]) for c in CALL_SITE.columns if c.name != lacking}
    if lacking != "parent":
        columns["parent"] = np.zeros(1, "<u4")
    tree = CallTree()
    assert tree.learn(Batch(CALL_SITE, columns, strings=Dictionary()))
    assert len(tree) == (lacking != "id")  # no stack can name a frame without an id
    if lacking == "parent":  # a frame whose callers are not known, rather than one that has none
        assert tree.column("flags")[1] & FRAME_CUT
    elif lacking != "id":
        assert tree.column(lacking)[1] == 0
        assert tree.column("parent")[1] == 0


@pytest.mark.parametrize("together", [False, True])
def test_a_name_that_comes_later_is_that_of_all_stacks_through_the_frame(together):
    sites = tree()
    outer = sites.add(0, kind=FRAME_NATIVE, mapping=5, offset=100)
    inner = sites.add(outer, kind=FRAME_NATIVE, mapping=6, offset=[7, 8])
    rows = sites.new_rows()
    later = sites.renamed(lambda mapping, offset: 3 * (mapping == 5 and offset == 100))
    assert rows is not None
    assert later["id"].tolist() == outer.tolist()
    read = CallTree()
    if together:  # as a file may give them
        both = {name: np.concatenate((rows[name], later[name])) for name in rows}
        rows, later = Batch(CALL_SITE, both, strings=rows.strings), later.take(slice(0))
    read.learn(rows)
    read.learn(later)
    assert read.column("kind")[outer[0]] == FRAME_JIT
    assert read.column("function")[outer[0]] == 3
    assert read.column("kind")[inner].tolist() == [FRAME_NATIVE, FRAME_NATIVE]
    assert read.stack(int(inner[1])) == [int(inner[1]), int(outer[0])]

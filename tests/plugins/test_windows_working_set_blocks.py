"""The words of QueryWorkingSet and their attributes, decoded into runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.schema import (
    PAGE_COPY_ON_WRITE,
    PAGE_EXCLUSIVE,
    PAGE_EXECUTE,
    PAGE_GUARD,
    PAGE_READ,
    PAGE_SHARED,
    PAGE_WRITE,
)
from wstrace_plugins.working_set.windows import blocks as windows_blocks

PAGE = 4096
ARTICLE = np.array([0x00000003, 0x00400103, 0x00480101, 0x00500004], "<u4")


def test_the_articles_words():
    count, *_ = ARTICLE.tolist()
    blocks = ARTICLE[1 : count + 1]
    assert windows_blocks.addresses(blocks, PAGE).tolist() == [0x00400000, 0x00480000, 0x00500000]
    assert windows_blocks.flags(blocks).tolist() == [
        PAGE_READ | PAGE_EXECUTE | PAGE_SHARED,
        PAGE_READ | PAGE_SHARED,
        PAGE_READ | PAGE_WRITE | PAGE_EXCLUSIVE,
    ]


def test_pages_of_8_kib_as_on_alpha():
    blocks = np.array([0x00402103, 0x00404103], "<u4")
    assert windows_blocks.addresses(blocks, 8192).tolist() == [0x00402000, 0x00404000]
    index, pages = windows_blocks.runs(blocks, 8192, np.zeros(0, "<u8"))
    assert (index.tolist(), pages.tolist()) == ([0], [2])


@pytest.mark.parametrize(("protection", "flags"), [
    (0, 0), (1, PAGE_READ), (2, PAGE_EXECUTE), (3, PAGE_READ | PAGE_EXECUTE), (4, PAGE_READ | PAGE_WRITE),
    (5, PAGE_READ | PAGE_WRITE | PAGE_COPY_ON_WRITE), (6, PAGE_READ | PAGE_WRITE | PAGE_EXECUTE),
    (7, PAGE_READ | PAGE_WRITE | PAGE_EXECUTE | PAGE_COPY_ON_WRITE),
])  # fmt: skip
def test_every_protection(protection, flags):
    words = np.array([protection, protection + 8, protection + 16, protection + 24], "<u8")
    assert windows_blocks.flags(words).tolist() == [  # + 8 no-cache, + 16 guard, + 24 write-combined
        flags | PAGE_EXCLUSIVE, flags | PAGE_EXCLUSIVE, flags | PAGE_GUARD | PAGE_EXCLUSIVE, flags | PAGE_EXCLUSIVE,
    ]  # fmt: skip


def test_share_counts_end_at_7():
    words = np.array([0x1000 | 0x100 | n << 5 for n in range(8)], "<u8")
    assert windows_blocks.shares(words).tolist() == [1, 1, 2, 3, 4, 5, 6, 7]


def test_extended_attributes():
    valid = 1 | 5 << 1 | 0x20 << 4 | 1 << 15 | 33 << 16 | 1 << 22 | 1 << 23
    found = windows_blocks.attributes(np.array([valid, 1 << 15, 1 << 31, valid & ~1], "<u8"))
    assert found.valid.tolist() == [True, False, False, False]
    assert found.shares.tolist() == [5, 0, 0, 0]
    assert found.protection.tolist() == [0x20, 0, 0, 0]
    assert found.shared.tolist() == [True, True, False, True]
    assert found.node.tolist() == [33, 0, 0, 0]
    assert found.locked.tolist() == [True, False, False, False]  # of an invalid page only Shared and Bad mean anything
    assert found.large.tolist() == [True, False, False, False]
    assert found.bad.tolist() == [False, False, True, False]


def brute_runs(blocks, borders):
    rows = []
    for word in blocks:
        last = rows[-1] if rows else None
        if last and word == last[0] + last[1] * PAGE and word // PAGE * PAGE not in borders:
            last[1] += 1
        else:
            rows.append([word, 1])
    return [tuple(row) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 4, 0x103])), unique_by=lambda p: p[0], min_size=1),
       st.sets(st.integers(0, 60)))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_runs_are_those_of_a_plain_loop(pages, borders):
    blocks = windows_blocks.in_order(np.array([n * PAGE | bits for n, bits in pages], "<u8"))
    starts = np.array(sorted(b * PAGE for b in borders), "<u8")
    index, counts = windows_blocks.runs(blocks, PAGE, starts)
    assert list(zip(blocks[index].tolist(), counts.tolist(), strict=True)) == brute_runs(
        blocks.tolist(), set(starts.tolist())
    )

"""The option `stacks=` of page_faults."""

from __future__ import annotations

import pytest

from wstrace.errors import UsageError
from wstrace_page_faults.stacks_option import Stacks, parse_stacks


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("auto", Stacks(python=True, required=False)),
        ("none", Stacks()),
        ("python", Stacks(python=True)),
        ("native", Stacks(native=True)),
        ("Python+native", Stacks(python=True, native=True)),
        ("lines", Stacks(lines=True)),
        ("lines+native+python", Stacks(python=True, native=True, lines=True)),
    ],
)
def test_the_words(text: str, asked: Stacks) -> None:
    assert parse_stacks(text) == asked
    assert asked.samples == (asked.native or asked.lines)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("pyton", "page_faults: stacks=pyton: 'pyton' is none", "did you mean 'python'?"),
        ("", "page_faults: stacks=: '' is none", "known: auto, lines, native, none, python"),
        ("python+auto", "page_faults: stacks=python+auto: 'auto' stands alone", "write stacks=auto"),
        ("none+native", "page_faults: stacks=none+native: 'none' stands alone", "write stacks=none"),
    ],
)
def test_what_is_no_word_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_stacks(text)
    assert (refused.value.why, refused.value.remedy) == (message, hint)

"""The option `stacks=` of page_faults."""

import sys

import pytest

from wstrace.errors import Unavailable, UsageError
from wstrace_plugins.page_faults import Stacks, parse_stacks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Stacks(python=True, required=False)),
        ("none", Stacks()),
        ("python", Stacks(python=True)),
        ("native", Stacks(native=True)),
        ("Python+native", Stacks(python=True, native=True)),
        ("native+python", Stacks(python=True, native=True)),
    ],
)
def test_the_words(text, expected):
    assert parse_stacks(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("pyton", "page_faults: stacks=pyton: 'pyton' is none", "did you mean 'python'?"),
        ("", "page_faults: stacks=: '' is none", "known: auto, native, none, python"),
        ("python+auto", "page_faults: stacks=python+auto: 'auto' stands alone", "write stacks=auto"),
        ("none+native", "page_faults: stacks=none+native: 'none' stands alone", "write stacks=none"),
    ],
)
def test_what_is_no_word_is_refused(text, message, hint):
    with pytest.raises(UsageError) as refused:
        parse_stacks(text)
    assert (refused.value.why, refused.value.remedy) == (message, hint)


@pytest.mark.skipif(sys.platform != "linux", reason="the event is Linux's")
def test_native_stacks_are_refused_on_another_machine_with_its_name(monkeypatch):
    from wstrace_plugins.page_faults.linux.events import StackRate, stack_attributes

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match="on x86_64 only, this machine is aarch64"):
        stack_attributes(StackRate(2000), (), {})

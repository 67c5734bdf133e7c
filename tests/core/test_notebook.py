"""What notebooks show of a trace, a report and a working set: markup that does nothing, is small and never fails."""

import os
import re
from html.parser import HTMLParser

import pytest
from kit.blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script

import wstrace
import wstrace.trace
from wstrace.notebook import LINE, SENTENCE, shown
from wstrace.schema import PAGE_FILE, PROCESS_EXEC
from wstrace.testing import trace_of

LARGEST = 20_000
HOSTILE = [
    "</td></table><script>alert(1)</script>",
    '" onload="alert(1)',
    "\x1b[31m\u202e\x00",
    "\udcff",
    "'&<>\"" * 9000,
]


class _Markup(HTMLParser):
    """The tags and the lines of a markup; each tag is closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags = []
        self.lines = []
        self._open = []
        self.feed(markup)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.lines += data.split("\n")


def checked(markup: str) -> _Markup:
    """The parts of a markup that is small, and neither runs nor asks for anything."""
    found = _Markup(markup)
    assert len(markup.encode()) <= LARGEST
    assert found.tags == [("pre", {})]
    assert all(line.isprintable() for line in found.lines)
    return found


def scripted() -> Script:
    script = Script()
    for n in range(6):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 4 else SAVE)
    script.fault(40, FILE)
    script.snapshot(100, (ANON, 6, 0), (FILE, 2, PAGE_FILE))
    return script


def test_a_report_shows_its_answer_and_its_rows():
    reported = scripted().trace().report()
    found = checked(reported._repr_html_())
    assert found.lines[0] == reported.answer
    (line,) = [line for line in found.lines if line.endswith("load_frame app.py:31")]
    assert line.split()[:2] == ["16.0", "KiB"]


def test_a_working_set_shows_its_owners():
    backend = pytest.importorskip("wstrace_plugins.working_set.working_set")
    try:
        found = checked(backend.working_set(os.getpid())._repr_html_())
    except wstrace.Unavailable as why:
        pytest.skip(str(why))
    assert "resident" in found.lines[0]
    assert any(re.search(r" (/\S*(\.so\S*|python[\d.]*)|\[heap\]|\[anon\])$", line) for line in found.lines)


def test_hostile_names_are_texts():
    script = Script()
    for n, name in enumerate(HOSTILE):
        script.batches.append(script.process(2 + n, 20 + n, PROCESS_EXEC, name))
        script.fault(10 + n, ANON + n * PAGE, pid=20 + n, stack=[(name, name, 1)])
        script.snapshot(100 + n, (ANON + n * PAGE, 1, 0), pid=20 + n, number=n)
    trace = script.trace()
    trace.info.command = HOSTILE
    checked(trace.report()._repr_html_())
    checked(trace._repr_html_())


@pytest.mark.parametrize("letter", ["&", "\u202e", "\U000e0001", "\U0001f600"])
def test_the_largest_picture_is_small_enough(letter):
    names = [letter * 10_000 + str(n) for n in range(100)]
    rows = [("1,024.0 MiB", "10,000", name) for name in names]
    found = checked(shown(lambda: ([letter * 10_000] * 4, ["resident", "faults", "file"], rows)))
    assert all(len(line) <= max(LINE, SENTENCE) for line in found.lines)
    assert found.lines[-1].endswith("and 90 more")


def test_an_error_is_a_sentence(monkeypatch):
    def fails():
        raise ValueError("<b>no</b>")

    assert checked(shown(fails)).lines == ["it cannot be shown: ValueError: <b>no</b>"]
    trace = scripted().trace()
    monkeypatch.setattr(type(trace), "report", lambda self, **_: fails())
    assert checked(trace._repr_html_()).lines[0].startswith("it cannot be shown")


def test_nothing_and_very_much_are_reported_at_once(monkeypatch):
    checked(trace_of()._repr_html_())
    assert "0 faults" in checked(trace_of().report()._repr_html_()).lines[0]
    monkeypatch.setattr(wstrace.trace, "_QUICK", 3)
    trace = scripted().trace()
    monkeypatch.setattr(type(trace), "report", lambda self, **_: pytest.fail("it was counted"))
    assert checked(trace._repr_html_()).lines[1].startswith("too many")

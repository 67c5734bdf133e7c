"""Names from outside only print: no escape, control, bidi mark or lone surrogate is left."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.text import (
    base_name,
    duration,
    encodable,
    estimate_mark,
    json_line,
    json_safe,
    number,
    plural,
    printable,
    size,
    spreadsheet_text,
    well_formed,
)

ANY_TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Z", "C", "M")))


@given(ANY_TEXT)
def test_printable_leaves_nothing_that_acts(text):
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    shown.encode()
    assert printable(shown) == shown


@given(ANY_TEXT, st.integers(8, 40))
def test_limit_counts_characters_before_escaping(text, limit):
    assert len(printable(text, limit)) <= limit * 10
    if len(text) <= limit:
        assert printable(text, limit) == printable(text)


def test_limit_keeps_both_ends():
    assert printable("/usr/lib/x86_64-linux-gnu/libc.so.6", 20) == "/usr/l...u/libc.so.6"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\r\tc\x7f\x9b", "a\\x0ab\\x0d\\x09c\\x7f\\x9b"),
        ("x\u202egnp.exe", "x\\u202egnp.exe"),
        ("zero\u200bwidth\u2066", "zero\\u200bwidth\\u2066"),
        (b"/tmp/\xff\xfe".decode("utf-8", "surrogateescape"), "/tmp/\\xff\\xfe"),
        ("\ud800", "\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("line\u2028two", "line\\u2028two"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("日本 é", "日本 é"),
    ],
)
def test_printable(name, shown):
    assert printable(name) == shown


@given(st.text(st.characters()))
def test_well_formed_keeps_all_but_surrogates(text):
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert well_formed(text) == text
    json.dumps(well_formed(text + "\udc80"), ensure_ascii=False).encode()


@pytest.mark.parametrize("encoding", ["cp437", "cp1252", "ascii", "utf-8", "no-such-encoding", None])
@given(text=st.text())
def test_encodable(encoding, text):
    shown = encodable(text, encoding)
    known = encoding if encoding not in (None, "no-such-encoding") else "ascii"
    shown.encode(known)
    if text.isascii():
        assert shown == text


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/libc.so.6", "libc.so.6"),
        ("C:\\Windows\\ntdll.dll", "ntdll.dll"),
        ("C:/x/y.dll", "y.dll"),
        ("[heap]", "[heap]"),
        ("", ""),
        ("/", "/"),
        ("/tmp/a\\b", "a\\b"),
        ("/x/lib.so (deleted)", "lib.so (deleted)"),
    ],
)
def test_base_name(path, name):
    assert base_name(path) == name


def test_numbers():
    assert [size(n) for n in (0, 1023, 1024, 432_640_000)] == ["0 B", "1023 B", "1.0 KiB", "412.6 MiB"]
    assert size(1 << 70) == "1,024.0 EiB"
    assert [number(96113), plural(1, "fault"), plural(0, "fault")] == ["96,113", "1 fault", "0 faults"]
    assert [duration(s) for s in (85e-5, 0.0123, 2.34)] == ["850 us", "12.3 ms", "2.3 s"]
    assert [duration(s) for s in (250, 10930)] == ["4 min 10 s", "3 h 02 min"]


def test_what_json_lacks_becomes_text():
    raw = b"\xff".decode("utf-8", "surrogateescape")
    assert json_safe({raw: [b"\x01", None, True, 2.5, (raw,)]}) == {"\\xff": ["01", None, True, 2.5, ["\\xff"]]}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_is_text_in_a_spreadsheet(text):
    assert spreadsheet_text(text) == f"'{text}"
    assert spreadsheet_text("/usr/bin/x=1") == "/usr/bin/x=1"


def test_json_on_a_line_reads_back_the_same_and_only_prints():
    names = ["plain", "\x1b[31m", "\x9b31m", "\x7f", "\u202e", "\u2028", "\U000e0041", 'q"\\', "é", "\udcff"]
    for name in names:
        line = json_line({name: [name, 1, None]})
        assert line.isprintable()
        assert json.loads(line) == {name: [name, 1, None]}
    assert json_line({"é": 1}) == '{"é":1}'


def test_a_figure_is_marked_where_its_doubtful_part_could_be_seen():
    assert estimate_mark(16_502_784, 24_576) == ""  # 15.7 MiB with it and without
    assert estimate_mark(16_502_784, 131_072) == "~"
    assert estimate_mark(294_912, 28_672) == "~"
    assert estimate_mark(294_912, 0) == ""
    assert estimate_mark(1 << 20, 1 << 20) == "~"

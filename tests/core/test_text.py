"""Names from outside only print; tables keep to the width of the terminal; functions of C++ in short."""

import io
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.terminal import Bar, Column, Output, TextTable, elide, width_of
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
    without_arguments,
    without_parameters,
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


@pytest.mark.parametrize(
    ("function", "short"),
    [
        ("main", "main"),
        ("f()", "f"),
        ("v8::Factory<v8::Map>::New(v8::Handle<v8::Map>, int)", "v8::Factory::New"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f(int)"),
        ("a::(anonymous namespace)::f(int)", "a::{anonymous}::f"),
        ("std::vector<int>::operator[](unsigned long)", "std::vector<int>::operator[](unsigned long)"),
        ("broken<(int", "broken<(int"),
        # templates have their return type in the name
        ("void f<int>(int)", "f"),
        ("std::vector<int, std::allocator<int> > a::make<int>(a::B&&) const", "a::make"),
        ("unsigned long a::(anonymous namespace)::f<char const*>(char const*) [clone .cold]", "a::{anonymous}::f"),
        ("decltype (f(1)) g<int>(int)", "g"),
        ("auto f<int>(int)::{lambda(int)#1}::g<int>(int) const", "f(int)::{lambda(int)#1}::g"),
        ("void (*signal(int, void (*)(int)))(int)", "void (*signal(int, void (*)(int)))(int)"),
        # no signatures
        (".text(14)", ".text(14)"),
        ("JS:~(anonymous)", "JS:~(anonymous)"),
        ("<T as core::Trait>::f", "<T as core::Trait>::f"),
    ],
)
def test_functions_of_cxx_are_reported_without_their_arguments(function, short):
    assert without_arguments(function) == short


def test_templates_stay_where_only_the_parameters_are_too_many():
    assert without_parameters("a::operator()(int) const") == "a::operator()"
    assert without_parameters("void a::f<int, b<c> >(int) const") == "a::f<int, b<c> >"


@given(st.text("ab:<>(){}[] *&const", max_size=40))
def test_nothing_is_made_up(text):
    for short in (without_parameters, without_arguments):
        assert short(text)[:1] in ("", *text, "{")
        assert bool(short(text)) == bool(text)


HOSTILE = "/tmp/\x1b]0;owned\x07\x9b2J\u202egnp.so\n"


@settings(max_examples=200)
@given(
    st.lists(st.text(st.characters(categories=("L", "N", "P", "S")), max_size=60), max_size=12),
    st.integers(8, 40),
    st.booleans(),
)
def test_different_names_stay_different_and_fit(names, room, unicode):
    names = [printable(f"/usr/lib/python3/site-packages/{name}/x.so") for name in names] + names
    labels = elide(names, room, unicode=unicode)
    assert all(width_of(label) <= room for label in labels)
    assert len(set(zip(names, labels, strict=True))) == len(set(names)) == len(set(labels))


@pytest.mark.parametrize(
    ("name", "room", "label"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", 40, "/usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("/home/me/.venv/lib/python3.11/site-packages/scipy/linalg/_flapack.cpython-311-x86_64-linux-gnu.so", 40,
         "/home/me/.ven…/scipy/linalg/_flapack.so"),
        ("node!v8::internal::Heap::Allocate(v8::internal::JSObjectSlot, v8::internal::HeapObject)", 40,
         "node!v8::internal::Heap::Allocate"),
        ("x!std::function<void (int)>::operator()(int) const", 46, "x!std::function<void (int)>::operator()"),
        ("postgres -D /var/lib/data -k /tmp/some-folder -c listen_addresses=", 28, "postgres … listen_addresses="),
        ("libc.so.6!__strlen_evex (no line)", 26, "libc.so.6!__strlen_evex"),
        ("parse leak.py:5 < load leak.py:8 < run leak.py:20 < <module> leak.py:41", 60,
         "parse leak.py:5 < load leak.py:8 < … < <module> leak.py:41"),
        ("parse leak.py:5 < load leak.py:8 < run leak.py:20 < <module> leak.py:41", 37,
         "parse leak.py:5 < load leak.py:8 < …"),
        ("gunicorn (29051)  lib.so!some_function_with_a_long_name", 36, "gunicorn (29051)  lib.s…_a_long_name"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6  by  ld-linux-x86-64.so.2", 40,
         "/usr/…/libc.so.6  by  ld-li…x86-64.so.2"),
        ("hashtable_with_a_long_name_311-x86_64-linux-gnu.so!.text(11)", 30, "hashtable…nux-gnu.so!.text(11)"),
    ],
)  # fmt: skip
def test_what_a_cut_name_keeps(name, room, label):
    assert elide([name], room) == [label]


def table_of(names: list[str]) -> TextTable:
    columns = [Column("resident"), Column("share"), Column("", "bar"), Column("address", "text", spare=False),
               Column("name", "name")]  # fmt: skip
    return TextTable(
        columns, [[f"{i}.0 MiB", " 10.0%", Bar(i, len(names)), "7f00-7f01", n] for i, n in enumerate(names)]
    )


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_a_table_keeps_to_its_width_and_cuts_no_number(width):
    names = [f"/usr/lib/python3/dist-packages/package_{i}/module_{i}.so" for i in range(20)]
    lines = list(table_of(names).lines(width=width, unicode=True))
    assert max(map(width_of, lines)) <= width
    assert [line.split()[0] for line in lines[1:]] == [f"{i}.0" for i in range(20)]
    shown = [line.split()[-1] for line in lines[1:]]
    assert len(set(shown)) == 20
    if width >= 40:
        assert all("7f00-7f01" in line for line in lines[1:])


def test_everything_that_is_shown_is_printable():
    stream = io.StringIO()
    table = TextTable([Column(HOSTILE), Column(HOSTILE, "text"), Column(HOSTILE, "name")], [[HOSTILE] * 3], total=2)
    Output(stream).show(HOSTILE, table)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(("value", "drawn", "plain"), [(0, "", ""), (1, "▏", "#"), (500, "█████", "#####"),
                                                        (999, "█████████▉", "##########"),
                                                        (5000, "██████████", "##########")])  # fmt: skip
def test_bars_are_exact_to_an_eighth_and_never_nothing_for_something(value, drawn, plain):
    assert Bar(value, 1000).text(10, unicode=True) == drawn
    assert Bar(value, 1000).text(10, unicode=False) == plain
    assert Bar(1, 0).text(10, unicode=True) == ""


def test_a_number_that_may_be_left_out_makes_room_for_names_of_80_columns():
    """GIVEN more numbers than fit beside names THEN the last ones go, not the names."""
    names = [f"ld-linux-x86-64.so.2!_dl_relocate_object_{n}" for n in range(3)]
    columns = [Column(f"number {n}", spare=n > 0) for n in range(7)]
    table = TextTable([*columns, Column("own line", "name")], [[*["1,000.0 KiB"] * 7, name] for name in names])
    head, *shown = table.lines(width=80, unicode=True)
    assert head.split()[:3] == ["number", "0", "number"]
    assert all(len(line) <= 80 for line in shown)
    assert len({line.split("KiB  ")[-1] for line in shown}) == 3
    assert all("relocate_object_" in line for line in shown)

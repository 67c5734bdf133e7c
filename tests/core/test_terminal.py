"""The terminal room: names that are cut stay different, tables keep to their width, nothing from outside acts."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.terminal import Bar, Column, Output, TextTable, elide, width_of
from wstrace.text import printable

HOSTILE = "/tmp/\x1b]0;owned\x07\x9b2J\u202egnp.so\n"


@settings(max_examples=200, deadline=None)
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

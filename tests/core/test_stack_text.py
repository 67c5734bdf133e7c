"""A stack in one line: short, and still told from the other stacks of its table."""

from __future__ import annotations

import pytest

from wstrace.analysis.frames import Frame
from wstrace.analysis.stack_text import distinct, short, whole


def frame(function: str, file: str = "", line: int = 1, own: bool = False) -> Frame:
    return Frame("python", function, file or f"/lib/{function}.py", line, own=own, shown=file or f"{function}.py")


def importing(n: int = 5) -> list[Frame]:
    return [frame(f"_load_{at}", "<frozen importlib._bootstrap>") for at in range(n)]


LEAF, MAIN = frame("parse"), frame("main", "app.py", 40, own=True)


def test_a_stack_that_fits_is_told_whole() -> None:
    assert short([LEAF, MAIN]) == whole([LEAF, MAIN]) == "parse parse.py:1 < main app.py:40"
    assert short([]) == ""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("json/__init__.py", "import json"),
        ("pandas/core/api.py", "import pandas.core.api"),
        ("<string>", "import"),
        ("", "import x"),
    ],
)
def test_the_machinery_of_an_import_is_one_frame_with_the_name_of_the_module(file: str, name: str) -> None:
    module = frame("<module>", file or "x.py", 7)
    assert short([LEAF, module, *importing(), MAIN]) == f"parse parse.py:1 < {module} < {name} < main app.py:40"


def test_a_hook_that_an_import_calls_does_not_give_it_its_name() -> None:
    assert short([LEAF, *importing(), MAIN]) == "parse parse.py:1 < import < main app.py:40"


def test_the_innermost_frame_is_told_in_importlib_too() -> None:
    inner = importing(4)
    assert short([*inner, MAIN]) == f"{inner[0]} < import < main app.py:40"
    assert short(importing(1)) == str(inner[0])


def test_the_middle_is_left_out_and_own_frames_are_kept() -> None:
    library = [frame(f"f{at}") for at in range(30)]
    own = frame("work", "app.py", 3, own=True)
    text = short([*library[:20], own, *library[20:], MAIN, frame("start")])
    assert text.split(" < ") == [
        *map(str, library[:8]), "... 12 frames ...", str(own), "... 10 frames ...", str(MAIN), "start start.py:1",
    ]  # fmt: skip
    assert "frames ..." not in short([*library[:8], frame("g"), frame("start")])


def test_a_recursion_of_own_frames_is_bounded() -> None:
    text = short([frame("down", "app.py", at, own=True) for at in range(1000)])
    assert text.count(" < ") == 8 + 4 + 1
    assert "... 987 frames ..." in text


def test_stacks_that_differ_only_in_the_middle_are_told_apart() -> None:
    inner, outer = [frame(f"f{at}") for at in range(9)], [frame(f"g{at}") for at in range(9)]
    stacks = [[*inner, frame(name), *outer] for name in ("a", "b")]
    a, b = distinct(stacks)
    assert (" a a.py:1 " in a, " b b.py:1 " in b) == (True, True)
    deep = [[*inner, *importing(n), *outer] for n in (3, 4)]
    assert len(set(distinct(deep))) == 2

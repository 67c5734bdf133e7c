"""The screen of `top` in Textual: keys reach the model, and what the terminal shows is what the model says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit.top_scripted import first, second

pytest.importorskip("textual", reason="pip install 'wstrace[top]'")

from wstrace_exporters.live_screen.app import Lines, Top
from wstrace_exporters.live_screen.live import Live
from wstrace_exporters.live_screen.refresh import Refresh
from wstrace_exporters.live_screen.screen import Screen


def shown(steps: Callable[[Any, Callable[[Refresh], None], Callable[[], list[str]]], Awaitable[None]],
          size: tuple[int, int] = (80, 24)) -> Top:  # fmt: skip
    """Runs the application on a terminal of memory; steps(pilot, give, text) drives it."""
    live = Live()
    app = Top(live, Screen("python3 app.py (7)"))

    async def run():
        async with app.run_test(size=size) as pilot:

            def give(latest):
                live.latest = latest
                live.fresh.set()
                app.renew()

            def text():
                lines = app.query_one(Lines)
                return ["".join(segment.text for segment in lines.render_line(y)) for y in range(size[1])]

            give(first())
            give(second())
            await pilot.pause()
            await steps(pilot, give, text)

    asyncio.run(run())
    return app


def test_the_terminal_shows_the_lines_of_the_model_and_the_heads_stand_out_without_a_colour():
    async def steps(pilot, give, text):
        expected = [line.ljust(80) for line in pilot.app._model.lines(80, 24)]
        assert [line.ljust(80) for line in text()] == expected
        head = pilot.app.query_one(Lines).render_line(2)
        assert all(segment.style.reverse for segment in head)

    shown(steps)


def test_each_key_does_what_the_last_line_says():
    async def steps(pilot, give, text):
        for key, view in (("b", "big"), ("w", "workers"), ("n", "now")):
            await pilot.press(key)
            assert text()[0].startswith(view)
        await pilot.press("b", "m", "d")
        assert "SINCE MARK" in text()[2]
        assert "nothing to show" in text()[3]
        await pilot.press("o")
        assert pilot.app._live.by == "function"
        await pilot.press("q")

    assert not shown(steps).is_running


def test_ctrl_c_ends_it():
    async def steps(pilot, give, text):
        await pilot.press("ctrl+c")

    assert not shown(steps).is_running

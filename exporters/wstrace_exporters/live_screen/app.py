"""The screen on a terminal, by Textual: it draws the lines that Screen makes, and hands keys to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widget import Widget

from wstrace_exporters.live_screen.live import Live
from wstrace_exporters.live_screen.screen import Screen

_HEAD = 2  # the line with the heads of the table
_REDRAW_SECONDS = 0.25  # how soon new figures are on the screen; what is the same is not drawn again


class Lines(Widget, can_focus=True):
    """Draws lines of text as they are: a name is never markup."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._model, self._text = screen, [""]

    def renew(self) -> None:
        """Draws the lines again, where they have changed."""
        lines = self._model.lines(self.size.width, self.size.height)
        if lines != self._text:
            self._text = lines
            self.refresh()

    def on_resize(self) -> None:
        """Makes the lines for the new size."""
        self.renew()

    def render(self) -> Content:
        """The lines; the heads stand out without a colour."""
        parts: list[tuple[str, str] | str] = []
        for y, line in enumerate(self._text):
            style = "reverse" if y == _HEAD else "bold" if y == 0 else ""
            parts += [(line.ljust(self.size.width) if y == _HEAD else line, style), "\n"]
        return Content.assemble(*parts[:-1])


class Top(App[None]):
    """The application. live: has the latest refresh. screen: what is shown of it."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = []
    CSS = "Screen, Lines { background: ansi_default; color: ansi_default; } Lines { width: 100%; height: 100%; }"

    def __init__(self, live: Live, screen: Screen) -> None:
        super().__init__(ansi_color=True)
        self._live, self._model = live, screen

    def compose(self) -> ComposeResult:
        """The lines are all that there is."""
        yield Lines(self._model)

    def on_mount(self) -> None:
        """Begins to draw each refresh."""
        self.query_one(Lines).focus()
        self.set_interval(_REDRAW_SECONDS, self.renew)
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):  # so that the terminal is left as it was
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(getattr(signal, name), self.exit)

    def renew(self) -> None:
        """Takes the latest refresh; nothing is drawn where nothing is new."""
        if self._live.fresh.is_set():
            self._live.fresh.clear()
            self._model.take(self._live.latest)
            self.query_one(Lines).renew()

    def on_key(self, event: events.Key) -> None:
        """Hands a key to the screen."""
        event.stop()
        event.prevent_default()
        self._model.press(event.key, event.character)
        self._live.by = self._model.by
        if self._model.done:
            self.exit()
            return
        self._model.take(self._live.latest)
        self.query_one(Lines).renew()

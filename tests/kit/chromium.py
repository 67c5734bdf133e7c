"""One Chromium without a window, for tests that open a page: clicks, values read back, requests, violations."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
NODE = shutil.which("node")
_SECONDS = 60.0


def require() -> None:
    """Skips the test where there is no Chromium or node; fails with WSTRACE_REQUIRE_PEERS=1."""
    if PROGRAM and NODE:
        return
    why = "tests/install-peers installs chromium and nodejs"
    if os.environ.get("WSTRACE_REQUIRE_PEERS") == "1":
        pytest.fail(why)
    pytest.skip(why)


class Chromium:
    """A browser with one page. A context manager.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [NODE or "node", str(Path(__file__).with_name("chromium.mjs")), str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip
        assert self._read() == {"ready": True}

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(_SECONDS)
        self._process.stdout.close()

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        return json.loads(line)

    def _ask(self, wanted: dict[str, Any]) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        assert "error" not in answer, answer
        return answer["result"]

    def send(self, method: str, **params: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask({"method": method, "params": params})

    def events(self, name: str) -> list[Any]:
        """The parameters of all events of that name so far: `Network.requestWillBeSent`."""
        return self._ask({"events": name})

    def open(self, url: str, ready: str) -> None:
        """Opens a page, and waits until this expression is true there."""
        self.send("Emulation.setDeviceMetricsOverride", width=1280, height=1600, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=url)
        self.wait(ready)

    def wait(self, expression: str) -> None:
        """Waits until an expression is true in the page."""
        until = time.monotonic() + _SECONDS
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never true: {expression}; {self.events('Runtime.exceptionThrown')}"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise what it gives."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Moves the mouse from one place of the window to another with its button held; to the same one: a click."""
        steps = [("mouseMoved", begin), ("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end)]
        for kind, (x, y) in steps:
            held = {} if kind == "mouseMoved" and (x, y) == begin else {"button": "left", "buttons": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1, **held)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses a key. modifiers: 1 Alt, 2 Ctrl, 8 Shift."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers)

    def place(self, selector: str) -> dict[str, float]:
        """left, top, width and height of an element, after it was scrolled into view."""
        return self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView("
            "{block: 'center'}); const {left, top, width, height} = one.getBoundingClientRect();"
            " return {left, top, width, height}; })()"
        )

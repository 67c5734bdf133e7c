"""The document: one file with its style, script and data inside, which loads nothing else.

The browser itself holds it to that: the content security policy allows the script and the style by their hashes and
pictures from within the page, and nothing else. The data is JSON that no browser runs, and that cannot end its element.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.text import number, printable

_PAGE = resources.files("wstrace_exporters.html") / "page"
#: In the order in which they run.
SCRIPTS = ("base.js", "icicle.js", "timeline.js", "report.js")
#: What could end the element of the data, or a line of it for an old reader of JavaScript; the rest is ASCII.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def document(title: str, data: dict[str, Any]) -> bytes:
    """The page as UTF-8. title: of the window. data: plain values for JSON; names in it are text, never markup."""
    script, style = _script(), _style()
    hashes = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {hashes}; img-src data:"
    blob = json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report draws its pictures with a script inside of this file; it needs no network.</noscript>
<main id="page"></main>
<script type="application/json" id="data">{blob}</script>
<script>{script}</script>
</body>
</html>
"""
    return page.encode("utf-8")


@cache
def _script() -> str:
    script = "\n".join(_text(name) for name in SCRIPTS)
    assert "</script" not in script.lower()
    assert "<!--" not in script
    return script


@cache
def _style() -> str:
    style = _text("style.css")
    assert "</style" not in style.lower()
    return style


def _text(name: str) -> str:
    """A file of the page; line ends as a browser has them when it computes the hash."""
    return _PAGE.joinpath(name).read_text("utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


#: The longest name of a page, in characters; the middle of a longer one is left out.
NAME_LIMIT = 200


def name(text: str) -> str:
    """A name from outside: without control characters, bounded."""
    return printable(text, NAME_LIMIT)


def others(n: int) -> str:
    """The label of what is not shown one by one."""
    return f"({number(n)} others)"


def varints(values: NDArray[Any]) -> str:
    """Numbers from 0 on in base64, each of as many bytes as it needs: 7 bits a byte, the lowest first (LEB128)."""
    rest = values.astype(np.uint64)
    if not len(rest):
        return ""
    low, columns, more = np.uint64(127), [], []
    while True:
        columns.append((rest & low).astype(np.uint8))
        rest = rest >> np.uint64(7)
        more.append(rest > 0)
        if not more[-1].any():
            break
    there = np.stack([np.ones(len(values), np.bool_), *more[:-1]], axis=1)
    octets = np.stack(columns, axis=1) | (np.stack(more, axis=1).astype(np.uint8) << np.uint8(7))
    return base64.b64encode(octets[there].tobytes()).decode()

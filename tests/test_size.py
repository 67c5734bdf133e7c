"""The product's size is held at what was reached: whoever adds takes away, or argues for a larger figure here."""

import ast
import io
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Tokens: those of CPython without comments and docstrings, strings by length; other files by bytes.
TOKENS = 384_740
#: A mend of a few lines needs no new figure.
MARGIN = 1.003
_UNCOUNTED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
#: CPython 3.12 and later split f-strings into tokens of their own.
_SPLIT = hasattr(tokenize, "FSTRING_START")


def tokens(text: str) -> int:
    """The number of tokens of a Python file; a string of n characters counts n / 4."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    counted = (
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _UNCOUNTED and token.start not in docstrings
    )
    return sum(max(1, len(token.string) // 4) if token.type == tokenize.STRING else 1 for token in counted)


@pytest.mark.skipif(_SPLIT, reason="later versions than 3.11 split f-strings")
def test_the_product_does_not_grow():
    names = subprocess.run(
        ["git", "ls-files", "-z", "wstrace", "plugins", "exporters"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\0")
    if names == [""]:
        pytest.skip("a source distribution: only a checkout knows its files")
    total = 0
    for path in (ROOT / name for name in names if name and not name.endswith(".md")):
        content = path.read_bytes()
        total += tokens(content.decode()) if path.suffix == ".py" else len(content) // 4
    assert total <= TOKENS * MARGIN, f"{total:,} tokens; held at {TOKENS:,}: see CONTRIBUTING.md"

"""Functions and source files of stacks, and titles, as hashes: for a file that is shared and does not tell it all."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary
from wstrace.schema import CALL_SITE, FRAME_KERNEL, PROCESS, PROCESS_TITLE

_HASH_BYTES = 6
#: parts of a path that tell where Python and its packages lie, and nothing of the program
_PLACES = re.compile(r"lib(?:64)?|(?:python|pypy)\d[\d.]*t?|(?:site|dist)-packages|s?bin|")
#: names that the language gives: <module>, <lambda>, <locals>
_GIVEN = re.compile(r"<\w+>")
_SUFFIX = re.compile(r"\.\w{1,3}$")


class HashedNames:
    """Replaces `function` and `file` of call sites by hashes, but for those of the kernel, and titles of processes.

    Equal names of one session have equal hashes, and a path keeps its folders as hashes and where packages lie, so that
    tables by own line, function and package stay what they are. The key is drawn anew and kept nowhere, so that nobody
    finds a name by hashing guesses.

    Args:
        strings: the session's dictionary.
    """

    def __init__(self, strings: Dictionary) -> None:
        self._strings, self._key = strings, os.urandom(16)
        self._codes: dict[str, dict[int, int]] = {"function": {}, "file": {}, "name": {}}

    def apply(self, batch: Batch) -> Batch:
        """A batch of call sites or processes with hashes; one of another stream as it is."""
        if batch.schema.name == CALL_SITE.name:
            kept, hashed = batch["kind"] == FRAME_KERNEL, ["function", "file"]
        elif batch.schema.name == PROCESS.name and "name" in batch:
            kept, hashed = batch["event"] != PROCESS_TITLE, ["name"]
        else:
            return batch
        columns: dict[str, NDArray[Any]] = dict(batch.columns)
        for name in hashed:
            codes, known = columns[name], self._codes[name]
            for code in set(np.unique(codes[~kept]).tolist()) - known.keys():
                known[code] = self._strings.code(self._hashed(name, self._strings[code]))
            columns[name] = np.array(
                [code if keep else known[code] for code, keep in zip(codes.tolist(), kept.tolist(), strict=True)], "<u4"
            )
        return Batch(batch.schema, columns, window=batch.window, source=batch.source, strings=self._strings)

    def _hashed(self, name: str, text: str) -> str:
        if not text:
            return ""
        if name == "name":
            return self._hash(text)
        if name == "function":
            return ".".join(part if _GIVEN.fullmatch(part) else self._hash(part) for part in text.split("."))
        if text.startswith("<"):
            kind = "<frozen " if text.startswith("<frozen") else "<"
            return f"{kind}{self._hash(text)}>"
        return "/".join(map(self._part, text.split("/")))

    def _part(self, part: str) -> str:
        if _PLACES.fullmatch(part):
            return part
        suffix = _SUFFIX.search(part)
        return self._hash(part) + (suffix[0] if suffix else "")

    def _hash(self, text: str) -> str:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=_HASH_BYTES)
        return digest.hexdigest()

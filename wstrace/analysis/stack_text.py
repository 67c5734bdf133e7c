"""A whole stack in one line of a table: the machinery of imports folded, the frames in the middle left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from wstrace.analysis.frames import Frame

CALLED_BY = " < "
#: frames at the inner end, and of the program's own further out, that a line shows
INNERMOST, OWN = 8, 4
_IMPORTS = "<frozen importlib"


def whole(frames: Sequence[Frame]) -> str:
    """All frames, innermost first."""
    return CALLED_BY.join(map(str, frames))


def short(frames: Sequence[Frame], innermost: int = INNERMOST) -> str:
    """The innermost frames, the innermost own ones of the others, and the outermost one; `... 31 frames ...` between.

    The frames of importlib between two others are one: `import NAME`.
    """
    parts = list(_folded(frames))
    kept = set(range(innermost)) | {len(parts) - 1}
    kept |= set([at for at, (_, _, own) in enumerate(parts) if own and at >= innermost][:OWN])
    texts = []
    for is_kept, group in groupby(enumerate(parts), lambda one: one[0] in kept):
        run = [part for _, part in group]
        left_out = sum(n for _, n, _ in run)
        if is_kept or left_out == 1:  # A frame is not longer than the words that it is left out.
            texts += [text for text, _, _ in run]
        else:
            texts.append(f"... {left_out} frames ...")
    return CALLED_BY.join(texts)


def distinct(stacks: Sequence[Sequence[Frame]]) -> list[str]:
    """Each stack in short, with as many more of its frames as tell it from the others."""
    texts, innermost = [short(frames) for frames in stacks], INNERMOST
    deepest = max(map(len, stacks), default=0)
    while len(alike := {text for text in texts if texts.count(text) > 1}) and innermost < deepest:
        innermost *= 2
        texts = [
            short(frames, innermost) if text in alike else text for text, frames in zip(texts, stacks, strict=True)
        ]
    return [whole(frames) if texts.count(text) > 1 else text for text, frames in zip(texts, stacks, strict=True)]


def _folded(frames: Sequence[Frame]) -> Iterator[tuple[str, int, bool]]:
    """(text, how many frames it stands for, whether it is own), innermost first."""
    inner: Frame | None = None
    for imports, group in groupby(frames, lambda frame: frame.file.startswith(_IMPORTS)):
        run = list(group)
        if imports and inner is None:
            # The name of a module that importlib itself still reads is not in its frames.
            yield str(run[0]), 1, False
            run = run[1:]
        if imports and run:
            name = _module(inner) if inner is not None else ""
            yield f"import {name}".rstrip(), len(run), False
        elif not imports:
            yield from ((str(frame), 1, frame.own is True) for frame in run)
        inner = run[-1] if run else inner


def _module(frame: Frame) -> str:
    """The module whose code begins in a frame, `pandas.core.api`; "" = another frame, as that of an import hook."""
    if frame.function != "<module>" or not frame.shown.endswith(".py"):
        return ""
    return frame.shown.removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")

"""A stack as one line of a table: frames of importlib are folded, and frames in the middle are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from wstrace.analysis.imports import IMPORT_SYSTEM

if TYPE_CHECKING:
    from wstrace.analysis.frames import Frame

CALLED_BY = " < "
#: the innermost frames that a line shows, and the own frames further out
INNERMOST, OWN = 8, 4


def whole(frames: Sequence[Frame]) -> str:
    """All frames, innermost first."""
    return CALLED_BY.join(map(str, frames))


def short(frames: Sequence[Frame], innermost: int = INNERMOST) -> str:
    """The innermost frames, the next OWN frames of the program's own, and the outermost; `... 31 frames ...` between.

    Adjacent frames of importlib are shown as one: `import NAME`.
    """
    parts = list(_folded(frames))
    kept = set(range(innermost)) | {len(parts) - 1}
    kept |= set([at for at, (_, _, own) in enumerate(parts) if own and at >= innermost][:OWN])
    texts = []
    for is_kept, group in groupby(enumerate(parts), lambda one: one[0] in kept):
        run = [part for _, part in group]
        left_out = sum(n for _, n, _ in run)
        if is_kept or left_out == 1:  # "... 1 frames ..." would be as long as the frame.
            texts += [text for text, _, _ in run]
        else:
            texts.append(f"... {left_out} frames ...")
    return CALLED_BY.join(texts)


def distinct(stacks: Sequence[Sequence[Frame]]) -> list[str]:
    """Each stack as short() gives it, with more innermost frames where two would be equal."""
    texts, innermost = [short(frames) for frames in stacks], INNERMOST
    deepest = max(map(len, stacks), default=0)
    while len(alike := {text for text in texts if texts.count(text) > 1}) and innermost < deepest:
        innermost *= 2
        texts = [
            short(frames, innermost) if text in alike else text for text, frames in zip(texts, stacks, strict=True)
        ]
    return [whole(frames) if texts.count(text) > 1 else text for text, frames in zip(texts, stacks, strict=True)]


def _folded(frames: Sequence[Frame]) -> Iterator[tuple[str, int, bool]]:
    """(text, number of frames that it stands for, whether they are own), innermost first."""
    inner: Frame | None = None
    for imports, group in groupby(frames, lambda frame: frame.file.startswith(IMPORT_SYSTEM)):
        run = list(group)
        if imports and inner is None:
            # importlib is still loading the module, so no frame names it.
            yield str(run[0]), 1, False
            run = run[1:]
        if imports and run:
            name = _module(inner) if inner is not None else ""
            yield f"import {name}".rstrip(), len(run), False
        elif not imports:
            yield from ((str(frame), 1, frame.own is True) for frame in run)
        inner = run[-1] if run else inner


def _module(frame: Frame) -> str:
    """The module whose `<module>` a frame is, `pandas.core.api`; "" = another frame, such as an import hook's."""
    if frame.function != "<module>" or not frame.shown.endswith(".py"):
        return ""
    return frame.shown.removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")

"""Who brought each page: what programs see in their own pagemap, beside what blame says."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections import Counter
from pathlib import Path

from wstrace.analysis.blame.bringers import HOWS
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame
from wstrace.batch import Dictionary
from wstrace_exporters.msgpack.interchange.blame_tables import pages_batch


def recorded(folder: Path, *command: str, extra: tuple[str, ...] = ()) -> tuple[Path, dict[int, str], int]:
    """The trace of a program, who brought each of its pages, and how many it and its children made of shared ones."""
    path, said = folder / "x.wst", folder / "truth"
    run = [
        sys.executable,
        "-m",
        "wstrace",
        "run",
        "-q",
        "-f",
        "-o",
        str(path),
        "--",
        *command,
        str(said),
        str(folder),
        *extra,
    ]
    subprocess.run(run, check=True, timeout=100)
    rows = dict(line.split(" ", 1) for line in said.read_text().splitlines())
    copies = int(rows.pop("copies"))
    return path, {int(page): who for page, who in rows.items()}, copies


def found_by(of: Composition, names: list[str]) -> dict[int, tuple[str, str, int, bool]]:
    """page -> who may have brought it, twice, how that was found, and whether it may be another one; "" = not known.

    names: of each fault, its own.
    """
    order = of.history.faults.order.tolist()
    pages = (pages_batch(Blame(of), Dictionary())["va"] // of.page_size).tolist()
    both = [[names[order[fault]] if fault >= 0 else "" for fault in one.tolist()]
            for one in (of.found.first, of.found.second)]  # fmt: skip
    doubted = (of.found.assumed | of.found.doubted).tolist()
    return dict(zip(pages, zip(*both, of.found.how.tolist(), doubted, strict=True), strict=True))


def judged(
    truth: dict[int, str], found: dict[int, tuple[str, str, int, bool]], *, random: bool = False
) -> tuple[Counter[str], Counter[str]]:
    """The pages of each line that blame is sure of, and of each that it shares out; nobody's are "0".

    Asserts that none is given to another line, and none of nobody's to any; of random ones, for certain.
    """
    certain, estimated = Counter(), Counter()
    for page, who in truth.items():
        first, second, how, doubted = found[page]
        right = (who if who != "0" else "") in (first, second)
        assert right or (random and (doubted or not first)), (hex(page * mmap.PAGESIZE), who, first, second, HOWS[how])
        (certain if right and first == second and not (random and doubted) else estimated)[who] += 1
    return certain, estimated

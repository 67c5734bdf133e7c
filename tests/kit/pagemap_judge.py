"""Who brought each page: what programs see in their own pagemap, beside what blame says."""

import mmap
from collections import Counter
from pathlib import Path

from kit.command_line import answer
from wstrace.analysis.arrival import REASONS
from wstrace.analysis.composition import Composition
from wstrace.batch import Dictionary
from wstrace_exporters.msgpack.interchange.blame_tables import pages_batch


def recorded(folder: Path, *command: str, extra: tuple[str, ...] = ()) -> tuple[Path, dict[int, str], int]:
    """The trace of a program, who brought each of its pages, and how many it and its children made of shared ones."""
    path, said = folder / "x.wst", folder / "truth"
    answer("run", "-q", "-f", "-o", path, "--", *command, said, folder, *extra)
    rows = dict(line.split(" ", 1) for line in said.read_text().splitlines())
    copies = int(rows.pop("copies"))
    return path, {int(page): who for page, who in rows.items()}, copies


def found_by(of: Composition, names: list[str]) -> dict[int, tuple[str, bool, str]]:
    """page -> who owns it, "" = not known, whether that is an estimate, and the reason why it is not known.

    names: of each fault, its own.
    """
    pages = (pages_batch(of, Dictionary())["va"] // of.page_size).tolist()
    owners = [names[fault] if fault >= 0 else "" for fault in of.owner.tolist()]
    reasons = [REASONS[number] for number in of.found.reason.tolist()]
    return dict(zip(pages, zip(owners, of.found.estimated.tolist(), reasons, strict=True), strict=True))


def judged(
    truth: dict[int, str], found: dict[int, tuple[str, bool, str]], *, random: bool = False
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The pages of each line that are its own for certain, that are estimated to be, and that another one has.

    Those of nobody are of "0". Asserts that no page is given to another line for certain; not known is no line.
    """
    certain, estimated, wrong = Counter(), Counter(), Counter()
    for page, who in truth.items():
        owner, rule, reason = found[page]
        right = (who if who != "0" else "") == owner
        assert right or rule or (random and not owner), (hex(page * mmap.PAGESIZE), who, owner, reason)
        (wrong if not right else estimated if rule else certain)[who] += 1
    return certain, estimated, wrong

"""What a composition says in sentences: the answer, and how complete it is; for every view of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from wstrace.analysis.blame.causes import NO_LINE
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.text import estimate_mark, number, plural, printable, size, unit_of

if TYPE_CHECKING:
    from wstrace.analysis.blame.comparison import Comparison

#: Rows that the first line tells, and the least share of one.
_TOLD, _SHARE = 3, 0.03
NAME_LIMIT = 60
#: A row that rests on so few samples may be of another size by more than a half of it.
_FEW = 3
#: From this share of the peak on, a composition counts as that of the peak.
_WHOLE = 0.995
#: Below this share, the peak was too short for the looks: who held the rest is not known.
_SEEN = 0.95
#: What looks at the pages of all processes while they run.
_LOOK = "-s peak_snapshot"


def answer(told: Blame) -> str:
    """`142.9 MiB resident at the exit: 50.1 by load_frame app.py:31, 37.0 by import pandas, ...`."""
    sums = told.sums
    spaces, by_pss = sums.processes, sums.processes > 1 and told.of.pss is not None
    rows = told.rows("line", sort="pss" if by_pss else "resident")
    unit, divisor = unit_of(told.total)
    held = [((row.pss or 0) if by_pss else row.resident, row) for row in rows]
    total = told.pss or 0 if by_pss else told.total
    big = [(n, row) for n, row in held if n >= _SHARE * total][:_TOLD]
    # What has no line is told by the second line, unless it is most: then the lines are not the answer.
    named = [(n, row) for n, row in big if not row.reason or 2 * n > total] or big

    def shown(n: float) -> str:
        return f"{n / divisor:,.1f}"

    parts = [f"{estimate_mark(round(n), row.estimated, shown)}{shown(n)} {_by(row)}" for n, row in named]
    more = ", ..." if sum(n for n, _ in named) < total else ""
    moment = moment_words(told.of.inputs.moment, several=spaces > 1)
    kinds = f" in {', '.join(told.kinds)}" if told.kinds else ""
    first = f"{told.total / divisor:,.1f} {unit} {'resident' if spaces <= 1 else 'rss_sum'}"
    if spaces > 1 and sums.pss is not None:
        first = f"{sums.pss / divisor:,.1f} {unit} pss"
    whole = f"{first}{kinds} {printable(moment, NAME_LIMIT)}"
    aside: list[str] = []
    ran = spaces + len(told.of.inputs.unseen)  # line 2 names those that were not looked at
    of_all = f" of {number(ran)}" if ran > spaces else ""
    if of_all or spaces > 1:
        whole += f" in {number(spaces)}{of_all} processes"
    if spaces > 1:
        others = [f"rss_sum {told.total / divisor:,.1f}"] if sums.pss is not None else []
        others += [f"distinct {sums.distinct / divisor:,.1f}"] if sums.distinct is not None else []
        aside += [", ".join(others)] if others else []
    if composition := of_peak(told):
        aside.append(composition)
    whole += f" ({'; '.join(aside)})" if aside else ""
    of = "of rss_sum " if spaces > 1 and sums.pss is not None and not by_pss else ""
    return f"{whole}: {of}{', '.join(parts)}{more}"


def first_lines(told: Blame) -> list[str]:
    """The answer, or why there is none; how complete it is; what the records lack, with what lifts that."""
    pages = told.total > 0
    return [answer(told) if pages else why_no_pages(told), completeness(told, pages=pages), *told.of.info.obstacles]


def why_no_pages(told: Blame) -> str:
    """Why no page is known to be there, and what lifts it."""
    of = told.of
    if of.info.incomplete:
        return "no resident pages are in what is left of the trace"
    ended = np.intersect1d(of.inputs.unseen, of.inputs.ends.space)
    if not len(ended) or len(ended) < len(of.inputs.unseen):  # one that lives could have been looked at
        return f"no resident pages are in the trace: record with {_LOOK}, which looks at them while it runs"
    first = printable(of.name_of(int(ended[0])), NAME_LIMIT)
    more = f" and {number(len(ended) - 1)} more" if len(ended) > 1 else ""
    whose = "their" if more else "its"
    return f"no resident pages are known: {first}{more} ended before {whose} memory was looked at"


def of_peak(told: Blame) -> str:
    """`composition of 298.0 of 310.0 MiB, 96%`: how much of the peak was seen, and how to see it; "" = all of it."""
    peak = told.of.inputs.of_peak
    if not peak or told.kinds or told.total >= _WHOLE * peak:
        return ""
    unit, divisor = unit_of(told.total)
    share = told.total / peak
    text = f"composition of {told.total / divisor:,.1f} of {peak / divisor:,.1f} {unit}, {share:.0%}"
    if share >= _SEEN:
        return text
    looked = "peak_snapshot" in told.of.info.extra
    return f"{text}, not seen whole" if looked else f"{text}; for the peak record with {_LOOK}"


def moment_words(moment: str, *, several: bool = False) -> str:
    """The moment of a composition, as a sentence has it."""
    if moment == "last look":
        return "at the last look at each" if several else "at the last look"  # they do not end at once
    return {"exit": "at the exit", "peak": "at the peak", "start": "at the start", "now": "now",
            "end": "at the end", "time": "at that time"}.get(moment, f"at {moment}")  # fmt: skip


def moment_of_both(found: Comparison) -> str:
    """The moment as moment_words() tells it of each run; where these differ, that which was asked for, and both."""
    if not found.whole:
        return "at the peak, as the system counts it"
    runs = (found.first, found.second)
    told = [moment_words(run.inputs.moment, several=run.processes > 1) for run in runs]
    if told[0] == told[1]:
        return printable(told[0], NAME_LIMIT)
    each = ", ".join(f"{run.name} {words}" for run, words in zip(runs, told, strict=True))
    return printable(f"{moment_words(str(found.moment))} ({each})", 3 * NAME_LIMIT)


def _by(row: BlameRow) -> str:
    label = name_of(row.label)
    few = f" ({plural(row.samples, 'sample')})" if 0 < row.samples <= _FEW else ""
    return label if row.reason else f"by {label}{few}"


def name_of(label: str) -> str:
    """A label as a sentence has it."""
    label = label.removesuffix(NO_LINE)
    if label.startswith("(package ") or label.startswith("(standard "):
        label = label[1:].removesuffix(")")
    return printable(label, NAME_LIMIT)


def completeness(told: Blame, *, pages: bool = True) -> str:
    """`complete: 27,490 faults, 0 lost`, or what is missing."""
    of = told.of
    faults = len(of.history.faults)
    unknown = sum(row.resident for row in told.rows("line") if row.reason)
    words = []
    if of.lost:
        words.append(f"{plural(of.lost, 'record')} lost")
    if of.incomplete:
        words.append(printable(of.incomplete))
    if of.past.stacks_lost:
        words.append(f"{plural(of.past.stacks_lost, 'sampled stack')} lost")
    if of.sampled > 1:
        words.append(f"only one of {of.sampled} faults was recorded")
    if of.assumed:
        words.append(f"not recorded: what was {', '.join(of.assumed)}: rows may hold bytes of an older owner")
    if len(of.inputs.unseen) and told.total:
        words.append(_not_looked_at(told))
    if told.of.inputs.swapped:
        words.append(f"{size(of.inputs.swapped * of.page_size)} swapped out")
    head = (
        f"{plural(faults, 'fault')}, {number(of.lost)} lost"
        if not words
        else f"{plural(faults, 'fault')}; {'; '.join(words)}"
    )
    share = unknown / max(told.total, 1)
    sums = told.sums
    lack = [name for name, value in (("pss", sums.pss), ("distinct", sums.distinct)) if value is None]
    whole = f"; {' and '.join(lack)} not known: {printable(sums.why)}" if lack and sums.processes > 1 else ""
    if not pages:
        return f"{'complete: ' * (not words)}{head}"
    return f"{'complete: ' * (not words)}{head}; {size(unknown)} ({share:.1%}) without a known owner{whole}"


def _not_looked_at(told: Blame) -> str:
    """`3 processes not looked at (2 z, cc1)`: they had ended before a look, or began after it."""
    unseen = told.of.inputs.unseen
    names = Counter(printable(told.of.program_of(space), 16) for space in unseen.tolist())
    shown = [f"{number(n)} {name}" if n > 1 else name for name, n in names.most_common(_TOLD)]
    shown += ["..."] * (len(names) > _TOLD)
    return f"{number(len(unseen))} process{'es' * (len(unseen) > 1)} not looked at ({', '.join(shown)})"

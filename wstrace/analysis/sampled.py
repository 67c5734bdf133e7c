"""Of how many faults the records of a sampled trace are: as the kernel counted them, else as the records stand for."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from wstrace.analysis.summary import Row, Summary
from wstrace.analysis.tally import NO_SAMPLE
from wstrace.ledger import Ledger
from wstrace.schema import PAGE_FAULT
from wstrace.text import number, plural
from wstrace.trace_info import TraceInfo

#: An estimate from samples is off by chance by less than so many standard errors, or by less than this share.
_STANDARD_ERRORS, _SHARE = 3, 0.01
#: Stages of the ledger for samples that were made and are not in the trace.
_LOST = ("lost_kernel", "lost_tracer", "foreign_clock")


class Estimates(NamedTuple):
    """What makes estimates of rows of samples; total: of how many faults these are, as the kernel counted them."""

    total: int

    def rows(self, rows: list[Row]) -> list[Row]:
        """All rows of a table as estimates that sum to the total, the most first; what has no sample comes last."""
        found = []
        for row in rows:
            major = round(row.in_all * row.major / max(row.total, 1))
            found.append(row._replace(total=row.in_all, minor=row.in_all - major, major=major,
                                      share=row.in_all / max(self.total, 1), samples=row.total))  # fmt: skip
        if (rest := self.total - sum(row.total for row in found)) > 0:
            found.append(Row(NO_SAMPLE, rest, rest, 0, rest / max(self.total, 1), (NO_SAMPLE,)))
        return sorted(found, key=lambda row: (row.label == NO_SAMPLE, -row.total, row.label))


def estimates(summary: Summary, info: TraceInfo, ledger: Ledger, seen: int) -> Estimates | None:
    """What the rows of a summary are estimates of; None = each fault was recorded."""
    if summary.in_all == summary.total:
        return None
    return Estimates(max(_counted(summary, info, ledger, seen), summary.in_all))


def rates_differ(summary: Summary, info: TraceInfo) -> bool:
    """Whether some rows stand for more faults than others."""
    return summary.in_all not in (summary.total, summary.total * info.sampled)


def how_sampled(text: str, summary: Summary, info: TraceInfo) -> str:
    """`9,700 faults sampled, 1 in 10 (about 97,000 in all)`, where `text` is `9,700 faults`, of all or of some."""
    if not _sampled(summary, info):
        return text
    return f"{text} {_rate(summary, info)} (about {number(_stand_for(summary, info))} in all)"


def of_all(summary: Summary, info: TraceInfo, ledger: Ledger, seen: int) -> str:
    """`122 of 24,062 faults sampled, 1 in 100`; "" = the trace is not sampled, or no count of its faults is known."""
    if not (counted := _counted(summary, info, ledger, seen)):
        return ""
    return f"{number(summary.total)} of {plural(counted, 'fault')} {_rate(summary, info)}"


def not_stood_for(summary: Summary, info: TraceInfo, ledger: Ledger, seen: int) -> list[str]:
    """How many faults have no sample that stands for them, in words; [] = no more than chance explains.

    The kernel counts up to the next sample for each thread anew: the last faults of each have none.
    """
    counted = _counted(summary, info, ledger, seen)
    lacking = counted - _explained(summary, info, ledger)
    if not counted or lacking <= _chance(summary, info, counted):
        return []
    told = f"about {plural(round(lacking), 'fault')} have no sample that stands for them"
    return [f"{told} (possible reason: they are of processes that ended soon)"]


def _counted(summary: Summary, info: TraceInfo, ledger: Ledger, seen: int) -> int:
    """The kernel's count of the faults of which the summary has samples; 0 = not known.

    A filter, or a part of a trace, has some of them only; and a count below what the samples stand for is of others.
    """
    counted, whole = ledger.get("counted"), ledger.get("recorded", PAGE_FAULT.name) in (0, seen)
    if not _sampled(summary, info) or summary.total != seen or not whole:
        return 0
    return counted if _explained(summary, info, ledger) - counted <= _chance(summary, info, counted) else 0


def _explained(summary: Summary, info: TraceInfo, ledger: Ledger) -> float:
    """For how many faults the samples stand, with those that were lost."""
    return _stand_for(summary, info) + sum(map(ledger.get, _LOST)) * _every(summary, info)


def _chance(summary: Summary, info: TraceInfo, counted: int) -> float:
    """By how many faults an estimate of so many may be off without any other reason."""
    return max(_STANDARD_ERRORS * sqrt(counted * _every(summary, info)), counted * _SHARE)


def _sampled(summary: Summary, info: TraceInfo) -> bool:
    return info.sampled > 1 or rates_differ(summary, info)


def _stand_for(summary: Summary, info: TraceInfo) -> int:
    return summary.in_all if rates_differ(summary, info) else summary.total * info.sampled


def _every(summary: Summary, info: TraceInfo) -> float:
    """One out of how many faults was recorded, on average."""
    return _stand_for(summary, info) / summary.total if summary.total else info.sampled


def _rate(summary: Summary, info: TraceInfo) -> str:
    if rates_differ(summary, info):
        return f"sampled, 1 in {_every(summary, info):,.1f} on average"
    return f"sampled, 1 in {number(info.sampled)}"

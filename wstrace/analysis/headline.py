"""The first lines of a report: the answer, how complete it is, what prevented more, and what was lost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from wstrace.analysis.filter import Filter
from wstrace.analysis.own import OwnRule
from wstrace.analysis.peak_words import NAME_LIMIT as NAME_LIMIT
from wstrace.analysis.peak_words import of_peak
from wstrace.analysis.place_counts import PlaceCounts
from wstrace.analysis.recorded_look import as_of_the_look
from wstrace.analysis.sampled import how_sampled, not_stood_for, of_all
from wstrace.analysis.snapshots import MAX_PROCESSES
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.stacks import StackCounts
from wstrace.analysis.summary import Summary
from wstrace.analysis.symbols import UNKNOWN, Symbolizer
from wstrace.ledger import Ledger
from wstrace.schema import HOW_LOST, HOW_UNKNOWN, PAGE_FAULT, STACK_HOW
from wstrace.text import base_name, duration, number, plural, printable, printable_words, size
from wstrace.trace_info import NOT_SAVED, TraceInfo

#: Rows of the ledger that are already in the second line, or in the tables of stacks.
_TOLD = {"counted", "recorded", "sampled", "unaccounted", "without_stack"}
SENTENCE_LIMIT = 240
#: The number of files whose missing names are listed singly.
_MOST_REASONS = 3
#: Why a fault that had a Python stack stands without it, as the ledger's `without_stack` names it.
_STACK_LOST = [STACK_HOW[how] for how in (HOW_LOST, HOW_UNKNOWN)]
#: Line 2 mentions faults at addresses without a known mapping from one fault in this many on.
_NAMELESS_SHARE = 100
#: from this share of all faults on, the first line names the own line with most faults instead of the file
_ANSWERS = 0.1


def name(text: str) -> str:
    """A name from outside, short and safe."""
    return printable(base_name(text), NAME_LIMIT)


def answer(
    summary: Summary,
    info: TraceInfo,
    filter: Filter,  # noqa: A002
    seen: int,
    line: tuple[str, bool] = ("", False),
    ledger: Ledger | None = None,
) -> str:
    """Line 1: `peak 412.6 MiB resident; 96,113 faults, 214 from disk; most in libtorch_cpu.so`.

    Args:
        summary: the counts of what passed the filter.
        info: the description of the trace.
        filter: the filter that was applied.
        seen: the number of faults before the filter.
        line: the own line with the most faults, and whether it is told instead of the file with the most; "" = none.
        ledger: that of the trace, for how many faults a sampled one is of; None = that is estimated.
    """
    if only_snapshots(summary, info, seen):
        return _held(summary, info)
    parts = [peak] if (peak := of_peak(summary, info)) else []
    parts.append(_faults(summary, info, filter, seen, ledger))
    if counters(summary, info):
        if resident := summary.resident():
            parts.append(f"most resident in {name(resident[0][0])}")
    elif (resident := summary.resident()) and not line[1] and _tells_the_peak(summary, info):
        parts.append(f"most resident in {name(resident[0][0])}{_asker(summary, resident[0][0])}")
    elif (files := summary.top("file", 1)) and not line[1]:
        parts.append(f"most in {name(files[0].label)}{_asker(summary, files[0].label)}")
    parts += [line[0]] * bool(line[0])
    if info.exit_signal:
        parts.append(f"killed by {printable(info.exit_signal, NAME_LIMIT)}")
    level = info.level_name
    return "; ".join(parts) + (f" [level {printable(level, NAME_LIMIT)}]" if level != "full" else "")


def most_of(
    counts: StackCounts,
    rule: OwnRule | None = None,
    symbolizer: Symbolizer | None = None,
    shorten: Callable[[str], str] = lambda label: printable(label, NAME_LIMIT),
    *,
    views: StackViews | None = None,
) -> tuple[str, bool]:
    """`58 % parse_record leak.py:12`: the own line with most faults, "" = none; and whether it is the answer.

    Where only samples have a stack it is an estimate: `about 58 % parseRecord leak.js` of all faults, as its row says,
    and none where those that samples stand for are less than half of all: the others may be of anything. It is none,
    too, where it may be off by all of it. rule, symbolizer, views: as of StackCounts.table().
    """
    if not counts.python and not counts.native:
        return "", False
    native = not counts.python
    rows = counts.table("line", rule, symbolizer, native=native, views=views)
    with_stack = [row for row in rows if row.has_stack]
    own = [row for row in with_stack if row.frames and row.frames[0].own]
    if native and not own:
        return "", False
    if not with_stack or (native and 2 * sum(row.total for row in with_stack) < counts.total):
        return "", False
    # an own line before a package
    best = own[0] if own else next((row for row in with_stack if row.frames), with_stack[0])
    if best.by_chance:
        return "", False
    share, told = best.total / max(counts.total, 1), ""
    if 2 * counts.foreign > counts.total and not native:  # a script of a shell that ends in a Python program
        share = best.total / max(counts.total - counts.foreign, 1)
        told = " of Python's"
    label = shorten(printable(best.label))
    return f"{'about ' * native}{share * 100:.0f} %{told} {label}", best is rows[0] or share >= _ANSWERS


def _tells_the_peak(summary: Summary, info: TraceInfo) -> bool:
    """Whether the first of `resident()` was so at the peak, too: a process may free its memory before it ends.

    What the snapshots of all processes lack of the peak can be the second one's.
    """
    if len(summary.snapshots) < summary.processes:
        return False
    first, second = [pages for *_, pages in [*summary.resident()[:2], ("", "", 0), ("", "", 0)]][:2]
    held = sum(one.pages for one in summary.snapshots)
    lacks = (info.usage.peak_resident_bytes or 0) / info.page_size - held if info.page_size else 0
    return first >= second + lacks


def only_snapshots(summary: Summary, info: TraceInfo, seen: int) -> bool:
    """Whether the trace holds resident pages, and no source of faults was part of it."""
    return bool(summary.snapshots) and not seen and info.level is None


def _held(summary: Summary, info: TraceInfo) -> str:
    """`180.1 MiB resident in gunicorn (26221); peak 202.5 MiB resident; most in [heap]`."""
    held = summary.snapshots
    most = max(held, key=lambda one: one.pages)
    owner = most.name or (info.command[0] if info.command and info.targets[:1] == (most.pid,) else "")
    whose = f"{printable(owner, NAME_LIMIT) or UNKNOWN} ({most.pid})"
    amount = size(most.pages * info.page_size) if info.page_size else plural(most.pages, "page")
    if len(held) == 1:
        parts = [f"{amount} resident in {whose}"]
    else:
        parts = [f"{number(len(held))} processes with resident pages, the most {amount} in {whose}"]
    if (info.usage.peak_resident_bytes or 0) > most.pages * info.page_size:
        parts.append(of_peak(summary, info))
    if resident := summary.resident():
        parts.append(f"most in {name(resident[0][0])}")
    return "; ".join(parts)


def nothing(summary: Summary, filter: Filter, seen: int, info: TraceInfo) -> str:  # noqa: A002
    """Why there is no table: the filter selects something that the trace lacks; "" if there are rows."""
    if summary.total or not seen or not filter:
        return ""
    if hint := filter.nearest_file:
        return f"no page lies in {printable(filter.file, NAME_LIMIT)}: {printable(hint)}"
    if (filter.tids or not summary.resident()) and (there := filter.other_numbers):
        return there
    if filter.hard:
        return "no sampled fault was read from disk" if info.sampled > 1 else "no fault read from disk"
    return "" if summary.resident() else "no such fault"


def _asker(summary: Summary, file: str) -> str:
    """For `[heap]`, `[anon]` ...: the module that requested most of it, which says more than the label."""
    if not file.startswith("[") or file == UNKNOWN:
        return ""
    pair = next((row.key for row in summary.top("pair", 100) if row.key[0] == file), ())
    return f" (by {name(str(pair[1]))})" if len(pair) == 2 and pair[1] != file else ""


def counters(summary: Summary, info: TraceInfo) -> bool:
    """Whether the system provided counts only: no address, no instruction, no thread."""
    return info.level_name == "counters" and not summary.total


def _faults(summary: Summary, info: TraceInfo, filter: Filter, seen: int, ledger: Ledger | None) -> str:  # noqa: A002
    if counters(summary, info):
        return f"{plural(info.usage.faults or 0, 'fault')}, {number(info.usage.major or 0)} from disk"
    if info.incomplete and not seen:
        return "no fault is in what is left of the trace"
    text = plural(summary.total, "fault")
    if filter:
        text = f"{number(summary.total)} of {plural(seen, 'fault')} ({printable(str(filter), NAME_LIMIT)})"
    if ledger is not None and not filter and (counted := of_all(summary, info, ledger, seen)):
        # They have a counter of their own: fewer of them than one period have no sample.
        major = max(ledger.get("counted", "major"), summary.major)
        return f"{counted}, {number(major)}{' of all' * bool(major)} from disk"
    return f"{how_sampled(text, summary, info)}, {number(summary.major)} from disk"


def completeness(summary: Summary, info: TraceInfo, ledger: Ledger, seen: int, *, full: bool = True) -> str:
    """Line 2: `complete: 96,113 faults, 0 lost`, or the sum that shows what is missing, and times.

    Args:
        summary, info, ledger: those of the trace.
        seen: the number of faults before any filter.
        full: include all figures even if nothing is missing.
    """
    usage, counted = info.usage.faults, ledger.get("counted")
    hidden = max(usage - counted, 0) if usage and counted else 0
    recorded = ledger.get("recorded", PAGE_FAULT.name) or seen
    terms = [("recorded", recorded), ("lost", ledger.get("lost_kernel"))]
    terms += [(word, n) for word in ("lost_tracer", "foreign_clock", "unaccounted") if (n := ledger.get(word))]
    told = [note for note in info.notes if not note.startswith(f"{number(hidden)} ")]
    missing = (
        told or info.incomplete or ledger.losses() or len(terms) > 2 or info.level_name != "full" or info.sampled > 1
    )
    if only_snapshots(summary, info, seen) and not recorded and not counted:
        parts = ["resident pages only: it holds no faults"]
        parts += [printable_words(info.incomplete, SENTENCE_LIMIT)] if info.incomplete else []
        parts += [f"{_account(info)} {number(usage)}"] if usage else []
        parts += _not_visible(info, hidden)
    elif not full and not missing and recorded == counted:
        parts = [f"complete: {plural(recorded, 'fault')}, 0 lost"]
        parts += [*_nameless(ledger, recorded), *_stackless(ledger)]
        parts += [f"{number(hidden)} not visible (-v: why)"] if hidden else []
        return "; ".join([*parts, *_as_at_a_look(summary, info), *_resident_unknown(summary)])
    else:
        parts = [_sum(terms, counted, info), *_nameless(ledger, recorded), *_stackless(ledger)]
        if counters(summary, info):
            parts = [f"counted {number(counted)}, none recorded one by one"]
        parts += [printable_words(info.incomplete, SENTENCE_LIMIT)] if info.incomplete else []
        parts += [f"{_account(info)} {number(usage)}"] if usage is not None else []
        parts += _not_visible(info, hidden)
        parts.append(f"level {printable(info.level_name, NAME_LIMIT)}")
    parts += not_stood_for(summary, info, ledger, seen)
    if summary.last_ns > summary.first_ns:
        parts.append(f"first to last fault: {duration((summary.last_ns - summary.first_ns) / 1e9)}")
    return "; ".join([*parts, *_when_resident(summary, info)])


def _account(info: TraceInfo) -> str:
    """The names of where the system accounts the faults of what was traced."""
    return " + ".join(printable(name, NAME_LIMIT) for name in info.accounts[:3])


def _sum(terms: list[tuple[str, int]], counted: int, info: TraceInfo) -> str:
    """`recorded 96,000 + lost 113 = counted 96,113`."""
    text = " + ".join(f"{word.replace('_', ' ')} {number(n)}" for word, n in terms)
    if counted and info.sampled == 1:
        of_all = sum(n for _, n in terms)
        if info.incomplete and of_all > counted:  # a session that was killed left rows and no count
            return f"{text}; counted {number(counted)} of a part of these"
        text += f" {'=' if of_all == counted else '!='} counted {number(counted)}"
    return text


def _when_resident(summary: Summary, info: TraceInfo) -> list[str]:
    """The process and the time of the resident pages."""
    parts = []
    if info.final_snapshot is not None:
        whose = "its" if info.exit_code is not None else "the trace's"
        parts.append(f"resident pages of process {info.final_snapshot} as at {whose} end")
    if info.snapshot_age_ms is not None and summary.resident():
        of = "resident pages" if info.final_snapshot is None else "those of others"
        parts.append(f"{of} as of {duration(info.snapshot_age_ms / 1e3)} before the end")
    return [*parts, *_as_at_a_look(summary, info), *_resident_unknown(summary)]


def _as_at_a_look(summary: Summary, info: TraceInfo) -> list[str]:
    """That the pages of processes that were not read at their end are those of the largest look, or a recording's."""
    others = any(one.pid != info.final_snapshot for one in summary.snapshots)
    if not others or not summary.resident() or info.snapshot_age_ms is not None:
        return []
    when = as_of_the_look(info.extra) or "as at the peak" * ("peak_snapshot" in info.extra)
    return [f"resident pages{' of others' if info.final_snapshot is not None else ''} {when}"] * bool(when)


def _resident_unknown(summary: Summary) -> list[str]:
    """The processes whose resident pages are not known, although there was a snapshot of them."""
    parts = []
    if cut := summary.cut_snapshots:
        whose = f"process {cut[0]}" if len(cut) == 1 else f"{number(len(cut))} processes"
        parts.append(f"resident pages of {whose} not known: the snapshot is cut")
    if forgotten := summary.forgotten_snapshots:
        processes = f"{number(forgotten)} process{'es' if forgotten > 1 else ''}"
        parts.append(f"resident pages of {processes} not known: those of {number(MAX_PROCESSES)} are held")
    return parts


def _not_visible(info: TraceInfo, hidden: int) -> list[str]:
    """What the trace cannot show: by how much the system's account exceeds the counts, and the sources' reasons."""
    reasons = [printable_words(reason, SENTENCE_LIMIT) for reason in info.notes]
    count = number(hidden) if hidden else ""
    if not count:
        return [f"not visible: {', '.join(reasons)}"] if reasons else []
    numbered = [reason for reason in reasons if reason[:1].isdigit()]
    proven = [reason.removeprefix(f"{count} ") for reason in numbered]
    others = ", ".join(reason for reason in reasons if not reason[:1].isdigit())
    rest = hidden - sum(_leading_number(reason) for reason in numbered)
    words = [*proven, *([f"{number(rest)} of which the reason is not known"] if numbered and rest > 0 else [])]
    words += [f"possible reasons: {others}"] if others and rest > 0 else []
    told = f"not visible: {count} ({', '.join(words) or 'reason not known'})"
    return [f"{told}, and {others}" if others and rest <= 0 else told]


def _leading_number(reason: str) -> int:
    digits = reason.partition(" ")[0].replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0


def _nameless(ledger: Ledger, recorded: int) -> list[str]:
    """How many faults have no known mapping, in words; [] unless these are so many that tables by file mislead."""
    n = ledger.get("unresolved", "va")
    if n * _NAMELESS_SHARE < recorded or not n:
        return []
    return [f"what lies at the addresses of {number(n)} of them is not known"]


def _stackless(ledger: Ledger) -> list[str]:
    """How many stacks were lost, in words: of sampled ones the faults stand without one, or under the next one."""
    sampled = ledger.get("stacks_lost")
    python = sum(ledger.get("without_stack", why) for why in _STACK_LOST)
    return [
        *[f"{plural(sampled, 'sampled stack')} lost"] * bool(sampled),
        *[f"the Python stacks of {number(python)} of them lost"] * bool(python),
    ]


def obstacles(info: TraceInfo) -> list[str]:
    """Line 3 at a lower level, `level counters: why; to lift it: command`, and one line per thing that records lack."""
    without = [f"without {printable_words(what, SENTENCE_LIMIT)}" for what in info.lacking]
    level = info.level
    if level is None or level.name == "full":
        return without
    why, remedy = printable(level.why), printable(level.remedy)
    text = f"level {printable(level.name, NAME_LIMIT)}: {why or 'the system gives no more'}"
    return [f"{text}; to lift it: {remedy}" if remedy else text, *without]


def losses(ledger: Ledger, *, only_loss: bool = False) -> list[tuple[str, bool]]:
    """(line, whether it is a loss) for each non-zero row of the ledger that is not in line 2; losses first."""
    found = []
    for stage, who, n in ledger.rows():
        lost, words = ledger.is_loss(stage), printable_words(ledger.words(stage), SENTENCE_LIMIT)
        if n and stage not in _TOLD and (lost or not only_loss):
            of = f" ({printable(who, NAME_LIMIT)})" if who else ""
            found.append((f"{'lost' if lost else 'note':4}  {number(n):>11}  {words}{of}", lost))
    return sorted(found, key=lambda row: not row[1])


def unnamed(places: PlaceCounts) -> list[str]:
    """A line with the number of faults without a name in a table by section or function, and why; the most first."""
    found = sorted(places.unnamed.items(), key=lambda item: (-item[1], item[0]))
    if not found:
        return []
    told = [f"{name(module)} {printable(why, NAME_LIMIT)}" for (module, why), _ in found[:_MOST_REASONS]]
    if len(found) > 1:
        told = [f"{text} ({number(n)})" for text, (_, n) in zip(told, found, strict=False)]
    told += [f"and {plural(more, 'more file')}"] if (more := len(found) - len(told)) else []
    return [f"note  {number(sum(places.unnamed.values())):>11}  faults without a {places.by}: {', '.join(told)}"]


def next_step(summary: Summary, info: TraceInfo, by: str = "function") -> str:
    """The last line of a live trace: where it is saved and which table to ask for next, or how to save it."""
    if info.incomplete:
        return f"output incomplete: {printable_words(info.incomplete, SENTENCE_LIMIT)}"
    if not info.saved:
        why = info.extra.get(NOT_SAVED)
        return f"not saved: {printable(why, SENTENCE_LIMIT) if isinstance(why, str) else 'add -o FILE'}"
    path = printable(info.saved)
    if path == "-":
        return "saved to stdout"
    return f"saved {path}; next: wstrace report {_word(path)}{'' if counters(summary, info) else f' --by {by}'}"


def _word(path: str) -> str:
    """The path as one word of a command line, of which a shell expands nothing."""
    if os.sep == "/" and re.search(r"[^\w@%+=:,./ -]", path):
        import shlex  # 0.4 ms, which no start pays for a name that needs it

        return shlex.quote(path)
    return f'"{path}"' if " " in path else path

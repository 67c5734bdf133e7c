"""What `report --format lines` and `jsonl` print: `VA PC owner via module` for each fault, or a JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wstrace import schema
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.filter import Filter
from wstrace.analysis.frames import Frames, stack_reason
from wstrace.analysis.own import OwnRule
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch
from wstrace.interfaces import Place
from wstrace.text import json_safe, printable, well_formed

#: the columns of a fault from which its stack is made; they have no key of their own
COLUMNS = ("stack", "stack_how", "native_stack", "native_how")
_CACHED = 1 << 14  # stacks whose text is cached


class Stacks:
    """The keys `stack`, `stack_reason` and `stack_truncated` as text, made once for each distinct stack.

    frames: names the frames.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._texts: dict[tuple[int, ...], str] = {}
        self._sites = 0

    def text(self, row: dict[str, Any]) -> str:
        """`,"stack":[...]` of a row of columns; "" of one without any of COLUMNS."""
        if not any(name in row for name in COLUMNS):
            return ""
        key = tuple(row.get(name, -1) for name in COLUMNS)
        if len(self._frames.tree) != self._sites or len(self._texts) > _CACHED:
            self._sites = len(self._frames.tree)
            self._texts.clear()
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = "," + json.dumps(json_safe(self._keys(*key)), separators=(",", ":"))[1:-1]
        return found

    def _keys(self, python: int, how: int, native: int, native_how: int) -> dict[str, Any]:
        tree = self._frames.tree
        inner, outer = tree.stack(max(python, 0)), tree.stack(max(native, 0))
        frames = self._frames.interleaved(python, native) if inner and outer else self._frames.all(inner or outer)
        how_by_kind = {"python": how, "native": native_how, "kernel": native_how, "jit": native_how}
        shown = []
        for frame in frames:
            one = frame.as_dict()
            if 0 < (number := how_by_kind.get(frame.kind, 0)) < len(schema.STACK_HOW):
                one["how"] = "not checked" if frame.doubt else schema.STACK_HOW[number]
            shown.append(one)
        keys: dict[str, Any] = {"stack": shown or ([] if how == schema.HOW_NO_PYTHON else None)}
        if not inner and (how >= 0 or not outer):
            keys["stack_reason"] = stack_reason(how if how >= 0 else native_how)
        if any(frame.flags & schema.FRAME_CUT for frame in frames):
            keys["stack_truncated"] = True
        return keys


#: Keys of a JSON line that are combined from several columns, or from bits.
_MADE = frozenset(("major", "kernel", "access", "observer", "owner", "via"))
#: Columns with their own key in a JSON line, or behind the keys above: `owner` and `via` describe mappings.
_PLACED = frozenset(("time_ns", "pid", "tid", "va", "pc", "flags", "kind", "mapping", "pc_mapping", *COLUMNS))

#: The number of rows that become text at once, which bounds the memory for a large batch.
ROWS = 8192


def lines_of(batches: Iterable[Batch], symbolizer: Symbolizer, chosen: Filter, *, as_json: bool) -> Iterator[str]:
    """Blocks of lines, one for each chosen fault, of all batches of a trace in their order."""
    tree = CallTree()
    stacks = Stacks(Frames(tree, OwnRule(), symbolizer))
    for batch in batches:
        if symbolizer.learn(batch) or tree.learn(batch) or batch.schema.name != schema.PAGE_FAULT.name:
            continue
        faults = chosen.apply(batch)
        yield from json_lines(faults, symbolizer, stacks) if as_json else text_lines(faults, symbolizer)


def text_lines(batch: Batch, symbolizer: Symbolizer) -> Iterator[str]:
    """Blocks of lines such as `7f3a1c2b3000 7f3a1d001234 libc.so.6!.text(14) via libpython3.11.so.1.0!.text(12)`."""
    for part in _parts(batch):
        owners = symbolizer.of(part, "va", "mapping", "file")
        modules = symbolizer.of(part, "pc", "pc_mapping", "pc_file")
        yield "".join(
            f"{va:012x} {pc:012x} {text_of(owner)} via {text_of(module)}\n"
            for va, pc, owner, module in zip(part["va"].tolist(), part["pc"].tolist(), owners, modules, strict=True)
        )


def json_lines(batch: Batch, symbolizer: Symbolizer, stacks: Stacks) -> Iterator[str]:
    """Blocks of JSON lines; the keys are documented in docs/console.md."""
    others = [c for c in batch.schema.columns if c.name in batch and c.name not in _PLACED | _MADE]
    for part in _parts(batch):
        columns = {name: part[name].tolist() for name in part}
        owners = symbolizer.of(part, "va", "mapping", "file")
        modules = symbolizer.of(part, "pc", "pc_mapping", "pc_file")
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        yield "".join(
            json.dumps(_fault(row, part, others), separators=(",", ":"))[:-1]
            + f'{stacks.text(row)},"owner":{_json(owner)},"via":{_json(module)}}}\n'
            for row, owner, module in zip(rows, owners, modules, strict=True)
        )


def _fault(row: dict[str, Any], batch: Batch, others: Iterable[schema.Column]) -> dict[str, Any]:
    flags = row["flags"]
    fault: dict[str, Any] = {key: row[key] for key in ("time_ns", "pid", "tid") if key in row}
    fault |= {"va": f"{row['va']:#x}", "pc": f"{row['pc']:#x}", "major": bool(flags & schema.FAULT_MAJOR)}
    fault["kernel"] = bool(flags & schema.FAULT_PC_KERNEL)
    if flags & schema.FAULT_ACCESS_KNOWN:
        fault["access"] = (
            "write" if flags & schema.FAULT_WRITE else "execute" if flags & schema.FAULT_EXECUTE else "read"
        )
    if flags & schema.FAULT_OBSERVER:
        fault["observer"] = True
    if "kind" in row:
        fault["kind"] = schema.KINDS[row["kind"]] if row["kind"] < len(schema.KINDS) else schema.KINDS[0]
    for column in others:
        number = row[column.name]
        if number or column.semantic not in schema.ID_SPACES:  # 0 = unknown in every id space
            fault[column.name] = _value(column, number, batch)
    return fault


def _value(column: schema.Column, number: int, batch: Batch) -> int | str:
    """The value of a column in a JSON line, by the column's meaning."""
    if column.semantic == "addr":
        return f"{number:#x}"
    if column.semantic == "str":
        return well_formed(batch.strings[number]) if number < len(batch.strings) else ""
    return number


def text_of(place: Place | str) -> str:
    """The text of a place for people and other programs: one line, well-formed."""
    return printable(str(place))


def json_of(place: Place | str) -> Mapping[str, Any]:
    """The keys of a place in a JSON line: module, section, number, address (hex) as far as known."""
    if isinstance(place, str):
        return {"module": well_formed(place)}
    found: dict[str, Any] = {"module": well_formed(place.module), "address": f"{place.address:#x}"}
    if place.number:
        found |= {"section": well_formed(place.section), "number": place.number}
    if place.function:
        found |= {"function": well_formed(place.function), "displacement": place.displacement}
    return found


def _json(place: Place | str) -> str:
    """JSON in ASCII: C1 control characters and bidirectional marks are escaped as well."""
    return json.dumps(json_of(place), separators=(",", ":"))


def _parts(batch: Batch) -> Iterator[Batch]:
    for start in range(0, len(batch), ROWS):
        yield batch.take(slice(start, start + ROWS))

"""OpenTelemetry carries stacks only where they were requested; then each fault's, in its event."""

from collections import Counter
from typing import Any

from kit.otel_scripted import NOW, otel, run, started
from kit.stacks_scripted import Fault, Stacks
from receiver import Receiver, logs, plain

from wstrace.batch import Batch, Dictionary
from wstrace.schema import HOW_NOT_YET, MAPPING, STACK_COLUMNS
from wstrace.testing import batch_of

WORK, MAIN = ("work", "/srv/secret/app.py", 12), ("<module>", "/srv/secret/app.py", 40)
LOADS = ("loads", "/usr/lib/python3.11/json/__init__.py", 346)
FAULTS = [
    *[Fault([LOADS, WORK, MAIN], [(1, 0x30), (1, 0x20)], weight=4, pid=4711, flags=1)] * 4,
    *[Fault([MAIN], pid=4711, flags=1)] * 2,
    Fault(None, how=HOW_NOT_YET, pid=4711, flags=1),
]


def batches() -> list[Batch]:
    strings = Dictionary()
    mapping = batch_of(MAPPING, strings, id=1, time_ns=NOW, pid=4711, start=1 << 32, end=1 << 33, offset=0,
                       file="/usr/lib/libx.so", dev=1, ino=1, build_id="abcd", flags=1 << 8)  # fmt: skip
    return [started(), mapping, *Stacks(strings).batches(FAULTS, NOW)]


def events(**options: Any) -> list[dict[str, Any]]:
    with Receiver() as receiver:
        run(otel(receiver, **options), batches())
        return [plain(r.attributes) for _, r in logs(receiver) if r.event_name == "wstrace.page_fault"]


def test_nothing_of_a_stack_is_sent_unless_it_was_requested():
    with Receiver() as receiver:
        run(otel(receiver), batches())
        assert len(receiver.seen) > 0
        sent = b"".join(body for _, _, body in receiver.seen)
    assert b"wstrace" in sent
    for word in (b"app.py", b"loads", b"json", *(name.encode() for name in STACK_COLUMNS[1:4])):
        assert word not in sent


def test_an_event_has_its_own_line_and_its_stack_or_the_reason():
    found = events(stacks=True)
    shown = Counter(
        (e.get("code.function.name"), e.get("code.line.number"), e.get("wstrace.fault.stack.reason")) for e in found
    )
    assert shown == {("work", 12, None): 4, ("<module>", 40, None): 2, (None, None, "interpreter not known yet"): 1}
    assert found[0]["code.file.path"] == WORK[1]
    assert found[0]["code.stacktrace"].splitlines() == [
        f'  File "{MAIN[1]}", line 40, in <module>',
        f'  File "{WORK[1]}", line 12, in work',
        f'  File "{LOADS[1]}", line 346, in loads',
    ]

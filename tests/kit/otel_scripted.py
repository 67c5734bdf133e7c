"""What the tests of the otel exporter share: batches of one traced process, and a session that exports them."""

from typing import Any

from receiver import Receiver

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.schema import PAGE_FAULT, PROCESS
from wstrace.session import Session
from wstrace.testing import ScriptedSource, batch_of
from wstrace_exporters.otel.exporter import OtelExporter

SECRET = "hunter2-very-secret-token"
NOW = now_ns()


def started(pid: int = 4711, name: str = "/usr/bin/demo") -> Batch:
    return batch_of(PROCESS, time_ns=[NOW], pid=[pid], ppid=[1], tid=[pid], event=[1], name=[name], code=[0])


def ended(pid: int = 4711, code: int = 3) -> Batch:
    return batch_of(PROCESS, time_ns=[NOW + 10**9], pid=[pid], ppid=[1], tid=[pid], event=[4], name=[""], code=[code])


def faulted(n: int = 1000, pid: int = 4711, file: str = "/lib/libc.so.6", major_every: int = 100) -> Batch:
    return batch_of(
        PAGE_FAULT, time_ns=[NOW + i for i in range(n)], pid=pid, tid=pid + 1, pc=0x400123,
        va=[0xFFFF_8000_0000_0000 + 4096 * i for i in range(n)], flags=[int(i % major_every == 0) for i in range(n)],
        file=[file if i % 4 else "[heap]" for i in range(n)], pc_file="/usr/bin/demo",
        kind=[1 if i % 4 else 3 for i in range(n)],
    )  # fmt: skip


def run(exporter: OtelExporter | str, batches: list[Batch]) -> Session:
    session = Session(sources=[ScriptedSource(batches)], exporters=[exporter], enrichers=[], record=False)
    session.start()
    session.wait(10)
    session.stop()
    return session


def otel(receiver: Receiver, **options: Any) -> OtelExporter:
    return OtelExporter(to="http", endpoint=receiver.url, providers="own", **options)

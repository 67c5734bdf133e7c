"""Runs a test in a fork of this process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

import pytest

from wstrace.text import json_safe
from wstrace_plugins.pytest import forked_coverage
from wstrace_plugins.pytest.backend import backend
from wstrace_plugins.pytest.reports import fail, report_of


def run_forked(item: pytest.Item, in_child: Callable[[], None]) -> pytest.TestReport:
    """Runs it, with all hooks around its call; `in_child` is called in the child before."""
    if not hasattr(os, "fork"):
        fail("wstrace: isolated='fork' cannot be had: this system has no fork; use isolated='exec'")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        fail(f"wstrace: isolated='fork' cannot be had beside other threads ({', '.join(others[:5])}): a fork has none "
              "of them, and waits for ever for a lock that one holds; use isolated='exec'")  # fmt: skip
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with tempfile.TemporaryFile() as answer, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12 of a fork beside threads of native libraries
        me = os.getpid()
        pid = os.fork()
        if not pid:
            _child(item, in_child, answer.fileno(), me)
        status = _waited(pid)
        answer.seek(0)
        data = answer.read()
    if status or not data:
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        fail(f"wstrace: the child in which the test ran ended early: {how}")
    answered = json.loads(data)
    forked_coverage.add(answered["covered"])
    return report_of(item.config, answered["report"])


def _child(item: pytest.Item, in_child: Callable[[], None], answer: int, parent: int) -> NoReturn:
    """What the forked child does: it calls the test with all hooks around it, and never returns."""
    code, me = 1, os.getpid()
    try:
        backend().end_with(parent)
        in_child()
        gc.collect()
        gc.freeze()  # a later collection writes to no page that the parent has, too
        call = pytest.CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), when="call")
        if os.getpid() != me:  # the test has forked, and this is what it forked
            os._exit(0)
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        answered = {"report": json_safe(data), "covered": forked_coverage.traced()}
        with os.fdopen(answer, "wb", closefd=False) as file:
            file.write(json.dumps(answered, default=str).encode())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = 0
    finally:
        os._exit(code)


def _waited(pid: int) -> int:
    """The exit code of a child, negative for a signal; one that is not waited for to its end is killed."""
    try:
        _, status = os.waitpid(pid, 0)
    except BaseException:  # Ctrl-C, or the timeout of a test
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL"))  # noqa: B009  Windows lacks it
            os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(status)

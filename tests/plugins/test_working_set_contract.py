"""The sources working_set and write_watch keep what every source keeps."""

import os
import sys

import pytest

from wstrace.interfaces import Context
from wstrace.testing import SourceContract
from wstrace_plugins.working_set.source import WorkingSetSource
from wstrace_plugins.write_watch.source import WriteWatchSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux here: the Windows suite has its own")


class TestWorkingSet(SourceContract):
    def make(self) -> WorkingSetSource:
        return WorkingSetSource(interval=0)

    def context(self) -> Context:
        from wstrace_plugins.os.linux.backend import LinuxPlatform

        return Context(targets=(LinuxPlatform().attach(os.getpid()),), children=False)


class TestWorkingSetKeptToTheEnd(TestWorkingSet):
    def make(self) -> WorkingSetSource:
        return WorkingSetSource(interval=0.01)


class TestWriteWatch(SourceContract):
    def make(self) -> WriteWatchSource:
        return WriteWatchSource(interval=0.01)

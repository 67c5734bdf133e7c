"""The contract of every source, kept by page_faults on a process that faults."""

import subprocess
import sys

import pytest

from wstrace.interfaces import Context, Source
from wstrace.testing import SourceContract
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux.backend import PageFaults

BUSY = "import time\nwhile True: bytearray(1 << 20); time.sleep(0.001)"


class TestPageFaults(SourceContract):
    @pytest.fixture(autouse=True)
    def busy(self):
        self.child = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
        yield
        self.child.kill()
        self.child.wait()

    def make(self) -> Source:
        return PageFaults()

    def context(self) -> Context:
        return Context(targets=(platform().attach(self.child.pid),))

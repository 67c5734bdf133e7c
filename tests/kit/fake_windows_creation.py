"""The part of the fake Windows that creates processes."""

from kit.fake_windows_system import FakeSystem, at
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import PROCESS_INFORMATION, STARTUPINFOEXW

_LIST_BYTES = 48
_EXTENDED, _JOB_LIST, _NOT_SUPPORTED = 0x8_0000, 0x2_000D, 50


class FakeCreation(FakeSystem):
    """created: (path, command line, flags, environment) of each process.

    no_job_lists: a Windows before 10. no_jobs_at_creation: the code with which a creation in a job fails. missing: the
    code for programs that cannot be started.
    """

    def __init__(self) -> None:
        super().__init__()
        self.created = []
        self.no_job_lists = False
        self.no_jobs_at_creation = 0
        self.missing = 0
        self._lists = {}  # address -> job

    def _handle(self, of: int) -> int:
        self.opened += 4
        self.handles[self.opened] = (of, 0)
        return self.opened

    def InitializeProcThreadAttributeList(self, attributes: int | None, count: int, flags: int, size: int) -> int:
        """122 and the size for no list."""
        if not attributes:
            at(size, "<u8", 1)[0] = _LIST_BYTES
            return self._fail(winapi.ERROR_INSUFFICIENT_BUFFER)
        assert at(size, "<u8", 1)[0] == _LIST_BYTES
        self._lists[attributes] = 0
        return 1

    def UpdateProcThreadAttribute(
        self, attributes: int, flags: int, which: int, value: int, size: int, old: None, returned: None
    ) -> int:
        """The job; 50 (ERROR_NOT_SUPPORTED) before Windows 10."""
        if self.no_job_lists:
            return self._fail(_NOT_SUPPORTED)
        assert (which, size) == (_JOB_LIST, 8)
        self._lists[attributes] = int(at(value, "<u8", 1)[0])
        return 1

    def DeleteProcThreadAttributeList(self, attributes: int) -> None:
        """It is there no more."""
        del self._lists[attributes]

    def CreateProcessW(
        self, path: str, line: int, process: None, thread: None, inherit: int, flags: int, environment: int | None,
        folder: None, startup: int, made: int,
    ) -> int:  # fmt: skip
        """A process of the next free number, with its two handles."""
        given = at(startup, STARTUPINFOEXW, 1)[0]
        assert flags & _EXTENDED
        assert given["cb"] == STARTUPINFOEXW.itemsize
        assert not inherit
        job = self._lists[int(given["lpAttributeList"])] if given["lpAttributeList"] else 0
        if self.missing or (job and self.no_jobs_at_creation):
            return self._fail(self.missing or self.no_jobs_at_creation)
        born = self.process(100 + len(self.created), parent=1)
        self.created.append((path, _text(line, 1), flags, _text(environment, 2)))
        if job:
            self.jobs[job].members.add(born.pid)
            self.jobs[job].messages.append((6, born.pid))
        row = at(made, PROCESS_INFORMATION, 1)[0]
        row["hThread"], row["dwProcessId"] = self._handle(-1), born.pid
        row["hProcess"] = self._handle(born.pid)
        self.handles[int(row["hProcess"])] = (born.pid, 0xFFFFFFFF)
        return 1

    def TerminateProcess(self, handle: int, code: int) -> int:
        """It has ended."""
        process = self.processes[self._held(handle)[0]]
        process.exited, process.exit_code = True, code
        return 1


def _text(address: int | None, zeros: int) -> str:
    """UTF-16 up to that many zeros, without the last one."""
    if not address:
        return ""
    count = 0
    while at(address + 2 * count, "<u2", zeros).any():
        count += 1
    return at(address, "<u2", count + zeros - 1).tobytes().decode("utf-16-le")

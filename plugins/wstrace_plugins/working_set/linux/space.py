"""An opened process on Linux: pagemap says what pages are, PAGEMAP_SCAN (6.7) where they are, huge and zero ones too.

pagemap costs 34 ns per present and 8 ns per absent page. PAGEMAP_SCAN without PAGE_IS_FILE costs 12 ns per present page
and nothing for an absent table: it finds the windows in which pagemap is read.

An address space that a keeper holds outlives its process: what was resident at the exit can still be read. The target
does not notice: there is no signal and no stop once it runs; its memory is freed only when we release it or end
(keeper.py explains how). Its files in /proc, opened before, also work for a zombie, which a launched target is until
the trace closes.

Source: Linux Documentation/admin-guide/mm/pagemap.rst, Documentation/filesystems/proc.rst; userfaultfd(2);
fs/proc/task_mmu.c.
"""

from __future__ import annotations

import _socket
import os
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Columns, Dictionary
from wstrace.errors import Closing, TargetExited, Unavailable
from wstrace.schema import NOT_RESIDENT
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs, userfaultfd
from wstrace_plugins.working_set.backend import KeeperFailed
from wstrace_plugins.working_set.linux import pagemap_runs, smaps

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SECONDS = 5.0  # for the keeper's answer: it needs 25 ms to start


class Space(Closing):
    """An opened process. Raises TargetExited, Unavailable."""

    page_size = pm.PAGE

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = procfs.stat_with_memory(pid).name
        self._pagemap = pm.Pagemap(pid)
        self.scans = pm.has_scan()

    def mappings(self, strings: Dictionary) -> Columns:
        """The columns start, end, offset, file, dev, ino, flags of schema.ADDRESS_SPACE, sorted by start.

        A column that the system cannot fill is absent.
        """
        return self._maps().of_the_user(strings)

    def runs(self, mappings: Columns, *, shares: bool = False) -> Columns:
        """Runs of adjacent pages with equal attributes, sorted by start, which never cross a mapping's border.

        PAGE_WRITE means that the mapping may be written, PAGE_COPY_ON_WRITE that the next write makes a copy (both may
        be set), PAGE_SHARED that another process has the page now (so their sum is the total Shared), PAGE_EXCLUSIVE
        that no other has. A page that the system does not count as resident (schema.NOT_RESIDENT: zero page, swapped,
        guard, large) has its flag. Pages that are in no count of the system (vvar) have no run.
        shares: also determine exact share counts. Returns the columns start u64, pages u32, flags u16, shares u8
        (absent where not known) and row u32 (index into mappings). Raises TargetExited: the process ended or executed
        another program meanwhile; Unavailable: share counts need a right that is missing.
        """
        locked, hugetlb = self._special(mappings)
        regions = None
        if self.scans and len(mappings["start"]):
            low, high, special = int(mappings["start"][0]), int(mappings["end"].max()), pm.IS_HUGE | pm.IS_PFNZERO
            regions = self._pagemap.scan(low, high, any_of=pm.IS_PRESENT | pm.IS_SWAPPED, give=special)
        try:
            found = pagemap_runs.read(self._pagemap.entries, mappings, regions, shares=shares)
        except EOFError:
            raise self._gone() from None
        if not len(found["start"]):
            raise self._gone()
        return pagemap_runs.attributes(found, mappings, regions, locked, hugetlb)

    def frames(self) -> NDArray[Any]:
        """The numbers of the page frames of its resident pages, u64. Raises Unavailable without CAP_SYS_ADMIN."""
        runs = self.runs(self.mappings(Dictionary()))
        resident = (runs["flags"] & NOT_RESIDENT) == 0
        entries = self._pagemap.entries(runs["start"][resident], runs["pages"][resident])
        frames: NDArray[Any] = entries[entries >> np.uint64(63) != 0] & np.uint64(pm.PFN_MASK)
        if len(frames) and not frames.any():
            raise Unavailable("the kernel hides the numbers of page frames", "run wstrace as root")
        return frames

    def uncounted(self) -> tuple[int | None, int | None]:
        """Bytes of page tables and of large pages, which are in no resident set; None = not known."""
        status = self._status()
        return _kilobytes(status, "VmPTE"), _kilobytes(status, "HugetlbPages")

    def empty(self, mappings: Columns, runs: Columns) -> None:
        """Takes every page out of memory, by a way that cannot change the target's data: MADV_PAGEOUT on every run.

        Raises Unavailable: the system refuses.
        """
        from wstrace_plugins.working_set.linux import pageout

        pageout.page_out(self.pid, runs)

    def why_stayed(self, mappings: Columns, runs: Columns) -> tuple[NDArray[Any], tuple[str, ...]]:
        """The reason why each run is still in memory: codes u8, shape (n,), and their texts."""
        from wstrace_plugins.working_set.linux import pageout

        return pageout.why_stayed(mappings, runs)

    def owned(self) -> bool:
        """True when its effective user is the caller's."""
        user: int = os.geteuid()
        return int(procfs.status(self.pid)["Uid"].split()[1]) == user

    def close(self) -> None:
        """Closes its files."""
        self._pagemap.close()

    def _maps(self) -> procfs.Maps:
        return procfs.read_maps(self.pid)

    def _status(self) -> dict[str, str]:
        return procfs.status(self.pid)

    def _smaps(self) -> smaps.Smaps:
        return smaps.read(self.pid)

    def _gone(self) -> TargetExited:
        """The error for an opened address space that holds nothing any more: the process ended or called execve()."""
        try:
            ended = procfs.stat(self.pid).gone
        except TargetExited:
            ended = True
        now = "ended" if ended else "ended or executed another program"
        return TargetExited(f"process {self.pid} ({self.name}) {now} while it was read")

    def _special(self, mappings: Columns) -> tuple[NDArray[Any], NDArray[Any]]:
        """Masks of the locked and of the hugetlb mappings; smaps is read only if there is one."""
        none, status = np.zeros(len(mappings["start"]), bool), self._status()
        if not (_kilobytes(status, "VmLck") or _kilobytes(status, "HugetlbPages")):
            return none, none
        found, starts = self._smaps(), mappings["start"].tolist()
        flags = [found.get(start, {}).get(b"VmFlags", []) for start in starts]
        return np.array([b"lo" in one for one in flags], bool), np.array([b"ht" in one for one in flags], bool)


class Keeper:
    """The process that keeps the address space of one process at a time; see keeper.py.

    Raises Unavailable: the kernel may not be made to wait; the message says what lifts it. KeeperFailed: the process
    cannot be started.
    """

    def __init__(self) -> None:
        os.close(userfaultfd.create())  # tried here, where a refusal can be reported
        self._socket, theirs = _socket.socketpair()  # `socket` takes 7 ms of every start
        self._socket.settimeout(_SECONDS)
        program = os.path.join(os.path.dirname(__file__), "keeper.py")
        words = [sys.executable, "-I", "-S", program, str(userfaultfd.system_call())]
        inherit = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        try:
            self._pid: int = os.posix_spawn(
                sys.executable, words, os.environ, file_actions=inherit, setsid=True, setsigmask=signal.valid_signals()
            )
        except OSError as error:
            self._socket.close()
            raise KeeperFailed(f"cannot start {sys.executable}: {error.strerror}") from None
        finally:
            theirs.close()
        try:
            self._answer()  # wait until it is ready: otherwise a command of 20 ms would end before it is held
        except BaseException:
            self.close()
            raise

    def hold(self, pid: int) -> HeldSpace:
        """Holds the process's current address space, and releases the one held before.

        Raises TargetExited: the process has ended; Unavailable: it belongs to another user.
        """
        return HeldSpace(pid, self)

    def keep(self, pagemap: int) -> None:
        """Keeps the address space of that open pagemap. Raises ProcessLookupError, KeeperFailed."""
        try:
            self._socket.sendmsg([b"k"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", pagemap))])
        except OSError as error:
            raise _silent(str(error)) from None
        if (answer := self._answer()) == b"!":
            raise KeeperFailed("the process that keeps memory has no room for a thread (ulimit -u, pids.max)")
        if answer != b"+":
            raise ProcessLookupError

    def _answer(self) -> bytes:
        try:
            answer: bytes = self._socket.recv(1)
        except OSError as error:
            raise _silent(str(error)) from None
        if not answer:
            raise _silent("it has ended")
        return answer

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself and keeps nothing: killed by others, or by the kernel for want of memory."""
        return not self._pid or os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """Releases the address space; may be called again."""
        if self._pid:
            self._socket.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _silent(why: str) -> KeeperFailed:
    return KeeperFailed(f"the process that keeps memory does not answer: {why}")


class HeldSpace(Space):
    """A Space that outlives its process for as long as its keeper keeps it."""

    def __init__(self, pid: int, keeper: Keeper) -> None:
        self._seen, self._last_status = procfs.stat(pid), procfs.status(pid)
        super().__init__(pid)
        self._files: dict[str, int] = {}
        try:
            # opened before it is kept: of a process that ends meanwhile they would have no address space
            self._files = {name: os.open(f"/proc/{pid}/{name}", os.O_CLOEXEC) for name in ("maps", "smaps")}
            keeper.keep(self._pagemap.fd)
            same = self.is_same()  # if so, everything that was opened belongs to one program
        except BaseException as error:
            self.close()
            if isinstance(error, FileNotFoundError | ProcessLookupError):
                raise TargetExited(f"there is no process {pid}") from None
            raise
        if not same:
            self.close()
            raise TargetExited(f"process {pid} executed another program while it was opened")

    def is_same(self) -> bool:
        """True while this is the process's address space, or was its last one; False after another execve().

        Of a process that has ended only the name can still be compared. Its memory is gone before it is a zombie: in
        between, for milliseconds on a busy machine, it is said to run (do_exit() in kernel/exit.c, exit_mm() and then
        exit_notify()). One that calls execve() has the memory of the next program already.
        Raises TargetExited: it has been reaped.
        """
        now = procfs.stat(self.pid)
        if now.gone or not now.mapped_bytes:
            return now.name == self._seen.name
        if now.image != self._seen.image:
            return False
        self._seen, self._last_status = now, procfs.status(self.pid)
        return True

    def uncounted(self) -> tuple[int | None, int | None]:
        """Not known: the system's counters end with the process."""
        return None, None

    def close(self) -> None:
        """Closes its files; the keeper then frees the memory. May be called again."""
        for fd in self._files.values():
            os.close(fd)
        self._files = {}
        super().close()

    def _maps(self) -> procfs.Maps:
        try:
            return procfs.parse_maps(procfs.pieces(self._files["maps"]))
        except ProcessLookupError:
            raise self._gone() from None

    def _status(self) -> dict[str, str]:
        return self._last_status  # a zombie's status has no memory fields

    def _smaps(self) -> smaps.Smaps:
        try:
            return smaps.parse(self._files["smaps"])
        except ProcessLookupError:
            raise self._gone() from None


def _kilobytes(status: dict[str, str], field: str) -> int | None:
    value = status.get(field, "").split()
    return int(value[0]) * 1024 if value else None

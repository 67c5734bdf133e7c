"""What the daemon may take of the CPU: of how many faults one is recorded, and when its session stands still.

Sampling makes the kernel write fewer records, which spares the traced programs, too. While an account of CPU seconds is
overdrawn the session stands still: what does not fit into the kernel's buffers meanwhile is lost there, and counted.
"""

from __future__ import annotations

#: The account holds what so many seconds give: a minute takes 1.17 of the limit, and what is used between two readings.
_SAVED_SECONDS = 10.0
#: What a session that is let go may use for its end: what is saved, and what so many seconds give.
_END_SECONDS = 5.0
#: While it samples, the daemon aims at this part of its limit.
_AIM = 0.7
#: Seconds of ease behind which it samples less.
_EASE_SECONDS = 5.0
#: Past one out of so many faults nothing is won: what is left then is not the cost of records.
_MOST = 1 << 16
#: It records one out of so many times as many, and not fewer again for so many seconds: what was recorded before still
#: has to be worked off, and says nothing of what it costs now.
_STEP, _SETTLE_SECONDS = 4, 3.0
#: Seconds behind a session's start at which its memory is what it needs; grown by so much and quiet, it is begun anew.
_GROWN_SECONDS, _GROWN = 15.0, 1.15


class Limits:
    """Follows what the daemon uses, and says what to do about it.

    Args:
        max_cpu: part of one CPU.
        max_memory: bytes.

    Attributes:
        every: one out of so many faults is to be recorded.
        share: the part of one CPU that was used in the last second. used: the CPU seconds that were used in all.
    """

    def __init__(self, max_cpu: float, max_memory: int) -> None:
        self.max_cpu, self.max_memory = max_cpu, max_memory
        self.every, self.share, self.used = 1, 0.0, 0.0
        self._saved = self._most = max_cpu * _SAVED_SECONDS
        self._paid: tuple[float, float] | None = None  # when the account was last changed, and what was used then
        self._adapted: tuple[float, float] | None = None
        self._eased = 0.0, 0.0
        self._settled, self._rested, self._lost = 0.0, False, 0
        self._began = self._needs = 0.0
        self._quiet = True  # it used little in the last seconds, at whatever rate it records

    @property
    def overdrawn(self) -> bool:
        """Whether more CPU time was used than the account had."""
        return self._saved < 0

    @property
    def may_begin(self) -> bool:
        """Whether enough is saved to begin a session."""
        return self._saved >= self._most / 2

    @property
    def for_the_end(self) -> float:
        """CPU seconds that a session may use for its end when it is let go."""
        return max(0.0, self._saved) + self.max_cpu * _END_SECONDS

    def rests(self, now: float, used: float) -> bool:
        """Whether the session is to stand still: the account, which the first call opens, is overdrawn.

        Args:
            now: seconds. used: CPU seconds of the daemon so far.
        """
        before, spent = self._paid or (now, used)
        self._saved = min(self._most, self._saved + self.max_cpu * (now - before) - (used - spent))
        self._paid, self.used = (now, used), used
        self._rested |= self.overdrawn
        return self.overdrawn

    def adapt(self, now: float, used: float, lost: int) -> None:
        """Says, about once a second, whether fewer faults are to be recorded, or more.

        Args:
            now: seconds. used: CPU seconds of the daemon so far.
            lost: records that the session has lost so far: on a busy machine it can be late without using much.
        """
        before, spent = self._adapted = self._adapted or (now, used)
        if (seconds := now - before) < 1.0:
            return
        self._adapted = now, used
        self.share = (used - spent) / seconds
        late, self._lost = lost > self._lost, lost
        costly = self.share > self.max_cpu and self._saved < self._most / 2
        if costly or late or self._rested:
            self._rested, self._quiet, self._eased = False, False, (now, used)
            if now >= self._settled:
                self._settled, self.every = now + _SETTLE_SECONDS, min(_MOST, self.every * _STEP)
        elif now - self._eased[0] >= _EASE_SECONDS:  # on their average: a read falls into one second or the next
            self._quiet = used - self._eased[1] <= _AIM * self.max_cpu / 2 * (now - self._eased[0])
            if self._quiet:
                self.every = max(1, self.every // 2)
            self._eased = now, used

    def begin(self, now: float) -> None:
        """A session begins: what it needs is found anew, but not in the middle of a storm."""
        self._began, self._needs, self._lost = now, 0.0 if self._quiet else self._needs, 0

    def let_go(self, now: float, resident: int) -> str:
        """Why the session is to end, "" = it is not: over the limit, or grown while there is nothing to do.

        Python gives little memory back, so that a storm's would stay until the end.

        Args:
            now: seconds. resident: bytes of the daemon.
        """
        if resident > self.max_memory:
            return "max_memory is reached"
        if now - self._began < _GROWN_SECONDS:
            return ""
        self._needs = self._needs or resident
        grown = self.may_begin and self._quiet and resident > _GROWN * self._needs
        return "it has grown, and there is little to record" if grown else ""

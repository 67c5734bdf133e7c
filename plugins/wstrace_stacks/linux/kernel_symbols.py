"""The kernel's functions, from /proc/kallsyms: with addresses for root only, and as kptr_restrict permits.

They are named when the stack is recorded: addresses of a kernel mean nothing after it has been booted anew.

Source: proc(5), /proc/kallsyms; kernel/kallsyms.c.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 64 << 20
_PATH = Path("/proc/kallsyms")
#: nm's letters of what is code
_CODE = frozenset(b"tTwW")


class KernelSymbols:
    """The functions of the running kernel and its modules, sorted by address; none where addresses are hidden."""

    def __init__(self, path: Path = _PATH) -> None:
        try:
            with path.open("rb") as file:
                lines = file.read(MOST_BYTES).split(b"\n")
        except OSError:
            lines = []
        # ADDRESS TYPE NAME[\t[MODULE]]
        code = [line for line in lines if len(line) > 19 and line[17] in _CODE and line[16:17] == b" "]
        addresses = np.array([int(line[:16], 16) for line in code], "<u8") if _shown(code) else np.zeros(0, "<u8")
        order = np.argsort(addresses, kind="stable")
        self._addresses: NDArray[np.uint64] = addresses[order]
        self._names = [code[row][19:] for row in order.tolist()]

    def __len__(self) -> int:
        return len(self._addresses)

    def name(self, address: int) -> str:
        """The function at an address, `name [module]` in a module, "" where that is not known."""
        row = int(np.searchsorted(self._addresses, np.uint64(address), side="right")) - 1
        return self._names[row].replace(b"\t", b" ").decode("ascii", "backslashreplace") if row >= 0 else ""


def _shown(lines: list[bytes]) -> bool:
    """Whether addresses are: else all of them are 0."""
    return any(line[:16].strip(b"0") for line in lines[:64])

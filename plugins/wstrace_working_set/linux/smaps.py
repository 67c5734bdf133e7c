"""VmFlags of /proc/PID/smaps: what maps does not tell of a mapping (locked, hugetlb). Asked rarely: it walks all pages.

Source: Linux Documentation/filesystems/proc.rst, "VmFlags".
"""

from __future__ import annotations

from pathlib import Path

from wstrace.errors import TargetExited, Unavailable


def mapping_flags(pid: int) -> dict[int, frozenset[str]]:
    """Start of a mapping -> its two-letter flags (`lo` locked, `ht` hugetlb, `uw` write-protected by userfaultfd)."""
    try:
        text = Path(f"/proc/{pid}/smaps").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise TargetExited(f"there is no process {pid}") from None
    except OSError as error:
        raise Unavailable(f"cannot read /proc/{pid}/smaps: {error.strerror}") from None
    return parse(text)


def parse(text: str) -> dict[int, frozenset[str]]:
    """The same of the text of a smaps file."""
    found, start = {}, 0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "VmFlags:":
            found[start] = frozenset(rest.split())
        elif "-" in word and not word.endswith(":"):
            start = int(word.partition("-")[0], 16)
    return found

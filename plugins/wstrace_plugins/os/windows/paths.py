r"""Translates paths of mapped files from the kernel's form (`\Device\HarddiskVolume3\dir\file`).

A kernel path is never opened unchanged: Windows takes `\Device\x` as a path on the current drive, where anyone may put
a file.
Source: Microsoft Learn, QueryDosDeviceW; "Naming Files, Paths, and
Namespaces" (`\\?\`, GLOBALROOT).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.os.foreign import WindowsApi


_DEVICE = "\\Device\\"
#: Devices of remote files: the rest of the path is `server\share\file`, for some after `;Z:0000`.
_REDIRECTORS = frozenset({
    "mup", "lanmanredirector", "webdavredirector", "p9rdr", "vboxminirdr", "vmhgfs", "hgfs", "rdpdr", "nfsrdr",
})  # fmt: skip
_BELIEVED_SECONDS = 1.0  # a volume may get a drive letter later, or lose it to another volume
_CHARS = 1024
_MAX_PATH = 259
_ON_A_DRIVE = r"[A-Za-z]:\\"
#: Volumes: of disks and virtual ones, of shadow copies, dynamic disks, layers of containers, and CDs.
_ON_A_VOLUME = r"(?i)\\Device\\(HarddiskVolume(ShadowCopy)?\d+|HarddiskDmVolumes|VhdHardDisk\{[0-9a-f-]+\}|CdRom\d+)\\"
#: A component that ends with a dot or a space, or is the name of a DOS device, whatever its ending.
_CHANGED_BY_WIN32 = (
    r"(?i)/|[. ](\\|$)|\\(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *([.:][^\\]*)?(\\|$)"
)

#: api -> device -> (drive letter, "" for none; when it was queried)
_drives: WeakKeyDictionary[Any, dict[str, tuple[str, float]]] = WeakKeyDictionary()


def utf16(units: NDArray[Any]) -> str:
    """The text of UTF-16 code units up to a NUL, with U+FFFD for an unpaired surrogate: every encoding can hold it."""
    return units.tobytes().decode("utf-16-le", "replace").partition("\0")[0]


def drive_path(api: WindowsApi, path: str) -> str:
    r"""`C:\dir\file` for `\Device\HarddiskVolume3\dir\file`, `\\server\share\file` for `\Device\Mup\server\share\file`.

    The path of a volume without a letter is returned unchanged. Wine's `\??\C:\file` loses its prefix.
    """
    if path.startswith("\\??\\UNC\\"):
        return "\\\\" + path[len("\\??\\UNC\\") :]
    if path.startswith("\\??\\"):
        return path[len("\\??\\") :]
    if not path.startswith(_DEVICE):
        return path
    name, _, tail = path[len(_DEVICE) :].partition("\\")
    if name.lower() in _REDIRECTORS:
        parts = tail.split("\\")
        while parts and parts[0].startswith(";"):  # ;LanmanRedirector, ;Z:000000000001abcd
            del parts[0]
        return "\\\\" + "\\".join(parts)
    drive = _drive(api, _DEVICE + name)
    return f"{drive}\\{tail}" if drive else path


def openable(path: str) -> str:
    r"""The path by which to open a result of drive_path(), or what a trace gives as one; "" when it is not opened.

    Only files on volumes of this machine are opened. A trace is untrusted: it could name a pipe, whose server may act
    as the user who opens it, a device, another machine, which would get our credentials, or a file relative to the
    current folder. The path has `\\?\` where Win32 would refuse it or take it for another one (`C:\x.dll.`, `C:\con`).
    """
    if re.match(_ON_A_VOLUME, path):
        return "\\\\?\\GLOBALROOT" + path
    if not re.match(_ON_A_DRIVE, path):
        return ""
    return "\\\\?\\" + path if len(path) > _MAX_PATH or re.search(_CHANGED_BY_WIN32, path) else path


def _drive(api: WindowsApi, device: str) -> str:
    """`C:` of a device; "" when it has no letter."""
    drives, now = _drives.setdefault(api, {}), time.perf_counter()
    known = drives.get(device)
    if known is None or now - known[1] >= _BELIEVED_SECONDS:
        drives.update({d: (name, now) for d, name in {device: "", **_drive_letters(api)}.items()})
    return drives[device][0]


def _drive_letters(api: WindowsApi) -> dict[str, str]:
    r"""`\Device\HarddiskVolume3` -> `C:`, for every present drive letter."""
    letters = {}
    for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBA":  # descending, so that a device gets its first letter
        if device := _device(api, f"{letter}:"):
            letters[device] = f"{letter}:"
    return letters


def _device(api: WindowsApi, name: str) -> str:
    target = np.zeros(_CHARS, "<u2")
    count = api.QueryDosDeviceW(name, target.ctypes.data, len(target))
    return utf16(target[:count]) if count else ""

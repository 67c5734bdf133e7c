"""Foreign functions, opened on their first call, so that a module that declares them can be imported everywhere."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

from wstrace.errors import Unavailable

#: the module wstrace_plugins.os.windows.api, or what tests have in its place: functions under Microsoft's names that
#: take pointers, handles and BOOL as integers; one that this Windows lacks raises Unavailable when it is called
WindowsApi: TypeAlias = Any


class Foreign:
    """The function `name` of `library`, typed, opened on its first call.

    A library whose name ends in .dll is opened with WinDLL and use_last_error, any other with CDLL and use_errno. A
    call returns the function's own value.

    library: the file name of the library, or None for the process's C library. name: the system's own name of the
    function. restype: the ctypes type of its value. argtypes: the ctypes types of its arguments, with explicit widths.
    short: whether its calls, into a .dll, take microseconds and keep the GIL, which a computing thread gives back after
    a switch interval only. Raises Unavailable: from the first call, when the library or the function is missing.
    """

    def __init__(self, library: str | None, name: str, restype: Any, *argtypes: Any, short: bool = False) -> None:
        self.file, self.name, self.short = library, name, short
        self._restype, self._argtypes = restype, argtypes
        self._function: Any = None

    def __call__(self, *args: Any) -> Any:
        """Calls the function. Raises Unavailable when this system lacks it."""
        if self._function is None:
            self._function = self._open()
        return self._function(*args)

    def _open(self) -> Any:
        """The typed function. Raises Unavailable."""
        try:
            if self.file is not None and self.file.endswith(".dll"):
                opened: Any = ctypes.PyDLL if self.short else ctypes.WinDLL  # type: ignore[attr-defined, unused-ignore]
                library = opened(self.file, use_last_error=True)  # on x64 both have the one calling convention
            else:
                library = ctypes.CDLL(self.file, use_errno=True)
            function = getattr(library, self.name)
        except (OSError, AttributeError) as missing:
            where = self.file or "the C library"
            raise Unavailable(f"{self.name} of {where} is not on this system ({missing})") from None
        function.restype, function.argtypes = self._restype, self._argtypes
        return function

"""Foreign functions, opened on the first call: a module that declares them imports on every system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from wstrace.errors import Unavailable


class Foreign:
    """A function of a shared library under its own name.

    library None is the C library of the process; a name ending in .dll is opened with WinDLL and use_last_error, any
    other with CDLL and use_errno. The value returned is the function's own; `declare(..., check=...)` may turn it into
    an error.
    """

    def __init__(
        self,
        library: str | None,
        name: str,
        restype: Any,
        argtypes: Sequence[Any],
        check: Callable[..., Any] | None = None,
    ) -> None:
        self.file, self.name = library, name
        self._restype, self._argtypes, self._check = restype, tuple(argtypes), check
        self._function: Any = None

    def __call__(self, *args: Any) -> Any:
        """Calls the function. Raises Unavailable when it is not on this system."""
        if self._function is None:
            self._function = self._open()
        return self._function(*args)

    def _open(self) -> Any:
        try:
            if self.file is not None and self.file.endswith(".dll"):
                library: Any = ctypes.WinDLL(self.file, use_last_error=True)  # type: ignore[attr-defined, unused-ignore]
            else:
                library = ctypes.CDLL(self.file, use_errno=True)
            function = getattr(library, self.name)
        except (OSError, AttributeError) as missing:
            where = self.file or "the C library"
            raise Unavailable(f"{self.name} of {where} is not on this system ({missing})") from None
        function.restype, function.argtypes = self._restype, self._argtypes
        if self._check is not None:
            function.errcheck = self._check
        return function


def declare(
    library: str | None, name: str, restype: Any, *argtypes: Any, check: Callable[..., Any] | None = None
) -> Foreign:
    """The function `name` of `library`, typed, opened on its first call.

    Args:
        library: file name, or None for the process's C library.
        name: the system's own name of the function.
        restype: ctypes type of its value; argtypes: of its arguments, explicit widths only.
        check: ctypes errcheck(result, function, arguments).

    Raises:
        Unavailable: at the first call, when library or function is not there.
    """
    return Foreign(library, name, restype, argtypes, check)

"""Answers that a kernel may give, put in the place of those of the kernel at hand."""

import ctypes
from collections.abc import Callable
from typing import Any

#: every refusal of a call that a newer, an older or a guarded kernel was seen or is documented to give
REFUSALS = ("EPERM", "ESRCH", "EIO", "EAGAIN", "ENOMEM", "EFAULT", "EINVAL", "ENOTTY", "ENOSYS", "EOPNOTSUPP")


def refuses(request: int, number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """ioctl(2) as a kernel does it that answers this request with this error."""

    def ioctl(fd, wanted, argument):
        if wanted != request:
            return real(fd, wanted, argument)
        ctypes.set_errno(number)
        return -1

    return ioctl

"""The functions of the running kernel, which no file has: `[kernel]` from /proc/kallsyms, `[vdso]` from our own memory.

They hold for this boot only: at the next one the kernel and its modules lie elsewhere, and may be of another version.
Addresses in /proc/kallsyms are shown to root, as kptr_restrict permits.

Source: kernel/kallsyms.c of Linux; vdso(7).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wstrace.errors import WstraceError
from wstrace.interfaces import OWN_KERNEL
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, UNKNOWN, Image

#: offsets in `[kernel]` count from here: the upper half of the addresses is the kernel's
KERNEL_START = 1 << 63
MAX_BYTES = 64 << 20
_KALLSYMS, _BOOT = "/proc/kallsyms", "/proc/sys/kernel/random/boot_id"
#: nm's letters of what is code
_CODE = np.frombuffer(b"tTwW", "u1")
_NEWLINE, _SPACE = b"\n "


def own_kernel_image(file: str, boot_id: str) -> Image | None:
    """The Image of `[kernel]` or `[vdso]`; None where it is not this boot's, or cannot be read.

    Args:
        file: one of OWN_KERNEL.
        boot_id: the boot that it belongs to; "" = this one.
    """
    try:
        if boot_id:
            with open(_BOOT, encoding="ascii") as booted:
                if boot_id != booted.read().strip():
                    return None
    except (OSError, ValueError):
        return None
    return kernel_image() if file == OWN_KERNEL[0] else vdso_image()


def vdso_image() -> Image | None:
    """The image that the kernel maps into every process."""
    from wstrace_plugins.os.elf import Elf
    from wstrace_plugins.os.linux.procfs import own_vdso
    from wstrace_plugins.symbols.elf import image_of

    try:
        content = own_vdso()
        image = image_of(Elf(lambda offset, size: content[offset : offset + size]))
    except (ValueError, WstraceError):
        return None
    return replace(image, demangle=lambda name: name.removeprefix("__vdso_"))  # clock_gettime is the weak name


def kernel_image(path: str = _KALLSYMS) -> Image | None:
    """The functions of the kernel and its modules (`name [module]`); None where addresses are hidden."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES)
        text = np.frombuffer(content, "u1")
        # ADDRESS TYPE NAME[\t[MODULE]]
        ends = np.flatnonzero(text == _NEWLINE)
        starts = np.append(0, ends + 1)[: len(ends)]
        starts = starts[ends - starts > 19]
        starts = starts[(text[starts + 16] == _SPACE) & np.isin(text[starts + 17], _CODE)]
        digits = np.lib.stride_tricks.sliding_window_view(text, 16)[starts].tobytes()
        addresses = np.frombuffer(bytes.fromhex(digits.decode("ascii")), ">u8").astype("<u8")
    except (OSError, ValueError):
        return None
    if not addresses[:64].any():
        return None
    order = np.argsort(addresses, kind="stable")
    # of several names of an address the last one counts
    order = order[np.append(addresses[order][1:] != addresses[order][:-1], True)]
    symbols = np.zeros(len(order), SYMBOL)
    symbols["start"], symbols["name"] = addresses[order], starts[order] + 19
    symbols["end"] = np.append(symbols["start"][1:], UNKNOWN)
    segments = np.array([(0, KERNEL_START, KERNEL_START, KERNEL_START)], SEGMENT)
    return Image(segments, np.empty(0, SECTION), (), symbols, content.replace(b"\n", b"\0").replace(b"\t", b" "))

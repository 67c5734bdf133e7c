"""ImageResolver: names the image section and the function at an offset of a mapped file, or of the running kernel."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import WstraceError
from wstrace.interfaces import OWN_KERNEL, MappedFile, Part, Place, Resolver, SourceLine
from wstrace_plugins.os import system
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, UNKNOWN, Image, ImageError, ImageFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: where distributions install the symbols that they strip off; gdb reads them too ("Separate Debug Files")
DEBUG_FILE = "/usr/lib/debug/.build-id/{}/{}.debug"


#: Why a Place has no section or function: values of Place.why.
OTHER_FILE, UNREADABLE = "is not the file that was traced", "cannot be read"
CHANGED = "has no build-id and was changed after the trace"
NO_IMAGE = "is no ELF or PE file that can be believed"

MAX_IMAGES = 4096


class ImageResolver(Resolver):
    """Image section and function of file offsets, for ELF and PE files.

    For a file that is deleted, unreadable, cut off or no image, a Place has the module's name, the offset, and why.

    Images are cached by device, inode, size and time of change, and found by their build-id, too. When they hold more
    than max_bytes, the least recently used one is dropped first.

    Args:
        max_bytes: memory for symbol tables.
    """

    name = "sections"

    def __init__(self, *, max_bytes: int = 256 << 20) -> None:
        self._max_bytes = max_bytes
        #: by device, inode, size and time of change; the latest used last; None = no image, which is not read again
        self._images: OrderedDict[tuple[int, int, int, int], Image | None] = OrderedDict()
        self._own_kernel = lru_cache(maxsize=16)(own_kernel_image)
        self._lock = threading.Lock()  # a report and several exporters' threads may use one resolver

    def resolve(self, file: MappedFile, offsets: NDArray[Any]) -> Sequence[Place]:
        """A Place for each offset; of an unreadable file, with the module's name and the offset as the address."""
        offsets = np.ascontiguousarray(offsets, "<u8")
        module = module_name(file.path)
        with self._lock:
            image = self._image(file)
            if isinstance(image, str):
                return [Place(module, address=offset, why=image) for offset in offsets.tolist()]
            return image.places(module, offsets)

    def lines(self, file: MappedFile, offsets: NDArray[Any]) -> Sequence[tuple[SourceLine, ...]]:
        """The source lines of offsets in an ELF file that has a build-id, or in its separate debug file."""
        nothing: list[tuple[SourceLine, ...]] = [()] * len(offsets)
        if importlib.util.find_spec("symbolic") is None:  # the extra `lines` is not installed
            return nothing
        from wstrace_plugins.symbols.elf import described_lines
        from wstrace_plugins.symbols.source_lines import source_lines

        with self._lock:
            image = self._image(file)
        if isinstance(image, str) or not image.build_id:  # nothing else proves that a file opened again is the same
            return nothing
        # symbolic counts from the first segment on, which a program for a fixed address (Go's, too) does not begin at 0
        begin = image.segments["address"][:1].sum()
        addresses = (image.addresses(np.ascontiguousarray(offsets, "<u8")) - begin).tolist()
        debug_file = DEBUG_FILE.format(image.build_id[:2], image.build_id[2:])
        for opening in (partial(ImageFile, debug_file, root_of(file)), partial(opened_of, file)):
            try:
                with opening() as opened:
                    if described_lines(opened) == image.build_id:
                        found = source_lines(opened, addresses)
                        if any(found):
                            return found
            except (OSError, ValueError):
                continue
        return nothing

    def parts(self, file: MappedFile) -> Sequence[Part]:
        """Sections of ELF files, tensors of safetensors files."""
        from wstrace_plugins.symbols.parts import file_parts

        try:
            with opened_of(file) as opened:
                return file_parts(opened) if is_inode(opened, file) else ()
        except (OSError, ValueError):
            return ()

    def _image(self, file: MappedFile) -> Image | str:
        """The image that may be trusted for a file, or why there is none."""
        if file.path in OWN_KERNEL:
            return self._own_kernel(file.path, file.boot_id) or UNREADABLE
        held = [key for key, one in self._images.items() if file.build_id and one and one.build_id == file.build_id]
        if held:
            return self._held(held[0]) or NO_IMAGE
        try:
            with opened_of(file) as opened:
                if not file.build_id and not is_inode(opened, file):
                    return OTHER_FILE
                if not file.build_id and 0 < file.as_of_ns < opened.changed_ns:  # an inode may be overwritten in place
                    return CHANGED
                image = self._read(opened, root_of(file))
        except ImageError:
            image = None
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return UNREADABLE
        if image is not None and file.build_id and image.build_id != file.build_id:
            return OTHER_FILE
        return image or NO_IMAGE

    def _read(self, file: ImageFile, root: str) -> Image | None:
        if file.identity in self._images:
            return self._held(file.identity)
        self._keep(file.identity, None)
        image = self._with_debug_symbols(read_image(file), root)
        self._keep(file.identity, image)
        return image

    def _keep(self, identity: tuple[int, int, int, int], image: Image | None) -> None:
        """Keeps an image, and drops others where they are too many or too large together."""
        self._images[identity] = image
        while len(self._images) > 1 and (self._nbytes() > self._max_bytes or len(self._images) > MAX_IMAGES):
            self._images.popitem(last=False)

    def _held(self, identity: tuple[int, int, int, int]) -> Image | None:
        self._images.move_to_end(identity)
        return self._images[identity]

    def _nbytes(self) -> int:
        return sum(image.nbytes for image in self._images.values() if image is not None)

    def _with_debug_symbols(self, image: Image, root: str) -> Image:
        """The image with the symbols that its distribution ships in a separate file, if that is installed."""
        if image.complete or not image.build_id:
            return image
        try:
            with ImageFile(DEBUG_FILE.format(image.build_id[:2], image.build_id[2:]), root) as file:
                debug = read_image(file)
        except (OSError, ValueError):
            return image
        if not debug.complete or debug.build_id != image.build_id:
            return image
        return replace(image, symbols=debug.symbols, names=debug.names, complete=True, why=debug.why)


def read_image(file: ImageFile) -> Image:
    """The Image of a file, by its magic. Raises ImageError."""
    magic = file.read(0, min(4, file.size))
    if magic == b"\x7fELF":
        from wstrace_plugins.symbols import elf

        return elf.read_image(file)
    if magic.startswith(b"MZ"):
        from wstrace_plugins.symbols import pe

        return pe.read_image(file)
    raise ImageError(f"{file.path} is neither ELF nor PE")


def module_name(file: str) -> str:
    """The base name of a path as its target names it, with `/` or `\\`; without the kernel's ` (deleted)`."""
    file = file.removesuffix(" (deleted)")
    return file.rpartition("/" if "/" in file else "\\")[2] or file


def path_of(file: str) -> str:
    """The path at which to open a file that was mapped under that name; "" = do not open it: see openable()."""
    if os.name == "nt":
        from wstrace_plugins.os.windows.paths import openable

        return openable(file)
    return file if file.startswith("/") and not file.startswith(("//", "/\\")) else ""  # never relative


def root_of(file: MappedFile) -> str:
    """The root folder that the path of a file refers to, while its process is alive; else "": ours."""
    root = f"/proc/{file.pid}/root"
    return root if file.pid and file.path.startswith("/") and os.path.isdir(root) else ""


def opened_of(file: MappedFile) -> ImageFile:
    """The file of that name, open. Raises OSError, ValueError.

    When its process has ended, any file may have its name in our root: only one with its inode is opened.
    """
    path, root = path_of(file.path), root_of(file)
    ended = file.pid and not root and path.startswith("/")
    if not path or (ended and not file.ino):
        raise FileNotFoundError(path)
    return ImageFile(path, root, file.ino if ended else 0)


def is_inode(opened: ImageFile, file: MappedFile) -> bool:
    """Whether the opened file has the device and inode of the mapped one; True where these are not known."""
    if not file.ino or (file.dev, file.ino) == opened.identity[:2]:
        return True
    if system() != "linux":
        return False
    named_file = importlib.import_module("wstrace_plugins.os.linux.named_file")
    return bool(named_file.is_mapped(opened.stream.fileno(), file.dev, file.ino))


#: offsets in `[kernel]` count from here: the upper half of the addresses is the kernel's
KERNEL_START = 1 << 63
MAX_BYTES = 64 << 20
_KALLSYMS, _BOOT = "/proc/kallsyms", "/proc/sys/kernel/random/boot_id"
#: nm's letters of what is code
_CODE = np.frombuffer(b"tTwW", "u1")
_NEWLINE, _SPACE = b"\n "


def own_kernel_image(file: str, boot_id: str) -> Image | None:
    """The Image of `[kernel]` or `[vdso]`; None where it is not this boot's, or cannot be read.

    file: one of OWN_KERNEL. boot_id: the boot that it belongs to; "" = this one.
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

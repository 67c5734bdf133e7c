"""The functions that only the running kernel knows: its own, and those of its vdso; of another boot none."""

from pathlib import Path

import numpy as np
import pytest

from wstrace.analysis.symbols import Symbolizer, label_of
from wstrace.batch import Dictionary
from wstrace.clock import ClockAnchor
from wstrace.interfaces import Context
from wstrace.schema import MAPPING, PAGE_FAULT
from wstrace.testing import batch_of
from wstrace.trace_info import TraceInfo
from wstrace_plugins.symbols import resolver
from wstrace_plugins.symbols.image import Image
from wstrace_plugins.symbols.resolver import KERNEL_START, ImageResolver, kernel_image, vdso_image

KALLSYMS = (
    "ffffffff81000200 T second\nffffffff81000100 t first\nffffffff81000300 d data\n"
    "ffffffffc0000000 t in_module\t[fuse]\n"
)


try:
    BOOT = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
except OSError:
    BOOT = ""


def kallsyms(folder: Path, text: str) -> Image | None:
    path = folder / "kallsyms"
    path.write_text(text)
    return kernel_image(path)


def function(image: Image | None, address: int) -> str:
    assert image is not None
    [place] = image.places("[kernel]", np.array([address - KERNEL_START], "<u8"))
    return place.function


def test_kernel_functions_by_address(tmp_path):
    found = kallsyms(tmp_path, KALLSYMS)
    assert [function(found, 0xFFFFFFFF81000000 + at) for at in (0, 0x100, 0x1FF, 0x200, 0x300)] == [
        "", "first", "first", "second", "second"
    ]  # fmt: skip
    assert function(found, 0xFFFFFFFFC0000010) == "in_module [fuse]"


@pytest.mark.parametrize("text", ["", "0000000000000000 T a\n0000000000000000 T b\n", "x\n\n" * 50])
def test_hidden_addresses_give_no_name(tmp_path, text):
    assert kallsyms(tmp_path, text) is None
    assert kernel_image(tmp_path / "none") is None


def test_any_bytes_give_functions_or_none(tmp_path):
    dice = np.random.default_rng(5)
    for _ in range(100):
        text = bytearray(KALLSYMS.encode() * 3)
        for at in dice.integers(0, len(text), 12):
            text[at] = dice.integers(0, 256)
        (tmp_path / "kallsyms").write_bytes(text[: dice.integers(0, len(text))])
        found = kernel_image(tmp_path / "kallsyms")
        if found is not None:
            found.places("[kernel]", dice.integers(0, 1 << 63, 50, "<u8"))


def clock_gettime() -> int:
    """The offset of that function in the vdso."""
    image = vdso_image()
    if image is None:
        pytest.skip("only on Linux with a vdso")
    names = [image.symbol_name(row) for row in range(len(image.symbols))]
    return int(image.symbols["start"][names.index("clock_gettime")])


def recorded(boot: str, hosts: tuple[str, ...] = ()) -> TraceInfo:
    return TraceInfo(clock=ClockAnchor([(1, 2)]), boot_id=boot, hosts=hosts)


def by_function(info: TraceInfo) -> set[str]:
    """The labels of two faults, in the kernel and in the vdso."""
    strings, files = Dictionary(), ["[kernel]", "[vdso]"]
    symbolizer = Symbolizer(Context(resolvers={"sections": ImageResolver()}, info=info), live=False)
    symbolizer.learn(
        batch_of(MAPPING, strings, id=[1, 2], time_ns=1, pid=0, start=[KERNEL_START, 0x7000], end=[2**64 - 1, 0x9000],
                 offset=0, file=files, dev=0, ino=0, build_id="", flags=0)
    )  # fmt: skip
    batch = batch_of(PAGE_FAULT, strings, pid=1, tid=1, pc=[0xFFFFFFFF81000110, 0x7001 + clock_gettime()], va=1,
                     flags=0, pc_mapping=[1, 2], pc_file=files)  # fmt: skip
    return {label_of(place, "function") for place in symbolizer.of(batch, "pc", "pc_mapping", "pc_file")}


def test_tables_by_function_name_both(tmp_path, monkeypatch):
    found = kallsyms(tmp_path, KALLSYMS)
    monkeypatch.setattr(resolver, "kernel_image", lambda: found)
    named = {"[kernel]!first", "[vdso]!clock_gettime"}
    assert by_function(TraceInfo()) == named
    assert by_function(recorded(BOOT)) == named
    monkeypatch.setattr(resolver, "kernel_image", lambda: None)
    assert by_function(TraceInfo()) == {"[kernel]", "[vdso]!clock_gettime"}


@pytest.mark.parametrize(("boot", "hosts"), [("", ()), ("another boot", ()), (BOOT, ("a", "b"))])
def test_of_another_boot_neither_has_functions(boot, hosts):
    assert by_function(recorded(boot, hosts)) == {"[kernel]", "[vdso]"}

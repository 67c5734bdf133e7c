"""The resolver `sections` on files that lie, and names that explode."""

import sys
from pathlib import Path

import numpy as np
import pytest

from wstrace.interfaces import MappedFile
from wstrace_plugins.os.elf import SYMBOL as SYMBOL_ROW
from wstrace_plugins.symbols import elf
from wstrace_plugins.symbols.image import SECTION, SYMBOL, Image, ImageError, ImageFile, demangle
from wstrace_plugins.symbols.resolver import ImageResolver

if sys.platform != "linux":
    pytest.skip("needs an ELF binary to break: only on Linux", allow_module_level=True)

OFFSETS = np.arange(0, 1 << 20, 4096, dtype="u8")


@pytest.fixture(scope="module")
def binary():
    small = min((p for p in Path("/usr/bin").iterdir() if p.is_file() and 10_000 < p.stat().st_size < 80_000
                 and p.read_bytes()[:4] == b"\x7fELF"), key=lambda p: p.stat().st_size)  # fmt: skip
    return small.read_bytes()


def test_a_file_that_is_cut_off_is_not_believed(binary, tmp_path):
    (tmp_path / "cut").write_bytes(binary[: len(binary) // 2])
    resolver = ImageResolver()
    for _ in range(2):
        for place in resolver.resolve(MappedFile(str(tmp_path / "cut")), OFFSETS):
            assert (place.number, place.why) == (0, "is no ELF or PE file that can be believed")


def test_too_many_headers_are_refused_early(binary, tmp_path):
    many = bytearray(binary)
    many[0x3C:0x3E] = b"\xf0\xff"
    (tmp_path / "many").write_bytes(many)
    with ImageFile(str(tmp_path / "many")) as file, pytest.raises(ImageError):
        elf.read_image(file)


def test_names_of_symbols_that_point_nowhere_are_left_out():
    raw = np.zeros(4, SYMBOL_ROW)
    raw["info"], raw["section"], raw["value"], raw["size"] = elf.STT_FUNC, 1, [16, 32, 48, 64], 8
    raw["name"] = [1, 6, 7, 0xFFFFFFFF]
    sections = np.array([(0, 256, 1)], SECTION)
    rows = elf.symbol_table(raw, b"\0main\0", sections, np.ones(4, bool))
    assert rows["start"].tolist() == [16]


def test_of_several_names_the_known_one_and_of_nested_symbols_the_inner_one():
    strings = b"\0__write\0write\0label\0outer\0inner\0$x\0"
    at = {name: strings.index(name.encode()) for name in ("__write", "write", "label", "outer", "inner", "$x")}
    rows = [  # name, type, binding, value, size
        ("__write", elf.STT_FUNC, 1, 0x10, 8), ("write", elf.STT_FUNC, 1, 0x10, 8), ("label", 0, 0, 0x10, 0),
        ("outer", elf.STT_FUNC, 1, 0x20, 0x40), ("inner", elf.STT_FUNC, 0, 0x30, 0x10),
        ("$x", 0, 0, 0x80, 0), ("label", 0, 0, 0x90, 0),
    ]  # fmt: skip
    raw = np.zeros(len(rows), SYMBOL_ROW)
    raw["name"] = [at[row[0]] for row in rows]
    raw["info"] = [kind | binding << 4 for _, kind, binding, _, _ in rows]
    raw["value"], raw["size"] = [row[3] for row in rows], [row[4] for row in rows]
    sections = np.array([(0x10, 0xA0, 1)], SECTION)
    symbols = elf.symbol_table(raw, strings, sections, np.ones(len(rows), bool))
    segments = np.array(
        [(0, 0x1000, 0, 0x1000)], [("offset", "u8"), ("file_size", "u8"), ("address", "u8"), ("memory_size", "u8")]
    )
    image = Image(segments, sections, (".text",), symbols, strings)
    expected = {
        0x0F: "", 0x10: "write", 0x17: "write", 0x18: "", 0x20: "outer", 0x2F: "outer", 0x30: "inner",
        0x3F: "inner", 0x40: "outer", 0x5F: "outer", 0x60: "", 0x80: "", 0x95: "label", 0x9F: "label", 0xA0: "",
    }  # fmt: skip
    places = image.places("m", np.array(list(expected), "u8"))
    assert {a: p.function for a, p in zip(expected, places, strict=True)} == expected
    assert symbols.dtype == SYMBOL


def test_an_image_without_anything_still_answers():
    empty = Image(np.empty(0, "u8,u8,u8,u8"), np.empty(0, SECTION), (), np.empty(0, SYMBOL), b"")
    assert [str(place) for place in empty.places("m", np.array([0x1234], "u8"))] == ["m+0x1234"]


def exploding(levels: int) -> str:
    """A name of a template whose arguments are, level by level, two of the level before."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def back(n):
        return f"S{digits[(n - 1) // 36] if n > 36 else ''}{digits[(n - 1) % 36]}_" if n else "S_"

    return "_Z1f1B1AIS_S_E" + "".join(f"S0_I{back(2 + n) * 2}E" for n in range(levels))


def test_a_name_that_would_explode_or_hang_stays_mangled():
    assert len(demangle(exploding(5))) > 500
    for levels in (12, 30, 200):
        assert demangle(exploding(levels)) == exploding(levels)
    assert demangle("_Z" + "1a" * 500) == f"a({', '.join(['a'] * 499)})"
    assert demangle("_Z" + "1a" * 5000) == "_Z" + "1a" * 5000
    for hanging in ("_ZptDTsrUL", "_Z1aDTsrUL", "_Z1fDTsrUJ"):  # __cxa_demangle() does not return from these
        assert demangle(hanging) == hanging


@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        ("_Z3foov.cold", "foo() [clone .cold]"),
        ("main", "main"),
        ("_Zgarbage", "_Zgarbage"),
        ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
        (
            "_ZN9hashbrown3raw21RawTable$LT$T$C$A$GT$14reserve_rehash17h0123456789abcdefE.llvm.4065396226463577454",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
        ),
        ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE.llvm.12AB.cold", "core::fmt::Write::write_fmt"),
        ("_Z3foov.llvm.4065396226463577454", "foo()"),
        ("_RNvC7mycrate3foo.llvm.4065396226463577454", "mycrate::foo"),
        (
            "_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3fmt17hb09d0c74ae4b8a9fE",
            "<&T as core::fmt::Debug>::fmt",
        ),
    ],
)
def test_names(mangled, readable):
    assert demangle(mangled) == readable


def test_rust_names_as_binutils_reads_them():
    golden = Path(__file__).resolve().parents[1] / "golden" / "rust_names.tsv"
    lines = [line for line in golden.read_text("utf-8").splitlines() if not line.startswith("#")]
    pairs = [tuple(line.split("\t")) for line in lines]
    assert sum(mangled.startswith("_ZN") for mangled, _ in pairs) > 20
    assert sum(mangled.startswith("_R") for mangled, _ in pairs) > 20
    assert [demangle(mangled) for mangled, _ in pairs] == [readable for _, readable in pairs]

"""PE files: the article's own line, hand-made headers, hostile ones, and Wine's DLLs against objdump."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from wstrace.interfaces import MappedFile
from wstrace.schema import OFFSET_UNKNOWN
from wstrace_plugins.symbols import dbghelp
from wstrace_plugins.symbols.image import ImageError, ImageFile
from wstrace_plugins.symbols.pe import read_image, readable
from wstrace_plugins.symbols.resolver import ImageResolver

TEXT, RDATA, DATA = 0x60000020, 0x40000040, 0xC0000040
#: name, virtual size, RVA, raw size, characteristics; the last one has less in the file than in memory
CWDLL32 = [
    (b".text", 0x80100, 0x1000, 0x80200, TEXT),
    (b".rdata", 0x5000, 0x82000, 0x5000, RDATA),
    (b".idata", 0x800, 0x88000, 0x800, DATA),
    (b".data", 0x9000, 0x90000, 0x1000, DATA),
]


def exports(rva, base_names):
    """An export directory with these (name, target RVA), a forwarder among them; those without a name come last."""
    names = [name for name, _ in base_names if name]
    n, every = len(names), len(base_names)
    strings, offsets = b"", []
    for name in names:
        offsets.append(len(strings))
        strings += name + b"\0"
    at = rva + 40
    text_at = at + 4 * every + 4 * n + 2 * n
    targets = [target if target >= 0 else text_at for _, target in base_names]  # inside the directory: a forwarder
    tables = at, at + 4 * every, at + 4 * every + 4 * n
    return struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, 0, 1, every, n, *tables) + b"".join(
        [struct.pack(f"<{every}I", *targets), struct.pack(f"<{n}I", *(text_at + o for o in offsets)),
         struct.pack(f"<{n}H", *range(n)), strings]
    )  # fmt: skip


def pe(sections=CWDLL32, *, base=0x10100000, wide=False, size=0x99000, export=None, functions=None, raw_at=0x1000):
    """A PE file as bytes: headers, section table; an export directory at the start of section 2, a table of functions
    (begin, end, chained) at that of section 3."""
    directories = [(0, 0)] * 16
    body = bytearray()
    table = b""
    place = raw_at
    for number, (name, virtual, rva, raw, characteristics) in enumerate(sections):
        content = b""
        if export is not None and number == 1:
            content = exports(rva, export)
            directories[0] = (rva, len(content))
        if functions is not None and number == 2:
            unwind = rva + 12 * len(functions)
            content = b"".join(struct.pack("<III", b, e, unwind + 4 * i) for i, (b, e, _) in enumerate(functions))
            directories[3] = (rva, len(content))
            content += b"".join(struct.pack("<I", 1 | 4 << 3 if chained else 1) for *_, chained in functions)
        body += content.ljust(raw, b"\0")
        table += struct.pack("<8sIIIIIIHHI", name, virtual, rva, raw, place, 0, 0, 0, 0, characteristics)
        place += raw
    optional = bytearray(112 if wide else 96)
    struct.pack_into("<H", optional, 0, 0x20B if wide else 0x10B)
    struct.pack_into("<Q" if wide else "<I", optional, 24 if wide else 28, base)
    struct.pack_into("<I", optional, 56, size)
    struct.pack_into("<I", optional, 108 if wide else 92, 16)
    optional += b"".join(struct.pack("<II", *d) for d in directories)
    head = struct.pack("<2s58xI", b"MZ", 0x80).ljust(0x80, b"\0")
    head += struct.pack(
        "<4sHHIIIHH", b"PE\0\0", 0x8664 if functions else 0x14C, len(sections), 0x5F000000, 0, 0, len(optional), 0
    )
    return (head + bytes(optional) + table).ljust(raw_at, b"\0") + bytes(body)


@pytest.fixture
def image(tmp_path):
    def read(content):
        path = tmp_path / "CWDLL32.DLL"
        path.write_bytes(content)
        with ImageFile(str(path)) as file:
            return read_image(file)

    return read


def names(image, *rvas):
    return [str(place) for place in image.places("CWDLL32.DLL", np.array(rvas, "<u8"))]


def test_the_articles_delta_line(tmp_path):
    path = tmp_path / "CWDLL32.DLL"
    path.write_bytes(pe())
    va, pc, base = 0x10190275, 0x1017FFAF, 0x10100000
    page, instruction = ImageResolver().resolve(MappedFile(str(path)), np.array([va - base, pc - base], "<u8"))
    assert f"{va:08X} {pc:08X} {page} via {instruction}" == (
        "10190275 1017FFAF CWDLL32.DLL!.data(4) via CWDLL32.DLL!.text(1)"
    )
    assert (page.address, instruction.address) == (va, pc)  # loaded at its own base


def test_a_section_has_the_larger_of_its_two_sizes_and_not_one_byte_more(image):
    found = image(pe())
    # .text: 0x80200 in the file, 0x80100 in memory; .data: 0x1000 in the file, 0x9000 in memory
    assert names(found, 0x1000 + 0x801FF)[0] == "CWDLL32.DLL!.text(1)"
    assert "!" not in names(found, 0x1000 + 0x80200)[0]  # the article's `rva <= endRVA` gives this byte to .text
    assert names(found, 0x90000 + 0x8FFF)[0] == "CWDLL32.DLL!.data(4)"
    assert "!" not in names(found, 0x99000)[0]


def test_a_header_page_has_a_module_but_no_section(image):
    assert names(image(pe()), 0, 0xFFF) == ["CWDLL32.DLL+0x10100000", "CWDLL32.DLL+0x10100fff"]


@pytest.mark.parametrize("wide", [False, True], ids=["PE32", "PE32+"])
def test_both_widths(image, wide):
    base = 0x7FFB_0000_0000 if wide else 0x10100000
    found = image(pe(wide=wide, base=base))
    assert names(found, 0x82000) == ["CWDLL32.DLL!.rdata(2)"]
    assert found.places("x", np.array([0x1000], "<u8"))[0].address == base + 0x1000


def test_exports_are_functions_and_forwarders_and_data_are_not(image):
    found = image(pe(export=[(b"Alpha", 0x2000), (b"Beta", 0x1800), (b"Elsewhere", -1), (b"Table", 0x90010)]))
    rvas = [0x1000, 0x1800, 0x1FFF, 0x2004, 0x90014]
    places = found.places("CWDLL32.DLL", np.array(rvas, "<u8"))
    assert {rva: place.symbol for rva, place in zip(rvas, places, strict=True)} == {
        0x1000: "CWDLL32.DLL!.text(1)",
        0x1800: "CWDLL32.DLL!Beta+0x0",
        0x1FFF: "CWDLL32.DLL!Beta+0x7ff",
        0x2004: "CWDLL32.DLL!Alpha+0x4",
        0x90014: "CWDLL32.DLL!.data(4)",
    }
    assert not found.complete


def functions_at(found, *rvas):
    return [place.function for place in found.places("CWDLL32.DLL", np.array(rvas, "<u8"))]


def test_what_is_exported_by_ordinal_only_is_a_border_and_has_its_number(image):
    found = image(pe(export=[(b"Alpha", 0x2000), (b"Beta", 0x1800), (None, 0x1900), (None, 0), (None, 0x2100)]))
    assert functions_at(found, 0x1800, 0x18FF, 0x1900, 0x1FFF, 0x2000, 0x2100) == [
        "Beta", "Beta", "#3", "#3", "Alpha", "#5",
    ]  # fmt: skip


def test_a_function_ends_where_the_function_table_says(image):
    """What is not exported lies between: it has no name rather than a wrong one."""
    table = [(0x1800, 0x1840, False), (0x1840, 0x1880, True), (0x1900, 0x1950, False), (0x2000, 0x2010, False)]
    found = image(pe(export=[(b"Alpha", 0x2000), (b"Beta", 0x1800), (b"leaf", 0x18A0)], functions=table, wide=True))
    assert functions_at(found, 0x1800, 0x183F, 0x1840, 0x187F) == ["Beta"] * 4  # a chained part is one with it
    assert functions_at(found, 0x1880, 0x18A0, 0x18FF, 0x1900, 0x1FFF) == ["", "leaf", "leaf", "", ""]
    assert functions_at(found, 0x200F, 0x2010) == ["Alpha", ""]


@pytest.mark.parametrize("damage", [(0, 0xFFFFFFFF), (4, 0xFFFFFFFF), (4, 0xFFFFFFF0)])
def test_a_function_table_that_cannot_be_believed_costs_its_borders_only(image, damage):
    content = bytearray(pe(export=[(b"Alpha", 0x2000)], functions=[(0x2000, 0x2010, False)], wide=True))
    at, value = damage
    struct.pack_into("<I", content, 0x80 + 24 + 112 + 8 * 3 + at, value)
    assert functions_at(image(bytes(content)), 0x2000) == ["Alpha"]


@pytest.mark.parametrize("name", [
    b"?alloc@Arena@@QEAAPEAX_K@Z", b"??1QString@@QEAA@XZ", b"@fast@8", b"_std@4", b"memcpy@@GLIBC_2.14",
])  # fmt: skip
def test_a_name_is_never_cut_at_an_at_sign(image, name, monkeypatch):
    """C++ names of Microsoft's are full of them, and fastcall and stdcall names end in one."""
    called = []
    monkeypatch.setattr(dbghelp, "undecorated", lambda raw: called.append(raw) or "")
    readable.cache_clear()
    assert functions_at(image(pe(export=[(name, 0x2000)])), 0x2000) == [name.decode()]
    assert called == ([name.decode()] if name.startswith(b"?") else [])
    readable.cache_clear()


@pytest.mark.parametrize(("content", "why"), [
    (b"MZ", "not in a file of 2"),
    (b"ELF?" * 64, "MZ"),
    (struct.pack("<2s58xI", b"MZ", 0xFFFFFFF0), "not in a file"),
    (pe()[:0x80] + b"NE\0\0" + pe()[0x84:], "PE signature"),
    (pe()[:0x86] + struct.pack("<H", 0xFFFF) + pe()[0x88:], "65535 sections"),
    (pe()[:0x86] + struct.pack("<H", 0) + pe()[0x88:], "0 sections"),
    (pe()[:0x94] + struct.pack("<H", 4) + pe()[0x96:], "cut off"),
    (pe()[:0x98] + struct.pack("<H", 0x107) + pe()[0x9A:], "0x107"),
    (pe()[:0x180], "not in a file"),
])  # fmt: skip
def test_a_file_that_is_not_believed_says_why(image, content, why):
    with pytest.raises(ImageError, match=why):
        image(content)


@pytest.mark.parametrize("count", [1 << 20, 0xFFFFFFFF])
def test_an_export_directory_with_impossible_counts_costs_the_names_only(image, count):
    content = bytearray(pe(export=[(b"Alpha", 0x2000)]))
    place = 0x1000 + 0x80200
    struct.pack_into("<II", content, place + 20, count, count)
    found = image(bytes(content))
    assert names(found, 0x2000) == ["CWDLL32.DLL!.text(1)"]
    assert len(found.symbols) == 0


GCC = shutil.which("x86_64-w64-mingw32-gcc")


@pytest.mark.skipif(not GCC, reason="only on machines with mingw-w64: tests/wine/run has it")
def test_a_dll_of_mingw(tmp_path):
    """C++ and fastcall names, an export by ordinal, and a function between that is not exported."""
    (tmp_path / "a.c").write_text("""
        #define F(name, n) __attribute__((noinline)) int name(int x) { \\
            volatile int y[64]; y[x & 63] = n; return y[3] + n; }
        F(method, 1) F(hidden, 2) F(fast, 3) F(other, 4) F(last, 5)
        int (*const use)(int) = hidden;
    """)
    (tmp_path / "a.def").write_text("""EXPORTS
        "?alloc@Arena@@QEAAPEAX_K@Z"=method
        "@fast@8"=fast
        other @7 NONAME
        last
    """)
    options = ["-shared", "-nostartfiles", "-O1", "-fno-toplevel-reorder", "-fno-ipa-icf", "-Wl,--entry=0", "-s"]
    subprocess.run([GCC, *options, "-o", "a.dll", "a.c", "a.def"], cwd=tmp_path, check=True, timeout=60)
    with ImageFile(str(tmp_path / "a.dll")) as file:
        found = read_image(file)
    assert not found.complete
    names_ = [found.symbol_name(i) for i in range(len(found.symbols))]
    assert names_ == ["?alloc@Arena@@QEAAPEAX_K@Z", "@fast@8", "#7", "last"]
    first, second = found.symbols[0], found.symbols[1]
    assert first["end"] <= second["start"] - 16  # hidden lies between
    assert found.build_id


OBJDUMP = shutil.which("x86_64-w64-mingw32-objdump")
WINE = sorted(map(str, Path("/usr/lib").glob("*/wine/x86_64-windows/*.dll")))


@pytest.mark.skipif(not (OBJDUMP and WINE), reason="only on machines with Wine and mingw-w64: tests/wine/run has them")
@pytest.mark.parametrize("path", WINE[:: max(1, len(WINE) // 6)])
def test_wines_dlls_as_objdump_reads_them(path):
    with ImageFile(path) as file:
        found = read_image(file)
    out = subprocess.run([OBJDUMP, "-h", path], capture_output=True, text=True, timeout=60, check=True).stdout
    listed = re.findall(r"^ +(\d+) (\S+) +([0-9a-f]{8}) +([0-9a-f]{16}) ", out, re.MULTILINE)
    ours = {int(row["number"]): (int(row["start"]), name)
            for name, row in zip(found.section_names, found.sections, strict=True)}  # fmt: skip
    assert len(ours) == len(listed)
    for number, name, _size, start in listed:  # a name of more than 8 bytes is in no section table
        at, called = ours[int(number) + 1]
        assert at == int(start, 16), name
        assert called == name or (len(name) > 8 and called.startswith("/")), name


def test_a_view_that_is_no_image_has_no_section(tmp_path):
    (tmp_path / "a.dll").write_bytes(pe())
    flat, known = ImageResolver().resolve(
        MappedFile(str(tmp_path / "a.dll")), np.array([OFFSET_UNKNOWN + 0x1000, 0x1000], "<u8")
    )
    assert (str(flat), flat.section) == ("a.dll", "")
    assert known.section == ".text"

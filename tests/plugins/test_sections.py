"""The resolver `sections` against binutils, on real binaries and on ones built here."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from kit.binutils import FLAVOURS, run

from wstrace.cli import main
from wstrace.interfaces import MappedFile
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.resolver import ImageResolver, module_name, read_image

if sys.platform != "linux":
    pytest.skip("binutils and ELF binaries are this test's oracles: Linux only", allow_module_level=True)


def sections_by_readelf(file: Path) -> list[tuple[int, str, int, int, int]]:
    """(number, name, address, file offset, size) of the sections that are in memory and in the file."""
    line = re.compile(r"^\s*\[\s*(\d+)\] (\S+)\s+(\S+)\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+) [0-9a-f]+\s+(\w*)\s+\d+")
    rows = [m.groups() for m in map(line.match, run("readelf", "-S", "-W", file).splitlines()) if m]
    return [(int(n), name, int(address, 16), int(offset, 16), int(size, 16))
            for n, name, kind, address, offset, size, flags in rows
            if "A" in flags and kind != "NOBITS" and int(size, 16)]  # fmt: skip


def real_binaries() -> list[Path]:
    libc = next(
        (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line), ""
    )
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
    numpys = Path(np.__file__).parent.glob("*core/_multiarray_umath*.so")  # core in numpy 1, _core in 2
    candidates = [Path(sys.executable).resolve(), Path(libc), library, *numpys]
    return [path for path in candidates if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def all_binaries(built: Path) -> list[Path]:
    return [*(built / name for name in (*FLAVOURS, "stripped")), *real_binaries()]


def test_sections_have_readelfs_number_name_and_address(built):
    for file in all_binaries(built):
        rows = sections_by_readelf(file)
        assert len(rows) > 8
        offsets = np.array([o + d for _, _, _, o, size in rows for d in (0, size // 2, size - 1)], "u8")
        expected = [(n, name, a + d) for n, name, a, _, size in rows for d in (0, size // 2, size - 1)]
        places = ImageResolver().resolve(MappedFile(str(file)), offsets)
        assert [(p.number, p.section, p.address) for p in places] == expected, file
        assert str(places[0]) == f"{file.name}!{rows[0][1]}({rows[0][0]})"


def test_lines_of_a_snapshot_are_cut_where_readelf_has_borders(capsys):
    libc, checked = real_binaries()[1], 0
    sections = [(f"{libc.name}!{name}({n})", o, o + size) for n, name, _, o, size in sections_by_readelf(libc)]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(libc))]
    files = [(*(int(word, 16) for word in row[0].split("-")), int(row[2], 16)) for row in maps]
    assert main(["snapshot", str(os.getpid()), "--sections", "--json"]) == 0
    for line in json.loads(capsys.readouterr().out)["runs"]:
        for offset in (line["address"] - start + o for start, end, o in files if start <= line["address"] < end):
            for begin, end in ((begin, end) for name, begin, end in sections if name == line["owner"]):
                checked += 1
                assert begin <= offset < offset + 4096 * (line["pages"] - 1) + 1 <= end
    assert checked > 3


def spelled(name: str) -> str:
    """The name without what binutils and the library spell differently: `> >`, `std::string`."""
    whole = "std::basic_string<char,std::char_traits<char>,std::allocator<char>>"
    return re.sub(r"std::string\b", whole, name).replace(" ", "")


def functions_by_nm(file: Path, *options: str) -> dict[int, set[str]]:
    names = {}
    for line in run("nm", "-n", "-C", *options, file).splitlines():
        address, _, rest = line.partition(" ")
        if address and rest[0] in "TtWwiu":
            names.setdefault(int(address, 16), set()).add(spelled(rest[2:].partition("@")[0]))
    return names


def offset_of(address: np.ndarray, file: Path) -> np.ndarray:
    """Link-time addresses as file offsets, by readelf's program headers: the way back, independent of our own."""
    found = np.zeros(len(address), "u8")
    for m in re.finditer(r"LOAD\s+(\w+) (\w+) \w+ (\w+) ", run("readelf", "-l", "-W", file)):
        start, vaddr, size = (np.uint64(int(word, 16)) for word in m.groups())
        inside = (address >= vaddr) & (address < vaddr + size)
        found[inside] = address[inside] - vaddr + start
    return found


def in_text(addresses: dict[int, set[str]], file: Path) -> np.ndarray:
    _, _, start, _, size = next(row for row in sections_by_readelf(file) if row[1] == ".text")
    return np.array([address for address in sorted(addresses) if start <= address < start + size], "u8")


def test_functions_agree_with_nm(built):
    compared = held_back = 0
    for file in [*(built / flavour for flavour in FLAVOURS), *real_binaries()]:
        complete = bool(run("nm", file))
        names = functions_by_nm(file, *([] if complete else ["-D"]))
        addresses = in_text(names, file)
        for address, place in zip(
            addresses.tolist(), ImageResolver().resolve(MappedFile(str(file)), offset_of(addresses, file)), strict=True
        ):
            assert place.address == address
            if place.function.startswith("_Z"):
                held_back += 1  # the library cannot read it within its bounds
            elif place.displacement == 0 and (complete or spelled(place.function) in names[address]):
                assert spelled(place.function) in names[address], (file, hex(address))
                compared += 1
            else:
                assert not complete  # libc: the distribution's debug symbols know more names than nm -D
    assert compared > 5000
    assert held_back < compared / 200


def test_functions_agree_with_addr2line_inside_of_them(built):
    for flavour in FLAVOURS:
        file = built / flavour
        names = functions_by_nm(file)
        addresses = in_text(names, file)[:300] + np.uint64(1)
        places = ImageResolver().resolve(MappedFile(str(file)), offset_of(addresses, file))
        lines = run("addr2line", "-f", "-C", "-e", file, *map(hex, addresses.tolist())).splitlines()[::2]
        pairs = [(p, line) for p, line in zip(places, lines, strict=True) if p.function]
        assert len(pairs) > 0.9 * len(places)  # a function of one byte does not reach to its second
        assert all(p.displacement == 1 and spelled(p.function) in names[p.address - 1] for p, _ in pairs)
        same = sum(spelled(p.function).partition("(")[0] == spelled(line).partition("(")[0] for p, line in pairs)
        assert same > 0.8 * len(pairs)  # of several names for one address each takes one


def test_the_last_page_of_data_holds_the_beginning_of_bss(built):
    file = built / "old_layout"
    data = max(sections_by_readelf(file), key=lambda row: row[2])
    (place,) = ImageResolver().resolve(MappedFile(str(file)), np.array([data[3] + data[4] + 64], "u8"))
    assert place.section == ".bss"
    assert place.number == data[0] + 1


def test_a_stripped_library_keeps_its_exported_names(built):
    main = next(a for a, names in functions_by_nm(built / "shared", "-D").items() if "main" in names)
    offset = offset_of(np.array([main + 2], "u8"), built / "stripped")
    (place,) = ImageResolver().resolve(MappedFile(str(built / "stripped")), offset)
    assert place.symbol == "stripped!main+0x2"


def test_build_ids(built):
    notes = run("readelf", "-n", built / "pie")
    build_id = re.search(r"Build ID: (\w+)", notes)[1]
    with ImageFile(str(built / "pie")) as file:
        assert read_image(file).build_id == build_id
    with ImageFile(str(built / "no_build_id")) as file:
        assert read_image(file).build_id == ""
    resolver, offset = ImageResolver(), np.array([0x1000], "u8")
    assert resolver.resolve(MappedFile(str(built / "pie"), build_id=build_id), offset)[0].number
    (other,) = resolver.resolve(MappedFile(str(built / "shared"), build_id=build_id + "00"), offset)
    assert (other.number, other.why) == (0, "is not the file that was traced")
    # known by its build-id, the file itself is not opened again
    assert resolver.resolve(MappedFile("/gone/pie", build_id=build_id), offset)[0].number


def test_a_replaced_file_is_read_again(built, tmp_path):
    resolver, offset = ImageResolver(), np.array([0x1000], "u8")
    shutil.copy(built / "pie", tmp_path / "it")
    assert resolver.resolve(MappedFile(str(tmp_path / "it")), offset)[0].number
    (tmp_path / "it").unlink()
    (tmp_path / "it").write_text("a script now")
    assert not resolver.resolve(MappedFile(str(tmp_path / "it")), offset)[0].number


@pytest.mark.parametrize("file", ["/nowhere/lib.so", "[heap]", "", "a\0b", "/dev/zero", "/proc/self", "C:\\x\\y.dll"])
def test_what_cannot_be_read_keeps_its_name(file):
    resolver = ImageResolver()
    places = resolver.resolve(MappedFile(file), np.array([5, 6], "u8"))
    assert [(p.module, p.number, p.function, p.address) for p in places] == [
        (module_name(file), 0, "", 5), (module_name(file), 0, "", 6)]  # fmt: skip


def test_a_fifo_does_not_stop_the_reader(tmp_path):
    import os

    os.mkfifo(tmp_path / "fifo")
    assert not ImageResolver().resolve(MappedFile(str(tmp_path / "fifo")), np.array([0], "u8"))[0].number


def test_base_names():
    assert module_name("/usr/lib/libc.so.6 (deleted)") == "libc.so.6"
    assert module_name("C:\\Windows\\ntdll.dll") == "ntdll.dll"
    assert module_name("/odd/na\\me.so") == "na\\me.so"


def test_a_file_that_only_the_name_space_of_its_process_has(built):
    """A container: the path exists in its mount name space alone."""
    import os

    place = f"/mnt/wstrace-{os.getpid()}"
    script = f"mount -t tmpfs tmpfs /mnt && cp {built / 'pie'} {place} && echo ready && read line"
    if not shutil.which("unshare") or os.geteuid():
        pytest.skip("needs root and unshare (util-linux)")
    child = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        if child.stdout.readline() != "ready\n":
            pytest.skip("a mount name space is refused here")
        assert not Path(place).exists()
        resolver = ImageResolver()
        (inside,) = resolver.resolve(MappedFile(place, pid=child.pid), np.array([0x1000], "u8"))
        (outside,) = resolver.resolve(MappedFile(place), np.array([0x1000], "u8"))
        child.communicate("\n")
    assert inside.number
    assert not outside.number

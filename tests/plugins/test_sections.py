"""The resolver `sections`: against binutils, which file it is that was mapped, and files that lie."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest
from kit.binutils import FLAVOURS, run
from kit.command_line import wstrace

from wstrace.cli import main
from wstrace.interfaces import MappedFile
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAPPING, PAGE_FAULT, PROCESS, PROCESS_SEEN
from wstrace.testing import batch_of
from wstrace_plugins.os import elf as elf_files
from wstrace_plugins.symbols import elf
from wstrace_plugins.symbols.image import SECTION, SYMBOL, Image, ImageFile, demangle
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
    # more than an inode: the same build in another place, or on another machine, is the same code
    assert resolver.resolve(MappedFile(str(built / "pie"), build_id=build_id, dev=1, ino=2), offset)[0].number
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


def test_base_names():
    assert module_name("/usr/lib/libc.so.6 (deleted)") == "libc.so.6"
    assert module_name("C:\\Windows\\ntdll.dll") == "ntdll.dll"
    assert module_name("/odd/na\\me.so") == "na\\me.so"


def test_a_file_that_only_the_name_space_of_its_process_has(built):
    """A container: the path exists in its mount name space alone."""
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


def inode_of(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"dev": status.st_dev, "ino": status.st_ino}


def test_another_file_of_the_same_name_is_not_believed(built, tmp_path):
    """Without a build-id the inode tells: a library that was renamed over during the run, a chroot's /bin/cat."""
    resolver, offset = ImageResolver(), np.array([0x1000], "u8")
    lib = tmp_path / "lib"
    shutil.copy(built / "no_build_id", lib)
    mapped = inode_of(lib)
    assert resolver.resolve(MappedFile(str(lib), **mapped), offset)[0].number, "the file that was mapped"
    shutil.copy(built / "pie", tmp_path / "new")
    (tmp_path / "new").rename(lib)
    (place,) = resolver.resolve(MappedFile(str(lib), **mapped), offset)
    assert (place.number, place.function, place.why) == (0, "", "is not the file that was traced")
    (other_build,) = resolver.resolve(MappedFile(str(lib), build_id="00" * 20), offset)
    assert other_build.why == "is not the file that was traced"
    assert resolver.resolve(MappedFile(str(tmp_path / "gone")), offset)[0].why == "cannot be read"
    for _ in range(2):
        assert resolver.resolve(MappedFile(__file__), offset)[0].why == "is no ELF or PE file that can be believed"
    (other_device,) = resolver.resolve(MappedFile(str(lib), dev=mapped["dev"] + 1, ino=inode_of(lib)["ino"]), offset)
    assert (other_device.number, other_device.why) == (0, "is not the file that was traced")


def test_a_file_that_was_overwritten_in_place_after_the_trace_is_not_believed(built, tmp_path):
    """The same inode, and no build-id: the time of its last change tells."""
    resolver, offset = ImageResolver(), np.array([0x1000], "u8")
    lib = tmp_path / "lib"
    shutil.copy(built / "no_build_id", lib)
    mapped, ended = inode_of(lib), time.time_ns()
    assert resolver.resolve(MappedFile(str(lib), **mapped, as_of_ns=ended), offset)[0].number
    while time.time_ns() < ended + 20_000_000:  # a file's times are those of the kernel's last tick
        time.sleep(0.001)
    with lib.open("r+b") as file:
        file.write((built / "pie").read_bytes())
    assert inode_of(lib) == mapped
    (place,) = resolver.resolve(MappedFile(str(lib), **mapped, as_of_ns=ended), offset)
    assert (place.number, place.function, place.why) == (0, "", "has no build-id and was changed after the trace")


def test_a_file_with_more_symbols_than_are_read_says_so(built, monkeypatch):
    monkeypatch.setattr(elf_files, "MAX_SYMBOLS", 3)
    places = ImageResolver().resolve(MappedFile(str(built / "pie")), np.arange(0x1000, 0x1100, 16, "u8"))
    assert {place.why for place in places if not place.function} == {"has more symbols than are read"}
    assert all(place.number for place in places)


def test_after_its_process_has_ended_a_name_alone_is_not_believed(built):
    with subprocess.Popen(["true"]) as ended:
        pass
    offset, file = np.array([0x1000], "u8"), built / "no_build_id"
    assert not ImageResolver().resolve(MappedFile(str(file), pid=ended.pid), offset)[0].number
    assert ImageResolver().resolve(MappedFile(str(file), pid=ended.pid, **inode_of(file)), offset)[0].number


def test_links_are_followed_in_the_root_of_the_process(tmp_path):
    from wstrace_plugins.os.linux import named_file

    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "there").write_text("theirs")
    (tmp_path / "secret").write_text("ours")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to("/lib/there")
    (root / "folder").symlink_to("/lib")

    def content(path):
        fd = named_file.open_named(path, str(root))
        assert not os.get_inheritable(fd)
        with os.fdopen(fd) as file:
            return file.read()

    assert content("/lib/there") == "theirs"
    for path in ("/absolute", "/../../secret", "/lib/missing"):
        with pytest.raises(OSError):  # noqa: PT011 - which errno it is differs
            content(path)
    for path in ("/inside", "/folder/there"):
        assert content(path) == "theirs"


@pytest.mark.parametrize(
    "file",
    [r"\\server\share\x.dll", "//server/share/x.dll", r"\\?\UNC\server\x.dll", r"\Device\Mup\server\share\x.dll",
     r"\Device\LanmanRedirector\;Z:0\server\x.dll", "/\\server\\x"],
)  # fmt: skip
def test_no_file_of_another_machine_is_opened(file, monkeypatch):
    """The name stands in a trace that anyone may have made: to open it would send the user's credentials there."""
    from wstrace_plugins.symbols import image

    opened = []
    monkeypatch.setattr(image.os, "open", lambda path, *_: opened.append(path) or (_ for _ in ()).throw(OSError()))
    assert not ImageResolver().resolve(MappedFile(file), np.array([0x1000], "u8"))[0].number
    assert opened == []


class Opened:
    """Whether a file is opened: inotify(7) tells it, also of devices, and not of O_PATH, which opens nothing."""

    def __init__(self, path: Path | str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(0o4000)
        if libc.inotify_add_watch(self.fd, str(path).encode(), 0x20) < 0:  # IN_OPEN
            pytest.skip(f"{path} cannot be watched here")

    def __call__(self) -> bool:
        try:
            return bool(os.read(self.fd, 4096))
        except BlockingIOError:
            return False


def trace_of(path: Path, name: str) -> Path:
    """A trace in which code of that file caused a fault on it."""
    from kit.msgpack_scripted import started

    exporter, context = started(path)
    place = {"start": 0x10000, "end": 0x20000, "offset": 0, "file": name, "dev": 0, "ino": 0, "build_id": 0}
    who = {"pid": 77_777, "tid": 77_777}
    strings = context.strings
    exporter.export(batch_of(MAPPING, strings, id=1, time_ns=1, pid=77_777, flags=KIND_FILE << KIND_SHIFT | 5, **place))
    exporter.export(batch_of(PROCESS, strings, time_ns=1, ppid=1, event=PROCESS_SEEN, name="prog", code=0, **who))
    exporter.export(batch_of(PAGE_FAULT, strings, time_ns=[2, 3], pc=0x10100, va=[0x10200, 0x11200], flags=0,
                             mapping=1, pc_mapping=1, **who))  # fmt: skip
    exporter.close()
    return path


@pytest.mark.parametrize("kind", ["device", "fifo"])
def test_what_a_trace_names_is_opened_by_no_command_unless_it_is_a_regular_file(kind, tmp_path):
    """To open a device may have effects: /dev/watchdog reboots the machine."""
    named = tmp_path / "site-packages" / "pkg" / kind
    named.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(named)
    elif not (named := Path("/dev/loop-control")).exists():
        named = Path("/dev/null")
    opened, trace = Opened(named), trace_of(tmp_path / "x.wst", str(named))
    for words in (["report", trace, "--by", "function"], ["report", trace, "--by", "section"],
                  ["report", trace, "--by", "instruction"], ["report", trace, "--by", "stack"],
                  ["report", trace, "--html", tmp_path / "x.html"], ["report", trace, "--format", "jsonl"],
                  ["convert", trace, "-o", tmp_path / "x.pb.gz"], ["diff", trace, trace],
                  ["query", trace, "SELECT * FROM pages"]):  # fmt: skip
        done = wstrace(*words)
        assert "Traceback" not in done.stderr, done.stderr
        assert not opened(), words
    assert named.name in wstrace("report", trace, "--by", "function").stdout


def test_a_trace_that_is_a_link_to_a_device_is_refused_unopened(tmp_path):
    device = "/dev/loop-control" if Path("/dev/loop-control").exists() else "/dev/null"
    (tmp_path / "x.wst").symlink_to(device)
    opened = Opened(device)
    for words in (["report"], ["info"], ["convert", "-o", tmp_path / "y.wst"]):
        done = wstrace(*words, tmp_path / "x.wst")
        assert (done.returncode, "is not a regular file" in done.stderr) == (125, True), done.stderr
    assert not opened()


def test_a_name_in_another_mount_name_space_opens_no_device_of_ours(tmp_path):
    device = "/dev/loop-control" if Path("/dev/loop-control").exists() else "/dev/null"
    shutil.copy(shutil.which("sleep") or "", tmp_path / "program")
    script = f"mount --bind {tmp_path / 'program'} {device} && echo ready && exec {device} 1.5"
    child = subprocess.Popen(["unshare", "-rm", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    with child:
        if child.stdout.readline() != "ready\n":
            pytest.skip("a mount name space is refused here")
        opened = Opened(device)
        done = wstrace("attach", child.pid, "-s", "page_faults:stacks=native", "-o", tmp_path / "x.wst")
        done = wstrace("report", tmp_path / "x.wst", "--by", "function") if not done.returncode else done
        assert "Traceback" not in done.stderr, done.stderr
    assert not opened()


def test_the_kernels_own_files_are_not_opened():
    from wstrace_plugins.os.linux.named_file import open_named

    for path in ("/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"):
        with pytest.raises(OSError, match="no regular file"):
            open_named(path)


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


def test_names_of_symbols_that_point_nowhere_are_left_out():
    raw = np.zeros(4, elf_files.SYMBOL)
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
    raw = np.zeros(len(rows), elf_files.SYMBOL)
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
        ("_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3fmt17hb09d0c74ae4b8a9fE", "<&T as core::fmt::Debug>::fmt"),
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

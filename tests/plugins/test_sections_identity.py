"""Identity of files: another file that has the name, the inode or the place of the mapped one is not believed."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import wstrace

from wstrace.interfaces import MappedFile
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAPPING, PAGE_FAULT, PROCESS, PROCESS_SEEN
from wstrace.testing import batch_of
from wstrace_plugins.os import elf
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.resolver import ImageResolver, read_image

if sys.platform != "linux":
    pytest.skip("binutils and ELF binaries are this test's oracles: Linux only", allow_module_level=True)


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
    monkeypatch.setattr(elf, "MAX_SYMBOLS", 3)
    places = ImageResolver().resolve(MappedFile(str(built / "pie")), np.arange(0x1000, 0x1100, 16, "u8"))
    assert {place.why for place in places if not place.function} == {"has more symbols than are read"}
    assert all(place.number for place in places)


def test_a_build_id_tells_more_than_an_inode(built, tmp_path):
    """The same build in another place, or on another machine, is the same code."""
    with ImageFile(str(built / "pie")) as file:
        build_id = read_image(file).build_id
    shutil.copy(built / "pie", tmp_path / "copy")
    copy = str(tmp_path / "copy")
    (place,) = ImageResolver().resolve(MappedFile(copy, build_id=build_id, dev=1, ino=2), np.array([0x1000], "u8"))
    assert place.number


def test_after_its_process_has_ended_a_name_alone_is_not_believed(built):
    with subprocess.Popen(["true"]) as ended:
        pass
    offset, file = np.array([0x1000], "u8"), built / "no_build_id"
    assert not ImageResolver().resolve(MappedFile(str(file), pid=ended.pid), offset)[0].number
    assert ImageResolver().resolve(MappedFile(str(file), pid=ended.pid, **inode_of(file)), offset)[0].number


def test_links_are_followed_in_the_root_of_the_process(tmp_path):
    import os

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


def test_what_maps_tells_of_a_file(built):
    from wstrace_plugins.os.linux.named_file import identity_in_maps

    with ImageFile(str(built / "pie")) as file:
        assert identity_in_maps(file.stream.fileno()) == file.identity[:2]


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
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(0o4000)
        if libc.inotify_add_watch(self.fd, str(path).encode(), 0x20) < 0:  # IN_OPEN
            pytest.skip(f"{path} cannot be watched here")

    def __call__(self) -> bool:
        import os

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
    import os

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

"""Outputs in folders of others, as root and under sudo: nothing that somebody planted there is followed or written."""

import os
import stat
import threading
from pathlib import Path

import pytest
from kit.another_user import CALLER

from wstrace.errors import OutputError
from wstrace.output_file import open_output, whole_file

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="plays users: needs root")
STRANGER = 54_322


@pytest.fixture
def sudo(monkeypatch):
    monkeypatch.setenv("SUDO_UID", str(CALLER))
    monkeypatch.setenv("SUDO_GID", str(CALLER))


@pytest.fixture
def victim(tmp_path):
    """A file that is root's alone."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    path.chmod(0o600)
    yield path
    assert path.read_bytes() == b"precious"
    assert (path.stat().st_uid, path.stat().st_gid) == (0, 0)


def refused(path: Path, **how: bool) -> str:
    before = {name.name: name.lstat().st_mtime_ns for name in path.parent.iterdir()}
    with pytest.raises(OutputError) as caught:
        os.close(open_output(str(path), **how).fd)
    assert {name.name: name.lstat().st_mtime_ns for name in path.parent.iterdir()} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_under_sudo_a_new_file_is_the_callers(folder, sudo):
    opened = open_output(str(folder / "x.wst"))
    os.close(opened.fd)
    status = (folder / "x.wst").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (CALLER, CALLER, 0o600)
    assert opened.created
    assert opened.regular


def test_under_sudo_files_are_opened_with_the_callers_rights_and_no_more(folder, tmp_path, sudo):
    assert f"uid {CALLER}" in refused(tmp_path / "x.wst")
    groups = os.getgroups()
    (tmp_path / "root_group").mkdir()
    os.chown(tmp_path / "root_group", 0, 0)
    (tmp_path / "root_group").chmod(0o770)  # writable to the group of root, which is none of the caller's
    assert "Permission denied" in refused(tmp_path / "root_group" / "x.wst")
    assert os.getgroups() == groups
    os.close(os.open(tmp_path / "we_are_root_again", os.O_CREAT | os.O_WRONLY))
    assert (tmp_path / "we_are_root_again").stat().st_uid == 0


def test_only_the_thread_that_opens_changes_its_rights(folder, sudo):
    """While one thread waits for a FIFO's reader with the caller's rights, the others are still root."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    os.chown(fifo, CALLER, CALLER)
    opened = []
    waiting = threading.Thread(target=lambda: opened.append(open_output(str(fifo)).fd), daemon=True)
    waiting.start()
    for number in range(200):
        other = folder / f"{number}"
        os.close(os.open(other, os.O_CREAT | os.O_WRONLY))
        assert other.stat().st_uid == 0
    reader = os.open(fifo, os.O_RDONLY)
    waiting.join(10)
    os.write(opened[0], b"trace")
    assert os.get_blocking(opened[0])
    assert os.read(reader, 10) == b"trace"
    for fd in (reader, opened[0]):
        os.close(fd)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("under_sudo", [False, True])
def test_a_symbolic_link_is_not_followed(folder, victim, force, under_sudo, request):
    if under_sudo:
        request.getfixturevalue("sudo")
    (folder / "x.wst").symlink_to(victim)
    (folder / "dangling").symlink_to(folder / "nothing")
    assert "symbolic link" in refused(folder / "x.wst", force=force)
    assert "symbolic link" in refused(folder / "dangling", force=force)


def test_a_hard_link_of_a_file_is_not_written(folder, victim):
    os.link(victim, folder / "x.wst")
    assert "2 names" in refused(folder / "x.wst", force=True)


@pytest.mark.parametrize("again", [False, True])
def test_a_hard_link_that_is_taken_away_meanwhile_is_not_written(folder, victim, again, monkeypatch):
    """After open() the attacker removes the link, fstat() counts one name; and puts it there again after that."""
    link, opens, fstat = folder / "x.wst", os.open, os.fstat
    os.link(victim, link)

    def attacked_open(path, *flags, **named):
        fd = opens(path, *flags, **named)
        link.unlink()
        return fd

    def attacked_fstat(fd):
        status = fstat(fd)
        if again and os.path.samestat(status, victim.stat()):
            os.link(victim, link)
        return status

    monkeypatch.setattr(os, "open", attacked_open)
    monkeypatch.setattr(os, "fstat", attacked_fstat)
    with pytest.raises(OutputError):
        open_output(str(link), force=True)


def test_a_file_or_fifo_of_another_user_is_not_written(folder, sudo):
    planted, fifo = folder / "x.wst", folder / "fifo"
    planted.write_bytes(b"mine")
    os.mkfifo(fifo)
    for path in (planted, fifo):
        os.chown(path, STRANGER, STRANGER)
        path.chmod(0o666)
        for how in ({}, {"force": True}):
            assert f"uid {STRANGER}" in refused(path, **how)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # also one that would not have to be waited for
    assert f"uid {STRANGER}" in refused(fifo, force=True)
    os.close(reader)


def test_a_socket_and_a_block_device_are_not_written(folder):
    import socket

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.close()
    assert "neither" in refused(folder / "socket", force=True)
    os.mknod(folder / "loop", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    with pytest.raises(OutputError):
        open_output(str(folder / "loop"), force=True)


def test_a_name_that_changes_meanwhile_never_reaches_another_file(folder, victim):
    """The race of stat() and open(): a FIFO and a link to the victim change places all the time."""
    import ctypes

    exchange = ctypes.CDLL(None).renameat2
    os.mkfifo(folder / "fifo")
    reader = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    (folder / "x.wst").symlink_to("fifo")
    (folder / "y").symlink_to(victim)
    stop = threading.Event()
    x, y = (str(folder / name).encode() for name in ("x.wst", "y"))

    def swap():
        while not stop.is_set():
            exchange(-100, x, -100, y, 2)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(2000):
            with pytest.raises(OutputError):
                open_output(str(folder / "x.wst"))
    finally:
        stop.set()
        swapping.join()
        os.close(reader)


def test_a_whole_file_appears_at_once_under_a_name_that_nobody_could_plant(folder, victim, sudo):
    out = folder / "o.csv"
    for pid in range(os.getpid(), os.getpid() + 50):
        (folder / f"o.csv.{pid}.part").symlink_to(victim)
    planted = {entry.name for entry in folder.iterdir()}
    with whole_file(str(out)) as file:
        file.write(b"rows")
        assert not out.exists()
        (unfinished,) = {entry.name for entry in folder.iterdir()} - planted
        assert len(unfinished) > len("o.csv..part") + 15
    assert out.read_bytes() == b"rows"
    assert out.stat().st_uid == CALLER
    assert {entry.name for entry in folder.iterdir()} == planted | {"o.csv"}


def test_a_name_may_be_as_long_as_the_system_permits(folder):
    out = folder / ("\u00e4" * 125 + ".wst")
    for text in (b"old", b"new"):
        with whole_file(str(out), force=True) as file:
            file.write(text)
    assert (out.read_bytes(), list(folder.iterdir())) == (b"new", [out])


def test_a_whole_file_replaces_only_with_force_and_leaves_nothing_when_it_fails(folder):
    out = folder / "o.csv"
    out.write_bytes(b"old")
    with pytest.raises(OutputError, match="-f"), whole_file(str(out)):
        pass
    with pytest.raises(KeyError), whole_file(str(out), force=True) as file:
        raise KeyError(file.write(b"half"))
    assert out.read_bytes() == b"old"
    with whole_file(str(out), force=True) as file:
        file.write(b"new")
    assert out.read_bytes() == b"new"
    with pytest.raises(OutputError, match="exists"), whole_file(str(folder / "late")) as file:
        (folder / "late").write_bytes(b"somebody was faster")
    assert (folder / "late").read_bytes() == b"somebody was faster"
    assert sorted(entry.name for entry in folder.iterdir()) == ["late", "o.csv"]


def test_a_whole_file_to_a_link_is_refused_and_a_device_is_written_not_replaced(folder, victim):
    (folder / "o.csv").symlink_to(victim)
    with pytest.raises(OutputError, match="symbolic link"), whole_file(str(folder / "o.csv"), force=True):
        pass
    with whole_file("/dev/null", force=True) as file:
        file.write(b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116


def test_a_descriptor_that_was_handed_to_us_is_written_as_it_is(folder):
    """`-o >(command)` of a shell is /dev/fd/63: a link of the system's own making."""
    read, write = os.pipe()
    for name in (f"/dev/fd/{write}", f"/proc/self/fd/{write}"):
        opened = open_output(name)
        os.write(opened.fd, b"trace")
        os.close(opened.fd)
        assert os.read(read, 100) == b"trace"
        assert not opened.created
        assert not opened.regular
    for fd in (read, write):
        os.close(fd)

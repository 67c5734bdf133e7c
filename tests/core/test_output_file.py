"""Outputs as root and under sudo, in files and folders of others: nothing planted there is followed or written."""

import contextlib
import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.another_user import CALLER

from wstrace.analysis.baseline import Baseline
from wstrace.errors import OutputError
from wstrace.output_file import (
    link,
    make_folders,
    open_output,
    open_own,
    own_folder,
    remove,
    sync,
    temporary_folder,
    whole_file,
)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="plays users: needs root"),
    pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="needs descriptors of places (Linux)"),
]
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


@contextlib.contextmanager
def exchanged(one: Path, other: Path) -> Iterator[None]:
    """Two names change places all the time."""
    exchange, stop = ctypes.CDLL(None).renameat2, threading.Event()

    def swap():
        while not stop.is_set():
            exchange(-100, os.fsencode(one), -100, os.fsencode(other), 2)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        yield
    finally:
        stop.set()
        swapping.join()


def test_a_name_that_changes_meanwhile_never_reaches_another_file(folder, victim):
    """The race of stat() and open(): a FIFO and a link to the victim change places all the time."""
    os.mkfifo(folder / "fifo")
    reader = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    (folder / "x.wst").symlink_to("fifo")
    (folder / "y").symlink_to(victim)
    with exchanged(folder / "x.wst", folder / "y"):
        for _ in range(2000):
            with pytest.raises(OutputError):
                open_output(str(folder / "x.wst"))
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


@pytest.fixture(autouse=True)
def no_sudo(monkeypatch):
    """Under sudo, files are written with the rights of its caller, whose links are followed."""
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.fixture
def closed(tmp_path):
    """A folder that is root's, in which nothing may change."""
    path = tmp_path / "closed"
    path.mkdir()
    (path / "old").write_bytes(b"precious")
    yield path
    assert [name.name for name in path.iterdir()] == ["old"]
    assert (path / "old").read_bytes() == b"precious"


def planted(path: Path, to: Path | str, uid: int = CALLER) -> Path:
    path.symlink_to(to)
    os.lchown(path, uid, uid)
    return path


def write(path: Path) -> None:
    """Writes two files of that name in both ways in which outputs are written."""
    os.close(open_output(str(path)).fd)
    with whole_file(f"{path}.whole") as file:
        file.write(b"rows")


def refused_in_all_ways(path: Path) -> str:
    """The reason why an output is refused in all ways."""
    shown = set()
    for force in (False, True):
        with pytest.raises(OutputError) as caught:
            open_output(str(path), force=force)
        shown.add(str(caught.value))
        with pytest.raises(OutputError) as caught, whole_file(str(path), force=force):
            pass
        shown.add(str(caught.value))
    (only,) = shown
    assert "\n" not in only
    return only


@pytest.mark.parametrize("below", ["", "sub"])
@pytest.mark.parametrize("uid", [0, CALLER])
def test_a_link_in_a_folder_of_another_user_is_not_followed(folder, closed, uid, below):
    """Also one that root made: the owner of the folder may have put it under that name."""
    planted(folder / "link", closed.parent if below else closed, uid)
    path = folder / "link" / ("closed" if below else "") / "x.wst"
    assert refused_in_all_ways(path) == (
        f"cannot write {path}: its folder link is a symbolic link that uid {CALLER} may change, and root does not "
        "follow it; name the folder that it leads to"
    )


def test_nothing_is_made_read_or_removed_through_such_a_link(folder, closed):
    planted(folder / "link", closed)
    old = str(folder / "link" / "old")
    for call in (lambda: own_folder(f"{old}.folder"), lambda: open_own(old), lambda: link(old, f"{old}.again"),
                 lambda: sync(old)):  # fmt: skip
        with pytest.raises(OutputError, match="root does not follow it"):
            call()
    with pytest.raises(PermissionError, match="root does not follow it"):
        remove(old)


@pytest.mark.parametrize("below", ["", "sub"])
def test_no_folder_is_made_behind_such_a_link(folder, closed, below):
    """Of a baseline and parts that wait for an upload; the name of the last may end in `/`."""
    planted(folder / "link", closed)
    new = folder / "link" / below / "new"
    for call in (Baseline(str(new / "baseline.json")).save,
                 Baseline(str(folder / "link" / ".." / "closed" / "baseline.json")).save,
                 lambda: own_folder(f"{new}/")):  # fmt: skip
        with pytest.raises(OutputError, match="root does not follow it; name the folder that it leads to"):
            call()


def test_missing_folders_are_made_in_those_of_another_user_and_behind_links_of_root(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    planted(tmp_path / "traces", "real", 0)
    (tmp_path / "real").mkdir()
    (tmp_path / "file").touch()
    for path in (folder / "a" / "b" / "c", "d//e/./f/", "new/../other/g", tmp_path / "traces" / "h" / "i", "/", "d"):
        for _ in range(2):
            make_folders(str(path))
            assert Path(path).is_dir()
    assert (tmp_path / "real" / "h" / "i").is_dir()
    for path in ("", str(tmp_path / "file" / "x"), str(tmp_path / "file")):
        with pytest.raises(OSError, match=r"^\[Errno") if path else contextlib.nullcontext():
            make_folders(path)
    Baseline("d/j/baseline.json").save()
    own_folder(f"{folder / 'd' / 'k'}/")
    assert sorted(made.name for made in (folder / "d").iterdir()) == ["e", "j", "k"]


def test_the_link_of_another_user_to_which_one_of_roots_leads_is_not_followed(folder, closed, tmp_path):
    planted(folder / "link", closed)
    planted(tmp_path / "traces", folder / "link", 0)
    assert "its folder link is" in refused_in_all_ways(tmp_path / "traces" / "x.wst")


def test_links_of_root_in_its_own_folders_are_followed(tmp_path, monkeypatch):
    """As /var/run, which leads to /run."""
    (tmp_path / "real" / "sub").mkdir(parents=True)
    planted(tmp_path / "absolute", tmp_path / "real", 0)
    planted(tmp_path / "relative", "./absolute//sub/..", 0)
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate((tmp_path / "absolute", tmp_path / "relative" / "sub", Path("relative"), Path())):
        write(name / f"{number}.wst")
        for made in (name / f"{number}.wst", name / f"{number}.wst.whole"):
            assert made.exists()
    assert len(list((tmp_path / "real").glob("*.wst"))) == 2


def test_in_a_sticky_folder_the_links_of_root_are_followed_and_those_of_others_not(open_folder, closed):
    sticky = open_folder / "tmp"
    (sticky / "real").mkdir(parents=True)
    sticky.chmod(0o1777)
    write(planted(sticky / "ours", "real", 0) / "x.wst")
    assert len(list((sticky / "real").iterdir())) == 2
    assert f"that uid {CALLER} may change" in refused_in_all_ways(planted(sticky / "theirs", closed) / "x.wst")


def test_an_output_is_refused_by_its_own_name_not_by_that_of_an_unfinished_file(tmp_path, monkeypatch):
    path = tmp_path / "none" / "x.html"
    for uid in (0, CALLER):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert (
            refused_in_all_ways(path) == f"cannot write {path}: No such file or directory; create its directory first"
        )


def test_a_user_s_own_links_are_followed_by_that_user_also_under_sudo(folder, monkeypatch, request):
    (folder / "real").mkdir()
    os.chown(folder / "real", CALLER, CALLER)
    planted(folder / "link", "real")
    with monkeypatch.context() as user:
        user.setattr(os, "geteuid", lambda: CALLER)
        write(folder / "link" / "x.wst")
    request.getfixturevalue("sudo")
    write(folder / "link" / "y.wst")
    assert len(list((folder / "real").iterdir())) == 4


@pytest.mark.parametrize("caller", [None, CALLER])
def test_in_a_temporary_folder_outputs_can_be_written_also_under_sudo(monkeypatch, caller):
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
        if caller is not None:
            monkeypatch.setenv(name, str(caller))
    with temporary_folder() as name:
        write(Path(name) / "x.wst")
        status = Path(name).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (caller or 0, 0o700)
        assert len(list(Path(name).iterdir())) == 2
    assert not Path(name).exists()


def test_real_folders_of_another_user_are_written(folder):
    (folder / "a" / "b").mkdir(parents=True)
    os.chown(folder / "a", CALLER, CALLER)
    path = folder / "a" / ".." / "a" / "b" / "x.wst"
    write(path)
    link(str(path), f"{path}.again")
    sync(str(path))
    remove(f"{path}.again")
    os.close(open_output(str(path), force=True).fd)
    own_folder(str(path.parent / "made"))
    os.close(open_own(str(path)))
    assert sorted(name.name for name in path.parent.iterdir()) == ["made", "x.wst", "x.wst.whole"]
    remove(str(path))
    assert not path.exists()


def test_a_folder_that_is_exchanged_for_a_link_all_the_time_leads_nowhere_else(folder, closed):
    """The race of a look at the folder and open(): a folder and a link to the closed one change places all the time."""
    (folder / "sub").mkdir()
    with exchanged(folder / "sub", planted(folder / "link", closed)):
        for number in range(500):
            for name in (f"{number}", "old"):
                with contextlib.suppress(OutputError):
                    os.close(open_output(str(folder / "sub" / name), force=True).fd)


def test_links_that_lead_to_each_other_are_refused_in_one_line(tmp_path):
    planted(tmp_path / "one", "two", 0)
    planted(tmp_path / "two", "one", 0)
    assert "symbolic link" in refused_in_all_ways(tmp_path / "one" / "x.wst")

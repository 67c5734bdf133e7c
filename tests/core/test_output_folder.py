"""Folders of outputs, as root: a symbolic link on the way leads nowhere that another user chose."""

import contextlib
import os
import threading
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


@pytest.fixture(autouse=True)
def no_sudo(monkeypatch):
    """Under sudo, files are written with the rights of its caller, whose links are followed."""
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.fixture
def victim(tmp_path):
    """A folder that is root's, in which nothing may change."""
    path = tmp_path / "victim"
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


def refused(path: Path) -> str:
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
def test_a_link_in_a_folder_of_another_user_is_not_followed(folder, victim, uid, below):
    """Also one that root made: the owner of the folder may have put it under that name."""
    planted(folder / "link", victim.parent if below else victim, uid)
    path = folder / "link" / ("victim" if below else "") / "x.wst"
    assert refused(path) == (
        f"cannot write {path}: its folder link is a symbolic link that uid {CALLER} may change, and root does not "
        "follow it; name the folder that it leads to"
    )


def test_nothing_is_made_read_or_removed_through_such_a_link(folder, victim):
    planted(folder / "link", victim)
    old = str(folder / "link" / "old")
    for call in (lambda: own_folder(f"{old}.folder"), lambda: open_own(old), lambda: link(old, f"{old}.again"),
                 lambda: sync(old)):  # fmt: skip
        with pytest.raises(OutputError, match="root does not follow it"):
            call()
    with pytest.raises(PermissionError, match="root does not follow it"):
        remove(old)


@pytest.mark.parametrize("below", ["", "sub"])
def test_no_folder_is_made_behind_such_a_link(folder, victim, below):
    """Of a baseline and parts that wait for an upload; the name of the last may end in `/`."""
    planted(folder / "link", victim)
    new = folder / "link" / below / "new"
    for call in (Baseline(str(new / "baseline.json")).save,
                 Baseline(str(folder / "link" / ".." / "victim" / "baseline.json")).save,
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


def test_the_link_of_another_user_to_which_one_of_roots_leads_is_not_followed(folder, victim, tmp_path):
    planted(folder / "link", victim)
    planted(tmp_path / "traces", folder / "link", 0)
    assert "its folder link is" in refused(tmp_path / "traces" / "x.wst")


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


def test_in_a_sticky_folder_the_links_of_root_are_followed_and_those_of_others_not(open_folder, victim):
    sticky = open_folder / "tmp"
    (sticky / "real").mkdir(parents=True)
    sticky.chmod(0o1777)
    write(planted(sticky / "ours", "real", 0) / "x.wst")
    assert len(list((sticky / "real").iterdir())) == 2
    assert f"that uid {CALLER} may change" in refused(planted(sticky / "theirs", victim) / "x.wst")


def test_an_output_is_refused_by_its_own_name_not_by_that_of_an_unfinished_file(tmp_path, monkeypatch):
    path = tmp_path / "none" / "x.html"
    for uid in (0, CALLER):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert refused(path) == f"cannot write {path}: No such file or directory; create its directory first"


def test_a_user_s_own_links_are_followed_by_that_user_also_under_sudo(folder, monkeypatch):
    (folder / "real").mkdir()
    os.chown(folder / "real", CALLER, CALLER)
    planted(folder / "link", "real")
    with monkeypatch.context() as user:
        user.setattr(os, "geteuid", lambda: CALLER)
        write(folder / "link" / "x.wst")
    monkeypatch.setenv("SUDO_UID", str(CALLER))
    monkeypatch.setenv("SUDO_GID", str(CALLER))
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


def test_a_folder_that_is_exchanged_for_a_link_all_the_time_leads_nowhere_else(folder, victim):
    """The race of a look at the folder and open(): a folder and a link to the victim change places all the time."""
    import ctypes

    exchange = ctypes.CDLL(None).renameat2
    (folder / "sub").mkdir()
    planted(folder / "link", victim)
    stop, a, b = threading.Event(), os.fsencode(folder / "sub"), os.fsencode(folder / "link")

    def swap():
        while not stop.is_set():
            exchange(-100, a, -100, b, 2)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for number in range(500):
            for name in (f"{number}", "old"):
                with contextlib.suppress(OutputError):
                    os.close(open_output(str(folder / "sub" / name), force=True).fd)
    finally:
        stop.set()
        swapping.join()


def test_links_that_lead_to_each_other_are_refused_in_one_line(tmp_path):
    planted(tmp_path / "one", "two", 0)
    planted(tmp_path / "two", "one", 0)
    assert "symbolic link" in refused(tmp_path / "one" / "x.wst")

"""Control groups: what mounts, paths and files of a tree say. The tree is made of plain folders, as seen by scandir."""

from pathlib import Path

import pytest

from wstrace import cgroup_names as names
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.interfaces import Usage
from wstrace_plugins.os.linux.cgroups.groups import ChosenCgroups, group
from wstrace_plugins.os.linux.cgroups.mounts import Hierarchy, hierarchy_of
from wstrace_plugins.os.linux.cgroups.tree import Cgroups, topmost

ID, OTHER = "0123456789abcdef" * 4, "01234567" + "f" * 56
POD = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
POD_ = POD.replace("-", "_")
SYS = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
EVENTS = "42 31 0:39 / /sys/fs/cgroup/perf_event rw,relatime - cgroup cgroup rw,perf_event\n"


@pytest.mark.parametrize(
    ("path", "container", "pod", "unit"),
    [
        (f"/docker/{ID}", ID, "", ""),
        (f"/system.slice/docker-{ID}.scope", ID, "", f"docker-{ID}.scope"),
        (f"/system.slice/docker-{ID}.scope/init.scope", ID, "", "init.scope"),
        (f"/docker/{OTHER}/docker/{ID}", ID, "", ""),
        (f"/kubepods/burstable/pod{POD}/{ID}", ID, POD, ""),
        (f"/kubepods.slice/kubepods-pod{POD_}.slice/cri-containerd-{ID}.scope", ID, POD, f"cri-containerd-{ID}.scope"),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{POD_}.slice/crio-{ID}.scope/container",
            ID,
            POD,
            f"crio-{ID}.scope",
        ),
        (f"/system.slice/containerd.service/kubepods-pod{POD_}.slice:cri-containerd:{ID}", ID, POD,
         "containerd.service"),
        (f"/kubepods/besteffort/pod{'ab' * 16}/{ID}", ID, "ab" * 16, ""),  # a static pod: the hash of its manifest
        (f"/machine.slice/libpod-{ID}.scope/container", ID, "", f"libpod-{ID}.scope"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", "", "", f"libpod-conmon-{ID}.scope"),
        (f"/kubepods.slice/kubepods-pod{POD_}.slice/crio-conmon-{ID}.scope", "", POD, f"crio-conmon-{ID}.scope"),
        ("/user.slice/user-0.slice/session-1.scope", "", "", "session-1.scope"),
        ("/system.slice/nginx.service/workers", "", "", "nginx.service"),
        (f"/system.slice/{ID[:63]}", "", "", ""),
        ("/", "", "", ""),
    ],
)  # fmt: skip
def test_a_path_tells_container_pod_and_unit(path, container, pod, unit):
    assert (names.container_id(path), names.pod_uid(path), names.unit(path)) == (container, pod, unit)


def proc(folder: Path, mounts: str) -> Path:
    (folder / "self").mkdir()
    (folder / "self/mountinfo").write_text(SYS + mounts)
    return folder


@pytest.mark.parametrize(
    ("mounts", "folder"),
    [
        (UNIFIED, Hierarchy(Path("/sys/fs/cgroup/unified"), True)),
        (UNIFIED + EVENTS, Hierarchy(Path("/sys/fs/cgroup/perf_event"), False)),
        (EVENTS.replace("/sys/fs/cgroup/perf_event", "/a\\040b"), Hierarchy(Path("/a b"), False)),
        # a container's own mount, and the host's beside it: of the same and of another cgroup namespace
        (UNIFIED.replace(" / ", " /docker/1 ") + UNIFIED.replace("/sys", "/host/sys"),
         Hierarchy(Path("/host/sys/fs/cgroup/unified"), True)),
        (UNIFIED + UNIFIED.replace(" / ", " /../.. ").replace("/sys", "/host/sys"),
         Hierarchy(Path("/host/sys/fs/cgroup/unified"), True)),
    ],
)  # fmt: skip
def test_the_mount_of_a_controller(tmp_path, mounts, folder):
    assert hierarchy_of("perf_event", proc(tmp_path, mounts)) == folder


@pytest.fixture
def tree(tmp_path):
    """Two containers, a unit and its workers, in v2; memory has a v1 hierarchy with other things in it."""
    for path in (f"docker/{ID}/init", f"docker/{OTHER}", "system.slice/nginx.service/workers", "user.slice/[a]"):
        (tmp_path / "v2" / path).mkdir(parents=True)
    for folder in [tmp_path / "v2", *(tmp_path / "v2").rglob("*")]:
        (folder / "cgroup.procs").write_text("")
    (tmp_path / "memory" / "docker" / ("e" * 64)).mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    return Cgroups(Hierarchy(tmp_path / "v2", True), Hierarchy(tmp_path / "memory", False), tmp_path / "proc")


def test_a_controller_of_v2_is_one_that_it_offers(tmp_path):
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    made = proc(tmp_path, UNIFIED.replace("/sys/fs/cgroup/unified", str(tmp_path / "unified")))
    assert hierarchy_of("memory", made) == Hierarchy(tmp_path / "unified", unified=True)
    with pytest.raises(Unavailable, match="controller hugetlb is in no hierarchy"):
        hierarchy_of("hugetlb", made)


def test_at_takes_a_path_below_the_mount_and_that_of_the_folder(tree):
    for path in (
        "/system.slice/nginx.service",
        "system.slice//nginx.service/",
        f"{tree.folder}/system.slice/nginx.service",
    ):
        found = tree.at(path)
        assert (found.path, found.id) == ("/system.slice/nginx.service", found.folder.stat().st_ino)
        assert found.exists()
    assert tree.at("/").path == tree.at(str(tree.folder)).path == "/"


@pytest.mark.parametrize("path", ["", "/system.slice/../../memory", "a\0b"])
def test_a_path_that_leads_out_or_is_empty_is_refused(tree, path):
    with pytest.raises(UsageError, match="is not the path of a cgroup"):
        tree.at(path)


def test_a_link_out_of_the_tree_is_not_followed(tree):
    (tree.folder / "link").symlink_to("/")
    with pytest.raises(TargetExited):
        tree.at("/link")
    assert "/link" not in {one.path for one in tree.all()}


def test_globs(tree):
    def paths(pattern):
        return [one.path for one in tree.matching(pattern)]

    assert paths("/docker/*") == [f"/docker/{ID}", f"/docker/{OTHER}"]
    assert paths("**/workers") == ["/system.slice/nginx.service/workers"]
    assert paths("/user.slice/[a]") == ["/user.slice/[a]"]  # what is called so comes before what matches
    assert paths(f"{tree.folder}/sys*") == ["/system.slice"]


def test_a_container_is_found_by_a_unique_prefix(tree):
    assert tree.container(ID[:12]).path == f"/docker/{ID}"
    assert tree.container(ID.upper()).path == f"/docker/{ID}"
    both = "2 containers have ids that begin with 01234567: 0123456789abcdef, 01234567ffffffff; give more"
    for prefix, why in (
        (ID[:8], both),
        (ID[:7], "at least 8"),
        ("nginx-nginx", "not the id"),
        (ID + "0", "not the id"),
    ):
        with pytest.raises(UsageError) as refused:
            tree.container(prefix)
        assert why in str(refused.value)


def test_a_unit_is_found_by_name_and_glob(tree):
    for name in ("nginx", "nginx.service", "ngin[wx]*"):
        found = group("unit", name, tree)
        assert [one.path for one in found.members.values()] == ["/system.slice/nginx.service"]
    members = group("unit", "*.slice", tree).members.values()
    assert [one.path for one in members] == ["/system.slice", "/user.slice"]


def test_processes_are_those_below_too_without_other_namespaces(tree):
    unit = tree.at("/system.slice/nginx.service")
    (unit.folder / "cgroup.procs").write_text("7\n0\n")
    (unit.folder / "workers/cgroup.procs").write_text("8\n9\n7\n")
    assert unit.processes() == [7, 8, 9]


def test_a_cgroup_made_again_is_another_one(tree):
    one = tree.at("/user.slice")
    one.folder.rename(tree.folder / "gone")
    assert not one.exists()
    with pytest.raises(TargetExited, match=r"there is no cgroup /user\.slice"):
        one.open()
    one.folder.mkdir()
    assert not one.exists()
    with pytest.raises(TargetExited, match="has been removed; another one has its name by now"):
        one.open()


def test_topmost_leaves_out_what_another_holds(tree):
    assert topmost(tree.all()) == [tree.at("/")]
    names = [
        one.path
        for one in topmost(tree.matching("**/nginx*") + tree.matching("**/workers") + tree.matching("user.slice"))
    ]
    assert names == ["/user.slice", "/system.slice/nginx.service"]


PRESSURE = "some avg10=1.50 avg60=0.10 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def test_memory_of_v2(tree):
    v2 = Cgroups(Hierarchy(tree.folder, True), Hierarchy(tree.folder, True))
    unit = v2.at("/system.slice/nginx.service")
    files = {"memory.current": "4096\n", "memory.max": "max\n", "memory.high": "8192\n", "memory.peak": "5000\n",
             "memory.stat": "anon 1\npgfault 12\n", "memory.events": "low 0\noom_kill 2\n",
             "memory.pressure": PRESSURE}  # fmt: skip
    fill(unit.folder, files)
    memory = v2.memory(unit)
    assert (memory.max(), memory.stat(), memory.events()) == (
        None, {"anon": 1, "pgfault": 12}, {"low": 0, "oom_kill": 2}
    )  # fmt: skip


def test_memory_of_v1_is_read_from_its_own_files(tree):
    unit = tree.at("/system.slice/nginx.service")
    (folder := tree.folder.parent / "memory/system.slice/nginx.service").mkdir(parents=True)
    files = {"memory.usage_in_bytes": "4096\n", "memory.limit_in_bytes": "9223372036854771712\n",
             "memory.max_usage_in_bytes": "5000\n", "memory.memsw.usage_in_bytes": "4100\n", "memory.failcnt": "3\n",
             "memory.stat": "rss 1\npgfault 1\ntotal_rss 7\ntotal_cache 8\ntotal_pgfault 12\n",
             "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}  # fmt: skip
    fill(folder, files)
    fill(unit.folder, {"memory.pressure": PRESSURE})
    memory = tree.memory(unit)
    assert (memory.max(), memory.stat(), memory.events()) == (
        None, {"rss": 7, "cache": 8, "pgfault": 12}, {"max": 3, "oom_kill": 2}
    )  # fmt: skip
    assert memory.pressure_file is not None
    (folder / "memory.limit_in_bytes").write_text("1048576\n")
    assert memory.max() == 1 << 20


def test_refusals_of_memory_are_one_sentence(tree):
    v2 = Cgroups(Hierarchy(tree.folder, True), Hierarchy(tree.folder, True))
    unit = v2.at("/user.slice")
    with pytest.raises(
        Unavailable, match=r"has no memory\.current: .*; enable it: echo \+memory > .*/v2/cgroup\.subtree_control"
    ):
        v2.memory(unit).current()
    unit.folder.rename(v2.folder / "gone")
    with pytest.raises(TargetExited, match=r"the cgroup /user\.slice has been removed"):
        v2.memory(unit).current()
    without = Cgroups(Hierarchy(tree.folder, True), Unavailable("the cgroup controller memory is switched off"))
    with pytest.raises(Unavailable, match="memory is switched off"):
        without.memory(without.at("/"))


def chosen(tree: Cgroups, pattern: str) -> ChosenCgroups:
    group = ChosenCgroups(pattern, tree, tree.matching(pattern), lambda path: True)
    for one in list(group.members.values()):
        group.begin(one)
    return group


def counting(tree: Cgroups, path: str, faults: int) -> Path:
    (folder := tree.folder.parent / "memory" / path).mkdir(parents=True, exist_ok=True)
    (folder / "memory.stat").write_text(f"total_pgfault {faults}\ntotal_pgmajfault 0\n")
    return folder


@pytest.mark.parametrize("hierarchy", ["v2", "memory"])
def test_a_cgroup_made_again_that_nobody_has_seen_yet_has_another_count(tree, hierarchy):
    """Its count is not that of the one before, in whichever hierarchy it was made again first."""
    counting(tree, "user.slice", 100)
    group = chosen(tree, "/user.slice")
    folder = tree.folder.parent / hierarchy / "user.slice"
    folder.rename(tree.folder.parent / "gone")
    folder.mkdir()
    counting(tree, "user.slice", 5000)
    assert group.usage() == Usage()


def test_what_one_before_has_counted_is_no_loss_of_the_next(tree):
    """The hierarchies are changed one after the other: memory still has the cgroup that perf events have lost."""
    counting(tree, "user.slice", 100)
    group = chosen(tree, "/user.slice")
    one = tree.at("/user.slice")
    one.folder.rename(tree.folder / "gone")
    assert [gone.path for gone in group.left()] == ["/user.slice"]
    assert group.had("/user.slice")
    one.folder.mkdir()
    counting(tree, "user.slice", 5000)
    assert group.begin(tree.at("/user.slice")).faults is None
    assert group.usage() == Usage()

"""Blame beside what programs see in their own pagemap: no page is another's, not known says so, copies count."""

import mmap
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kit.blame_scripted import composition
from kit.command_line import answer
from kit.recorded_run import compiled

import wstrace
from wstrace.analysis.arrival import REASONS
from wstrace.analysis.composition import Composition
from wstrace.analysis.losses import page_of
from wstrace.analysis.unshared import Unshared
from wstrace.batch import Dictionary
from wstrace.trace import Trace
from wstrace_exporters.msgpack.interchange.blame_tables import pages_batch


def recorded(folder: Path, *command: str, extra: tuple[str, ...] = ()) -> tuple[Path, dict[int, str], int]:
    """The trace of a program, who brought each of its pages, and how many it and its children made of shared ones."""
    path, said = folder / "x.wst", folder / "truth"
    answer("run", "-q", "-f", "-o", path, "--", *command, said, folder, *extra)
    rows = dict(line.split(" ", 1) for line in said.read_text().splitlines())
    copies = int(rows.pop("copies"))
    return path, {int(page): who for page, who in rows.items()}, copies


def found_by(of: Composition, names: list[str]) -> dict[int, tuple[str, bool, str]]:
    """page -> who owns it, "" = not known, whether that is an estimate, and the reason why it is not known.

    names: of each fault, its own.
    """
    pages = (pages_batch(of, Dictionary())["va"] // of.page_size).tolist()
    owners = [names[fault] if fault >= 0 else "" for fault in of.owner.tolist()]
    reasons = [REASONS[number] for number in of.found.reason.tolist()]
    return dict(zip(pages, zip(owners, of.found.estimated.tolist(), reasons, strict=True), strict=True))


def judged(
    truth: dict[int, str], found: dict[int, tuple[str, bool, str]], *, random: bool = False
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The pages of each line that are its own for certain, that are estimated to be, and that another one has.

    Those of nobody are of "0". Asserts that no page is given to another line for certain; not known is no line.
    """
    certain, estimated, wrong = Counter(), Counter(), Counter()
    for page, who in truth.items():
        owner, rule, reason = found[page]
        right = (who if who != "0" else "") == owner
        assert right or rule or (random and not owner), (hex(page * mmap.PAGESIZE), who, owner, reason)
        (wrong if not right else estimated if rule else certain)[who] += 1
    return certain, estimated, wrong


HERE = Path(__file__).parent
N = 256  # pages of each region of the programs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="page frames and losses of content need root on Linux"
)


def outermost_lines(of: Composition) -> list[str]:
    """Of each fault, in the order of the inputs, the line of its stack's outermost frame."""
    tree = of.inputs.names.tree
    parent, line = tree.column("parent").astype(np.intp), tree.column("line")
    at = tree.known(of.inputs.faults["stack"]).astype(np.intp)
    while (up := parent[at]).any():
        at = np.where(up > 0, up, at)
    return [str(number) for number in line[at].tolist()]


def by_function(trace: Trace) -> dict[int, tuple[str, bool, str]]:
    """What found_by() gives of the launched process, whose pages at its exit are known, by function."""
    (parent,) = trace.info.targets
    assert trace.info.final_snapshot == parent
    of = composition(trace, "exit", pids=[parent])
    by_cell, labels = of.past.labels("function")
    return found_by(of, [labels[one][0].function for one in by_cell[of.fault_cells].tolist()])


def test_each_page_of_a_python_program_is_its_lines(tmp_path, full_level, python_stacks):
    program = HERE / "pagemap_truth.py"
    path, truth, copies = recorded(tmp_path, sys.executable, str(program))
    with wstrace.open_trace(str(path)) as trace:
        (parent,) = trace.info.targets
        of = composition(trace, "exit", pids=[parent])
        assert of.past.lost == 0
        assert trace.info.final_snapshot == parent
        found = found_by(of, outermost_lines(of))
        shown = Unshared(composition(trace, at="exit"))
        copied = page_of(shown.of.history.faults.key[shown.copies])
    certain, estimated, wrong = judged(truth, found)
    lines = program.read_text().splitlines()
    loads_shared = str(lines.index("write(o, 4 * BIG)") + 1)
    unshared = sum(truth.get(page) == loads_shared for page in copied.tolist())
    assert certain.total() + estimated.total() > 0.97 * len(truth)
    reads_private = str(lines.index("read(p + 64 * PAGE, 1, among=(p, N))") + 1)
    assert certain[reads_private], "a page that faulted itself, in a private mapping that may be written"
    assert not wrong["0"], "what the kernel put together, or the device read, is no line's"
    nobodys = Counter(reason for page, (owner, _, reason) in found.items() if truth.get(page) == "0" and not owner)
    assert nobodys["no fault"] >= 2 * N, "MAP_POPULATE or mlock, and read by the device"
    assert copies == 4096, "5,120 faults"
    assert unshared == copies


def test_each_page_of_a_c_program_is_its_functions(tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "pagemap_truth.c").read_text(), "-I", str(HERE))
    path, truth, _ = recorded(tmp_path, str(program))
    with wstrace.open_trace(str(path)) as trace:
        assert composition(trace).past.lost == 0
        found = by_function(trace)
    certain, estimated, _ = judged(truth, found)
    assert certain["load"] + estimated["load"] == 2 * N + N // 2
    assert certain["touch_huge"] in (1, mmap.PAGESIZE // 8), "without or with huge pages"
    assert not certain["rewrite"]


def test_each_page_of_a_huge_page_is_its_functions_also_where_it_was_split(tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "huge_truth.c").read_text(), "-I", str(HERE))
    path, truth, _ = recorded(tmp_path, str(program))
    with wstrace.open_trace(str(path)) as trace:
        found = by_function(trace)
    certain, estimated, wrong = judged(truth, found)
    huge = mmap.PAGESIZE // 8  # pages of one
    if sum(who == "load" for who in truth.values()) < 9 * huge - 25:
        pytest.skip("this machine gives no transparent huge pages")
    assert certain["load"] >= 4 * huge - 20, "split by its own process"
    assert (certain + estimated)["load"] >= 9 * huge - 25, "and rewritten while a child had it, or behind that"
    assert estimated["write_zeros"] == 3 * huge + N, "read before"
    assert certain["0"] >= huge - 32, "put together by the kernel"
    assert wrong.total() <= 6, "lazily freed and written again; found where the kernel had put it together"


#: Letters of steps in pagemap_random.c, and the most that may be given to another line, as an estimate.
MIXES = {"memory": ("wwwwwrrrdfuomke", 0.3), "perhaps": ("wwwwwrrrkeP", 0.8),
         "files": ("wwwwwrrrrptckeS", 0.5), "folios": ("wwwrrrrrrrrrptcDFF", 0.6),
         "populated": ("wwwwwrrrkelLRW", 0.8), "huge": ("wwwwwwwrrrrdfumkKexH", 0.3)}  # fmt: skip


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "seeds", [range(1, 2), pytest.param(range(2, 30), marks=pytest.mark.long)], ids=["one", "many"]
)
def test_no_page_of_a_random_program_is_anothers_for_certain(mix, seeds, tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "pagemap_random.c").read_text(), "-I", str(HERE))
    steps, most = MIXES[mix]
    for seed in seeds:
        path, truth, _ = recorded(tmp_path, str(program), extra=(str(seed), "200", steps))
        with wstrace.open_trace(str(path)) as trace:
            found = by_function(trace)
        _, _, wrong = judged(truth, found, random=True)
        assert wrong.total() <= most * len(truth), seed


def test_what_the_kernel_a_device_or_another_task_brought_is_no_functions(tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "unseen_arrivals.c").read_text(), "-I", str(HERE))
    path, truth, _ = recorded(tmp_path, str(program))
    with wstrace.open_trace(str(path)) as trace:
        found = by_function(trace)
    certain, estimated, _ = judged(truth, found, random=True)
    assert certain["fill"] == 16, "in memory that was mapped behind the last fork, beside what another task wrote"
    assert estimated["fill"] <= 16
    assert certain["load"] >= 256
    assert certain["0"] >= 256 + 128, "read by the device and not written since, and put together by the kernel"


@pytest.mark.parametrize("mode", ["kept", "rewritten"])
def test_copies_of_pages_that_came_without_a_fault_are_reported(mode, tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "unshared_truth.c").read_text(), "-I", str(HERE))
    trace, said = tmp_path / "x.wst", tmp_path / "truth"
    answer("run", "-q", "-f", "-o", trace, "--", program, said, tmp_path, mode)
    truth = {key: int(value) for key, value in (line.split() for line in said.read_text().splitlines())}
    if not truth["huge"]:
        pytest.skip("this machine gives no transparent huge pages")
    with wstrace.open_trace(str(trace)) as read:
        shown = Unshared(composition(read, at="exit"))
        assert read.info.final_snapshot == read.info.targets[0]
        copied = shown.total // shown.of.page_size
    # pages of libc and the program, which the forks copied too, come on top
    areas = truth["copies"]
    assert areas == (200 if mode == "kept" else 512) + 64 + 1
    assert areas <= copied <= areas + 40
    assert not shown.at_least

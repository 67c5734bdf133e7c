"""A program that passes for a CPython and lies: no tracer, no kernel and no row of another process comes to harm."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.forged import PLACES, offsets
from kit.pythons import frames, judged, named
from kit.recorded_run import compiled

from wstrace.schema import FRAME_CUT, STACK_HOW
from wstrace_plugins.page_faults.linux.python_stacks.protocol import DEPTH

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

FLOOD = 3000


def forged(folder: Path, *, free_threaded: int = 0) -> Path:
    defined = f"#define FREE_THREADED {free_threaded}\n#define FLOOD {FLOOD}\n"
    (folder / "offsets.h").write_text(offsets(PLACES) + defined)
    return compiled(folder, (HERE / "forged_python.c").read_text(), "-I", str(folder))


def test_lies_harm_nobody(trace, tmp_path):
    program, said, out = forged(tmp_path), tmp_path / "said", tmp_path / "regions.json"
    both = f"{program} > {said} & {sys.executable} {HERE}/python_truth.py {out} 20 && wait $!"
    traced = trace(["sh", "-c", both], stacks="python")
    assert traced.context.targets[0].exit_code == 0
    traced.assert_balanced()
    sites, faults = named(traced)
    hows = np.array(STACK_HOW)[faults.stack_how]
    stacks = frames(traced)
    seen = {}
    depths = {}
    liar = set()
    for line in said.read_text().splitlines():
        base, pages, kind = line.split(maxsplit=2)
        inside = (faults.va >= int(base, 16)) & (faults.va < int(base, 16) + 4096 * int(pages)) & (hows != "")
        mine = np.flatnonzero(inside)[-int(pages) :]
        liar |= set(faults.pid[mine].tolist())
        for row in mine.tolist():
            stack = int(faults.stack[row])
            assert len(stacks[stack]) <= DEPTH
            depths.setdefault(kind, set()).add(len(stacks[stack]))
            cut = any(flags & FRAME_CUT for _, flags in stacks[stack])
            seen.setdefault(kind, set()).add((str(hows[row]), sites.get(stack, ("",))[0], cut))
    assert len(liar) == 1
    assert seen["honest"] == seen["edges"] == {("exact", "honest", False)}
    assert (depths["honest"], depths["edges"]) == ({1}, {2})
    assert seen["ring of one"] == seen["ring of two"] == {("exact", "honest", True)}
    assert {how for how, _, _ in seen["ring of threads"]} == {"frames not readable"}
    assert {how for how, _, _ in seen["long"] | seen["nowhere"] | seen["flood"]} <= {
        "exact", "no Python frame", "frames not readable", "stack lost",
    }  # fmt: skip
    assert all(len(name) <= 512 for name, _, file in sites.values() for name in (name, file))
    # the honest Python beside it has its own frames, or says that one was lost
    names = {"honest", "forge.py"}
    for row in np.flatnonzero(~np.isin(faults.pid, list(liar))).tolist():
        name, _, file = sites.get(int(faults.stack[row]), ("", 0, ""))
        assert not {name, file} & names
        assert not name.startswith("xx")
    right, wrong, _ = judged(traced, json.loads(out.read_text()))
    assert not wrong
    assert right > 500


def test_a_build_without_a_gil_is_refused_with_a_sentence(trace, tmp_path):
    traced = trace([forged(tmp_path, free_threaded=1)], stacks="python")
    assert {STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist()} & {"interpreter not known"}
    assert any("without a GIL (free-threaded)" in what for what in traced.context.info.lacking)

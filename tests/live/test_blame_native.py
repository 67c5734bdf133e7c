"""Blame of programs that are not Python, with native stacks: the own line of what memset and the runtime brought."""

import shutil
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.recorded_run import compiled, record

from wstrace.analysis.dimensions import Row

pytestmark = pytest.mark.usefixtures("full_level")
MIB = 1 << 20
CPP = """
#include <cstring>
#include <unistd.h>
struct Store { char *load(long n); };
__attribute__((noinline)) char *Store::load(long n) { char *p = new char[n]; return (char *)memset(p, 1, n); }
__attribute__((noinline)) char *copied(const char *p, long n) { return (char *)memcpy(new char[n], p, n); }
__attribute__((noinline)) void touch(char *p, long n) { for (long at = 0; at < n; at += 4096) p[at] = 1; }
int main() {
    Store store;
    for (int i = 0; i < 8; i++) {
        char *p = store.load(3 << 20);
        copied(p, 1 << 20);
        touch(new char[2 << 20], 2 << 20);
    }
    _exit(0);
}
"""
NODE = """
const kept = [];
function makeBuffers() { for (let i = 0; i < 40; i++) kept.push(Buffer.alloc(1 << 20, 1)); }
makeBuffers();
setTimeout(() => kept.pop(), 1000);
"""


def rows_of(folder: Path, command: list[str | Path], at: str) -> list[Row]:
    sources = ("-s", "page_faults:stacks=native,stack_period=32", "-s", "peak_snapshot", "-s", "working_set")
    with record(folder, command, *sources) as trace:
        assert trace.ledger.get("lost") == 0
        return composition(trace, at=at).rows("line")


def reported_right(row: Row, n_bytes: int) -> bool:
    """Whether an estimate is within three of its own errors."""
    return abs(row["resident"] - n_bytes) <= 3 * n_bytes / row["samples"] ** 0.5


def test_what_the_library_touched_is_its_callers_line_in_cpp(tmp_path):
    program = compiled(tmp_path, CPP, "-g", "-lstdc++", name="n.cpp")
    rows = rows_of(tmp_path, [program], "exit")
    at = {
        row.of("function").partition("(")[0]: row
        for row in rows
        if row.of("file").endswith("n.cpp") and 4 <= row.line <= 7
    }
    exact = at.pop("touch")
    assert 16 * MIB - 8 * 4096 <= exact["resident"] <= 16 * MIB, "new wrote to the first page of each block"
    assert reported_right(at["Store::load"], 24 * MIB)
    assert reported_right(at["copied"], 8 * MIB)
    assert all(at[name]["samples"] > 40 for name in ("Store::load", "copied"))


def test_a_function_of_node_owns_its_buffers(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node (tests/install-peers)")
    (tmp_path / "big.js").write_text(NODE)
    rows = rows_of(tmp_path, ["node", "--perf-basic-prof", "--interpreted-frames-native-stack", "big.js"], "peak")
    (row,) = [row for row in rows if row.label == "makeBuffers big.js"]
    assert row["samples"] > 40
    assert reported_right(row, 40 * MIB)

"""Blame of programs that are not Python: the own line of what memset, the runtime and inlined headers brought."""

import json
import shutil
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer
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


#: a vector grows: its faults are in memmove(), called by a function of <vector>, and in code of <new> inlined into ours
GROWS = """#include <vector>
struct Row { char bytes[64]; };
__attribute__((noinline)) static std::size_t grow(std::size_t n) {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < n; i++)
        rows.push_back(Row{});
    return rows.size();
}
int main() {
    std::size_t total = 0;
    for (int i = 0; i < 4; i++)
        total += grow(50000);
    return total == 0;
}
"""


def by_line(trace: Path, *options: str) -> list[str]:
    """The own lines that the faults of more than 20 samples have, the most first."""
    rows = json.loads(answer("report", trace, "--by", "line", "--json", *options))["rows"]
    return [row["label"] for row in rows if row.get("samples", 0) > 20]


def test_the_own_line_of_a_growing_vector_is_the_push_back(tmp_path):
    program = compiled(tmp_path, GROWS, "-O2", "-g", "-lstdc++", name="program.cpp")
    record(tmp_path, [program], "-s", "page_faults:stacks=native,stack_period=4,ring_bytes=67108864").close()
    trace = tmp_path / "trace.wst"
    first, *rest = by_line(trace)
    assert first.endswith("program.cpp:6")
    assert not [name for name in rest if "/include/" in name]
    assert not any("program.cpp" in name for name in by_line(trace, "--not-own", str(tmp_path / "program.cpp")))
    lines = map(json.loads, answer("report", trace, "--format", "jsonl").splitlines())
    chains = [[(frame.get("function", ""), frame.get("line"), frame.get("own")) for frame in line["stack"]]
              for line in lines if line.get("stack")]  # fmt: skip
    inlined = [chain for chain in chains if any("push_back" in name for name, _, _ in chain)]
    assert inlined
    for chain in inlined:
        at = next(at for at, (name, _, _) in enumerate(chain) if "push_back" in name)
        (_, _, is_own), (function, line, caller_is_own) = chain[at : at + 2]
        assert (is_own, function.partition("(")[0], line, caller_is_own) == (False, "grow", 6, True)

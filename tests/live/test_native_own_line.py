"""The own line of native code: that of the program's source, where the compiler inlined a library's headers."""

import json
from pathlib import Path
from typing import Any

import pytest
from kit.command_line import answer
from kit.recorded_run import compiled, record

pytestmark = pytest.mark.usefixtures("full_level")
#: a vector grows: its faults are in memmove(), called by a function of <vector>, and in code of <new> inlined into ours
CODE = """#include <vector>
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


def reported(trace: Path, *options: str) -> Any:
    return answer("report", trace, *options)


def by_line(trace: Path, *options: str) -> list[str]:
    """The own lines that the faults of more than 20 samples have, the most first."""
    rows = json.loads(reported(trace, "--by", "line", "--json", *options))["rows"]
    return [row["label"] for row in rows if row.get("samples", 0) > 20]


def test_the_own_line_of_a_growing_vector_is_the_push_back(tmp_path):
    program = compiled(tmp_path, CODE, "-O2", "-g", "-lstdc++", name="program.cpp")
    record(tmp_path, [program], "-s", "page_faults:stacks=native,stack_period=4,ring_bytes=67108864").close()
    trace = tmp_path / "trace.wst"
    first, *rest = by_line(trace)
    assert first.endswith("program.cpp:6")
    assert not [name for name in rest if "/include/" in name]
    assert not any("program.cpp" in name for name in by_line(trace, "--not-own", str(tmp_path / "program.cpp")))
    lines = map(json.loads, reported(trace, "--format", "jsonl").splitlines())
    chains = [[(frame.get("function", ""), frame.get("line"), frame.get("own")) for frame in line["stack"]]
              for line in lines if line.get("stack")]  # fmt: skip
    inlined = [chain for chain in chains if any("push_back" in name for name, _, _ in chain)]
    assert inlined
    for chain in inlined:
        at = next(at for at, (name, _, _) in enumerate(chain) if "push_back" in name)
        (_, _, is_own), (function, line, caller_is_own) = chain[at : at + 2]
        assert (is_own, function.partition("(")[0], line, caller_is_own) == (False, "grow", 6, True)

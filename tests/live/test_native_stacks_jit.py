"""Code without `.eh_frame`: callers in JIT compilers' code are guesses, and marked; other stacks are cut short."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from kit.command_line import answer
from kit.pythons import installed
from kit.recorded_run import compiled, faults, record
from kit.stack_truth import StackNames

import wstrace
from wstrace.schema import FRAME_GUESSED, HOW_NOT_SAMPLED, STACK_HOW

pytestmark = pytest.mark.usefixtures("full_level")
#: those with `-X perf`
TRAMPOLINES = [python for python in installed() if python.version >= (3, 12) and not python.root]
NODE = """
function innermost(n) {
  const kept = [];
  for (let i = 0; i < n; i++) kept.push(new Float64Array(2048).fill(i));
  return kept;
}
function middle(n) { return innermost(n).length + 1; }
let sum = 0;
for (let round = 0; round < 60; round++) sum += middle(60);
"""
GO = """
package main
//go:noinline
func touch(n int) int {
	kept := make([]byte, n)
	for i := 0; i < n; i += 4096 { kept[i] = 1 }
	return int(kept[n-1])
}
//go:noinline
func caller(n int) int { return touch(n) + 1 }
func main() { sum := 0; for i := 0; i < 6; i++ { sum += caller(8 << 20) }; if sum == 7 { println(sum) } }
"""
PYTHON = """
import contextlib, mmap, sys
def innermost(memory):
    for page in range(0, len(memory), 4096):
        memory[page] = 1
def middle(pages):
    memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    innermost(memory)
for _ in range(20):
    middle(500)
"""


def needs(name: str) -> str:
    found = shutil.which(name) or (f"/usr/local/go/bin/{name}" if Path(f"/usr/local/go/bin/{name}").exists() else None)
    if found is None:
        pytest.skip(f"needs {name} (tests/install-peers)")
    return found


def sampled(folder: Path, command: list[str]) -> tuple[StackNames, list[tuple[str, ...]]]:
    with record(folder, command, "-s", "page_faults:stacks=native,stack_period=4") as trace:
        names = StackNames(trace)
        return names, [frames for _, _, frames, *_ in names.sampled()]


def test_functions_of_v8_have_names_and_their_callers_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # V8 may leave a log of its own where it runs
    command = [needs("node"), "--perf-basic-prof", "--interpreted-frames-native-stack", "-e", NODE]
    _, stacks = sampled(tmp_path, command)
    inner = [s for s in stacks if any("innermost" in name for name in s)]
    assert len(inner) > 50
    for stack in inner:
        at = next(i for i, name in enumerate(stack) if "innermost" in name)
        assert "middle" in stack[at + 1], stack
    whole = [s for s in inner if s[-1] in ("_start", "clone3", "__clone3")]
    assert len(whole) > 0.95 * len(inner)


def test_a_guess_is_marked_and_what_eh_frame_says_is_not(tmp_path):
    names, _ = sampled(tmp_path, [needs("node"), "-e", NODE])
    leaves = {int(stack) for stack in names.faults["native_stack"] if stack}
    guessed = [[flag & FRAME_GUESSED for flag in names.flags(leaf)] for leaf in leaves]
    assert any(any(one) for one in guessed)
    assert any(not any(one) for one in guessed)
    assert not any(one[0] for one in guessed), "the innermost frame is where the fault was, never a guess"


def test_go_is_walked_by_its_frame_pointers(tmp_path):
    (tmp_path / "main.go").write_text(GO)
    home = {"HOME": str(tmp_path), "GO111MODULE": "off", "PATH": "/usr/bin:/bin"}
    subprocess.run([needs("go"), "build", "-o", "program", "main.go"], cwd=tmp_path, check=True, timeout=110, env=home)
    _, stacks = sampled(tmp_path, [str(tmp_path / "program")])
    inner = [s for s in stacks if s and s[0] == "main.touch"]
    assert len(inner) > 100
    assert {s[1:3] for s in inner} == {("main.caller", "main.main")}


@pytest.mark.parametrize("python", TRAMPOLINES, ids=lambda python: python.label)
def test_python_with_perf_trampolines_tells_its_functions(tmp_path, python):
    (tmp_path / "program.py").write_text(PYTHON)
    _, stacks = sampled(tmp_path, python.command("-X", "perf", tmp_path / "program.py"))
    inner = [s for s in stacks if "innermost" in s]
    assert len(inner) > 100
    for stack in inner:
        python_frames = [name for name in stack if name in ("innermost", "middle", "<module>")]
        assert python_frames == ["innermost", "middle", "<module>"], stack
        assert stack[-1] in ("_start", "__libc_start_main"), stack


SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
__attribute__((noinline)) int down(char *at, int n) {
    if (n) { int r = down(at, n - 1); __asm__ volatile(""); return r + 1; }
    *at = 1;
    return *at;
}
int main(void) {
    char *m = mmap(0, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(m, 64 * 4096, MADV_NOHUGEPAGE);
    for (int i = 0; i < 64; i++) { down(m + i * 4096, 20); __asm__ volatile(""); }
    printf("%p\\n", (void *)m);
    fflush(stdout);
}
"""


def test_a_static_program_has_stacks_that_are_cut_short(tmp_path):
    program = compiled(tmp_path, SOURCE, "-static", "-fno-optimize-sibling-calls", "-fomit-frame-pointer")
    native = "page_faults:stacks=native,stack_period=1,kernel=no"
    begin = int(answer("run", "-q", "-o", tmp_path / "trace.wst", "-s", native, "--", program), 16)
    with wstrace.open_trace(str(tmp_path / "trace.wst")) as opened:
        rows = faults(opened)
    mine = (rows["va"] >= begin) & (rows["va"] < begin + 64 * 4096) & (rows["native_how"] != HOW_NOT_SAMPLED)
    hows = Counter(STACK_HOW[one] for one in rows["native_how"][mine].tolist())
    assert hows["own, cut short"] > 32, hows
    assert set(hows) == {"own, cut short"}

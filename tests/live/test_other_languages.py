"""Programs that are not Python, without an option: their own function and line lead; Python programs pay nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.command_line import wstrace
from kit.recorded_run import compiled, faults, record

#: on a busy machine, a compiler alone takes a minute
pytestmark = [pytest.mark.usefixtures("full_level"), pytest.mark.timeout(300)]
MIB = 1 << 20
C = """
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) char *load(long n) {
    return memset(malloc(n), 1, n);
}
int main() {
    for (int i = 0; i < 64; i++) load(1 << 20);
    return 0;
}
"""
GO = """package main

import (
	"fmt"
	"os"
	"strings"
)

type entry struct {
	name string
	hits []int
}

//go:noinline
func loadIndex(n int) map[string]entry {
	index := make(map[string]entry)
	for i := 0; i < n; i++ {
		name := strings.Repeat("x", 64) + fmt.Sprint(i)
		index[name] = entry{name, make([]int, 32)}
	}
	return index
}

func main() {
	if len(loadIndex(150000)) == 0 {
		os.Exit(1)
	}
}
"""
NODE = """
const kept = [];
function makeRecords(n) { for (let i = 0; i < n; i++) kept.push({ name: "record " + i, at: [i, i + 1, i + 2] }); }
for (let round = 0; round < 60; round++) makeRecords(10000);
"""
JAVA = """
import java.util.ArrayList;
import java.util.List;

class Service {
    static final List<byte[]> kept = new ArrayList<>();

    static void loadCatalog(int n) {
        for (int i = 0; i < n; i++) kept.add(new byte[2048]);
    }

    public static void main(String[] words) {
        for (int round = 0; round < 400; round++) loadCatalog(200);
    }
}
"""
#: a child that is no Python, and memory of its own
PYTHON = """
import subprocess, sys
subprocess.run([sys.argv[1]], check=True)
kept = [bytearray(5000) for _ in range(4000)]
"""


def needs(name: str) -> str:
    found = shutil.which(name) or shutil.which(f"/usr/local/go/bin/{name}")
    return found or pytest.skip(f"needs {name} (tests/install-peers)")


def run(folder: Path, *command: str | Path) -> tuple[dict[str, Any], str]:
    """What `report --json` says of a command under `run` without options, and what `run` wrote."""
    done = wstrace("run", "-f", "-o", "trace.wst", "--", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = wstrace("report", "trace.wst", "--json", cwd=folder)
    return json.loads(told.stdout), done.stderr


def of(report: dict[str, Any], function: str) -> int:
    """The bytes of all lines of a function."""
    return sum(row["resident"] for row in report["rows"] if row["label"].startswith(function))


def test_c_names_the_line_that_called_memset(tmp_path):
    report, _ = run(tmp_path, compiled(tmp_path, C, "-g"))
    assert report["rows"][0]["label"] == f"load {tmp_path}/program.c:5"
    assert of(report, "load ") > 60 * MIB
    assert report["rows"][0]["estimated"], "samples are samples"


def test_go_leads_with_the_programs_own_line_not_with_gos_library(tmp_path):
    (tmp_path / "main.go").write_text(GO)
    build = [needs("go"), "build", "-o", "program", "main.go"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=110, env={**os.environ, "GO111MODULE": "off"})
    report, _ = run(tmp_path, tmp_path / "program")
    line = f"main.loadIndex {tmp_path}/main.go:"
    assert report["rows"][0]["label"].startswith(line)
    assert of(report, line) > 0.7 * report["total"]["resident"]


def test_node_names_its_functions_with_the_flags_that_it_is_told(tmp_path, monkeypatch):
    (tmp_path / "big.js").write_text(NODE)
    node = needs("node")
    report, said = run(tmp_path, node, "big.js")
    labels = [row["label"] for row in report["rows"]]
    assert labels[0].startswith(("(compiled code)", "node!")), "nothing of libc's leads"
    assert "(compiled code)" in labels[:5]
    (hint,) = [line for line in said.splitlines() if "names of compiled functions" in line]
    flags = [word for word in hint.split() if word.startswith("--")]
    report, said = run(tmp_path, node, *flags, "big.js")
    assert "names of compiled functions" not in said
    assert report["rows"][0]["label"] == "makeRecords big.js"


def test_java_names_its_methods_by_the_map_that_it_writes_at_its_end(tmp_path):
    (tmp_path / "Service.java").write_text(JAVA)
    subprocess.run([needs("javac"), "Service.java"], cwd=tmp_path, check=True, timeout=110)
    java = [needs("java"), "-Xmx600m", "-Xmn500m", "-XX:+UseSerialGC"]  # nothing is collected
    _, said = run(tmp_path, *java, "Service")
    (hint,) = [line for line in said.splitlines() if "names of compiled functions" in line]
    flags = [word for word in hint.split() if word.startswith("-XX")]
    report, said = run(tmp_path, *java, *flags, "Service")
    assert "names of compiled functions" not in said
    assert report["rows"][0]["label"] == "void Service.loadCatalog(int)"


def test_of_a_python_no_stack_is_sampled_but_of_its_child(tmp_path):
    (tmp_path / "parent.py").write_text(PYTHON)
    with record(tmp_path, [sys.executable, "parent.py", compiled(tmp_path, C, "-g")]) as trace:
        (parent,) = trace.info.targets
        batches = [batch for batch in trace.batches("page_fault") if "native_stack" in batch]
        of = [batch["pid"][batch["native_stack"] != 0] for batch in batches]
    sampled = np.concatenate(of)
    assert (sampled != parent).sum() > 20
    assert not (sampled == parent).any()


def test_a_trace_of_python_alone_has_no_columns_of_samples(tmp_path):
    with record(tmp_path, [sys.executable, "-c", "kept = [bytearray(5000) for _ in range(4000)]"]) as trace:
        assert "native_stack" not in faults(trace)

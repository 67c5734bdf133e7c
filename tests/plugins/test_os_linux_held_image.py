"""The program that holds a launched command: its machine code, and that a command's own counters do not show it."""

import os
import platform as machine
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wstrace_plugins.os.linux import held_image, launcher
from wstrace_plugins.os.linux.backend import platform

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine.machine() != "x86_64", reason="a program for Linux on x86-64"
)

#: touches N pages and tells what the system accounts to it: minor faults, peaks by getrusage() and /proc, its parent
SELF = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int argc, char **argv) {
    long n = atol(argv[1]), hwm = 0;
    char line[256], *volatile p = malloc(n * 4096 + 1);
    for (long i = 0; i < n; i++) p[i * 4096] = 1;
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &hwm);
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%ld %ld %ld %d", r.ru_minflt, r.ru_maxrss, hwm, getppid());
    return fclose(out);
}
"""


def test_the_code_is_that_of_its_listing(tmp_path):
    if shutil.which("as") is None or shutil.which("objcopy") is None:
        pytest.skip("needs an assembler (binutils)")
    source, made, code = (tmp_path / name for name in ("held.s", "held.o", "held.bin"))
    text = Path(held_image.__file__).read_text()
    listing = re.findall(
        r'^    (?:"([0-9a-f]+)"  )?# ([^;\n]+?)(?:  ;.*)?$', text.partition("_CODE = (")[2].partition("\n)")[0], re.M
    )
    source.write_text("\n".join([".intel_syntax noprefix", *(line for _, line in listing), ""]))
    subprocess.run(["as", "-o", made, source], check=True)
    subprocess.run(["objcopy", "-O", "binary", "--only-section=.text", made, code], check=True)
    assert code.read_bytes().hex() == "".join(bytes_ for bytes_, _ in listing)
    assert len(listing) == 65


def test_a_command_that_measures_itself_does_not_see_us(tmp_path):
    """GIVEN a program that asks for its own page faults and peak WHEN it is launched by a tracer of many MiB THEN
    they are those that it has without, with 40 faults more at most.
    """
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    (tmp_path / "self.c").write_text(SELF)
    program, said = tmp_path / "self", tmp_path / "said"
    subprocess.run(["gcc", "-O1", "-o", program, tmp_path / "self.c"], check=True)
    command = [str(program), "1000", str(said)]
    subprocess.run([shutil.which("env") or "env", *command], check=True)
    bare, _, bare_hwm, _ = map(int, said.read_text().split())
    target = platform().launch(command)
    target.resume()
    assert target.wait(20) == 0
    faults, maxrss, hwm, parent = map(int, said.read_text().split())
    usage = target.usage()
    target.close()
    assert 1000 <= faults <= bare + 40
    assert abs(hwm - bare_hwm) <= 512  # KiB: a page table or two; what is shared is mapped in other runs
    assert maxrss <= hwm + 512
    assert parent == os.getpid()
    assert usage.peak_resident_bytes is not None
    assert not usage.peak_sampled  # a peak of 5 MiB is shown exactly
    assert 1000 * 4096 <= usage.peak_resident_bytes <= (hwm + 1024) * 1024
    assert 1000 <= (usage.minor or 0) <= faults + 40  # it writes its figures after it has read them


def test_where_it_cannot_be_executed_a_fork_holds_the_command(monkeypatch):
    monkeypatch.setattr(launcher, "image", lambda go, answer: b"no program")
    target = platform().launch(["sh", "-c", "exit 7"])
    target.resume()
    assert target.wait(20) == 7
    target.close()

"""Source lines and inlined functions of native code, also from a separate debug file, and from files that lie."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from wstrace.interfaces import MappedFile, SourceLine
from wstrace_plugins.symbols import resolver, source_lines
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.resolver import ImageResolver

CODE = """static volatile char memory[100];
static inline __attribute__((always_inline)) void inlined(int n) {
    memory[n] = 1;
}
__attribute__((noinline)) int outer(int n) {
    inlined(n);
    return memory[n + 1];
}
int main(void) { return outer(3); }
"""
pytest.importorskip("symbolic")


@pytest.fixture(autouse=True)
def own_helpers():
    yield
    source_lines.forget()


@pytest.fixture
def program(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    (tmp_path / "code.c").write_text(CODE)
    subprocess.run(["gcc", "-g", "-O1", "-Wl,--build-id=sha1", "-o", "program", "code.c"], cwd=tmp_path, check=True)
    return tmp_path / "program"


def offset_of_store(program: Path) -> int:
    """The offset in the file of the instruction that stores to memory, in `outer`."""
    listing = subprocess.run(
        ["objdump", "-d", "--disassemble=outer", program], capture_output=True, text=True, check=True
    )
    [line] = [line for line in listing.stdout.splitlines() if "movb" in line]
    return int(line.split(":")[0], 16)  # .text of a PIE lies at its own offset


def lines_at(program: Path, offset: int, build_id: str = "") -> tuple[SourceLine, ...]:
    [found] = ImageResolver().lines(MappedFile(str(program), build_id=build_id), np.array([offset], "<u8"))
    return found


def test_an_inlined_function_and_its_caller(program):
    found = lines_at(program, offset_of_store(program))
    assert [(one.function, Path(one.file).name, one.line) for one in found] == [
        ("inlined", "code.c", 3), ("outer", "code.c", 6)
    ]  # fmt: skip


def test_lines_of_a_program_for_a_fixed_address(program):
    build = ["gcc", "-g", "-O1", "-no-pie", "-Wl,--build-id=sha1", "-o", "program", "code.c"]
    subprocess.run(build, cwd=program.parent, check=True)
    first = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True).stdout
    begin = next(int(line.split()[2], 16) for line in first.splitlines() if line.split()[:1] == ["LOAD"])
    assert begin
    assert [one.line for one in lines_at(program, offset_of_store(program) - begin)] == [3, 6]


def test_a_place_without_lines_costs_the_others_none(program):
    header = subprocess.run(["readelf", "-h", program], capture_output=True, text=True, check=True).stdout
    start = int(header.split("Entry point address:")[1].split()[0], 16)
    offsets = np.array([start, offset_of_store(program)], "<u8")
    lines = ImageResolver().lines(MappedFile(str(program)), offsets)
    assert [[one.line for one in found] for found in lines] == [[], [3, 6]]


def test_what_has_no_lines_gives_none(program):
    offset = offset_of_store(program)
    subprocess.run(["strip", "-g", program], check=True)
    assert lines_at(program, offset) == ()
    assert lines_at(program.parent / "absent", offset) == ()
    assert lines_at(program, offset, build_id="00" * 20) == ()


def test_a_separate_debug_file_by_build_id(program, monkeypatch):
    offset, folder = offset_of_store(program), program.parent
    subprocess.run(["objcopy", "--only-keep-debug", "program", "program.debug"], cwd=folder, check=True)
    subprocess.run(["strip", program], check=True)
    monkeypatch.setattr(resolver, "DEBUG_FILE", f"{folder}/program.debug{{0:.0}}{{1:.0}}")
    assert [one.line for one in lines_at(program, offset)] == [3, 6]
    other = folder / "other"  # another build at that place is not believed
    subprocess.run(["gcc", "-g", "-O0", "-Wl,--build-id=sha1", "-o", other, folder / "code.c"], check=True)
    shutil.copy(other, folder / "program.debug")
    assert lines_at(program, offset) == ()


def test_a_file_cut_off_anywhere_gives_lines_or_none(program):
    offset, data = offset_of_store(program), program.read_bytes()
    cut = program.parent / "cut"
    for size in range(64, len(data), len(data) // 12):
        cut.write_bytes(data[:size])
        with ImageFile(str(cut)) as file:
            assert len(source_lines.source_lines(file, [offset])) == 1


def test_an_interpreter_that_has_read_lines_ends_without_a_word_and_leaves_no_process(program):
    code = (
        "import sys, wstrace_plugins.symbols.image as image, wstrace_plugins.symbols.source_lines as lines\n"
        "with image.ImageFile(sys.argv[1]) as file: print(lines.source_lines(file, [int(sys.argv[2])])[0][0].line)"
    )
    words = [sys.executable, "-c", code, str(program), str(offset_of_store(program))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


def with_rows(program: Path, rows: int, step: int) -> Path:
    """The program with that many further rows, so many bytes apart, in its compressed table of lines."""
    folder = program.parent
    subprocess.run(["objcopy", "--dump-section", f".debug_line={folder}/line", program], check=True)
    line = bytearray((folder / "line").read_bytes())
    (unit, _, header), base = struct.unpack_from("<IHI", line), struct.unpack_from("<bBB", line, 13)
    end = line.index(b"\0\x09\x02", 10 + header) + 11  # behind the first DW_LNE_set_address
    line[end:end] = bytes([base[2] - base[0] + step * base[1]]) * rows  # the same line
    struct.pack_into("<I", line, 0, unit + rows)
    (folder / "line").write_bytes(line)
    subprocess.run(["objcopy", "--update-section", f".debug_line={folder}/line", program], check=True)
    subprocess.run(["objcopy", "--compress-debug-sections=zlib-gabi", program, folder / "bomb"], check=True)
    return folder / "bomb"


def test_a_small_file_that_unpacks_to_a_huge_table_costs_lines_and_no_memory_of_ours(program):
    subprocess.run(["gcc", "-gdwarf-4", "-O1", "-Wl,--build-id=sha1", "-o", program, program.with_name("code.c")],
                   check=True)  # fmt: skip
    offset = offset_of_store(program)
    small = with_rows(program, 1000, 0)
    assert [one.line for one in lines_at(small, offset)] == [3, 6]
    size = struct.pack("<IIQ", 1, 0, program.with_name("line").stat().st_size)
    assert small.read_bytes().count(size) == 1
    small.write_bytes(small.read_bytes().replace(size, struct.pack("<IIQ", 1, 0, 1 << 40)))
    assert lines_at(small, offset) == ()
    bomb = with_rows(program, 40_000_000, 1)
    assert bomb.stat().st_size < 1 << 20
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert lines_at(bomb, offset) == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert time.monotonic() - begun < 40


def test_a_file_that_is_truncated_while_it_is_read_costs_lines(program, monkeypatch):
    offset, read = offset_of_store(program), ImageFile.read
    with program.open("ab") as file:
        file.truncate(4 << 20)

    def shrinking(self, at, size):
        if at >= 1 << 20:
            os.truncate(program, 8192)
        return read(self, at, size)

    monkeypatch.setattr(ImageFile, "read", shrinking)
    assert lines_at(program, offset) == ()


def test_a_reader_that_is_killed_costs_the_lines_of_its_file(program):
    offset, other = offset_of_store(program), program.with_name("other")
    shutil.copy(program, other)
    assert len(lines_at(program, offset)) == 2
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "lines_helper"], capture_output=True, text=True)
    for child in children.stdout.split():
        os.kill(int(child), signal.SIGKILL)
    assert lines_at(program, offset) == ()
    assert len(lines_at(other, offset)) == 2

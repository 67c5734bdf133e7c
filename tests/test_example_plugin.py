"""The documents' example plugin, installed as an outsider does, found and run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            folder,
            ROOT / "examples" / "wstrace_example_source",
            ROOT / "examples" / "wstrace_example_format",
            ROOT / "examples" / "wstrace_example_prefetch",
        ],
        check=True,
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_it_is_listed(environment, tmp_path):
    found = {
        p["name"]: p for p in json.loads(wstrace("plugins", "--json", environment=environment, cwd=tmp_path).stdout)
    }
    assert found["example"] == {
        "name": "example",
        "distribution": "wstrace-example-source",
        "version": "1.0.0",
        "state": "loaded",
        "hooks": ["wstrace_sources"],
        "error": "",
    }


def test_its_entry_point_imports_nothing_heavy(environment, tmp_path):
    code = "import sys, wstrace_example_source; print({'numpy', 'psutil', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_its_rows_are_in_the_file(environment, tmp_path):
    code = "import time\nx = []\nfor i in range(20):\n    x.append(bytearray(1 << 20)); time.sleep(0.01)"
    done = wstrace(
        "run",
        "-q",
        "-s",
        "resident_size:interval_ms=5",
        "-o",
        "x.wst",
        "-c",
        code,
        environment=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    info = json.loads(wstrace("info", "x.wst", "--json", environment=environment, cwd=tmp_path).stdout)
    assert "resident_size" in json.dumps(info["rows"])
    # and without the plugin installed the file is read all the same: its schema stands in it
    import wstrace as api

    with api.open_trace(tmp_path / "x.wst") as trace:
        sizes = [int(n) for batch in trace.batches("resident_size") for n in batch["bytes"]]
    assert len(sizes) >= 5
    assert max(sizes) - min(sizes) > 10 << 20, "it saw the target grow by 20 MiB"


def test_it_can_be_left_out(environment, tmp_path):
    for switch, state in ((["-P", "no:example"], "disabled"), (["--no-plugins"], "disabled")):
        found = json.loads(wstrace("plugins", "--json", *switch, environment=environment, cwd=tmp_path).stdout)
        assert {p["name"]: p["state"] for p in found}["example"] == state


def test_its_options_are_checked(environment, tmp_path):
    done = wstrace("run", "-s", "resident_size:interval=5", "true", environment=environment, cwd=tmp_path)
    assert done.returncode == 125
    assert "did you mean 'interval_ms'" in done.stderr


def test_an_outsiders_format_is_written(environment, tmp_path):
    assert wstrace("run", "-q", "-o", "x.wst", "true", environment=environment, cwd=tmp_path).returncode == 0
    done = wstrace("convert", "x.wst", "-o", "x.md", environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    table = (tmp_path / "x.md").read_text().splitlines()
    assert table[0] == "| faults | from disk | file |"
    assert len(table) > 3
    assert done.stderr == f"x.md: {len(table) - 2} rows\n"
    done = wstrace("convert", "-f", "x.wst", "-o", "x.md", "--option", "top=1", environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "x.md: 1 rows\n")


@pytest.fixture
def start(environment, tmp_path):
    """A trace of a program that reads two parts of a file through a mapping, and the file.

    They are further apart than a folio is large: Linux 6.18 maps all of one at a fault.
    """
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(4 << 20))
    os.utime(data, (1_000_000_000, 1_000_000_000))
    code = (
        "import mmap, sys\n"
        "file = open(sys.argv[1], 'rb')\n"
        "data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "data[3000000], data[9]"
    )
    done = wstrace("run", "-q", "-o", "x.wst", "-c", code, data, environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return data


def listed(tmp_path: Path, of: Path) -> list[list]:
    lines = [json.loads(line) for line in (tmp_path / "start.list").read_text().splitlines()]
    assert lines[0] == ["wstrace-example-prefetch", 1]
    return [line for line in lines[1:] if line[0] == str(of)]


def test_a_list_has_what_a_start_touched_in_the_order_of_the_first_touch(start, environment, tmp_path):
    done = wstrace("prefetch", "x.wst", "-o", "start.list", environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = listed(tmp_path, start)
    assert [offset for *_, offset, _ in found] == [3_000_000 >> 16 << 16, 0]
    assert found[0][1:3] == [4 << 20, 1_000_000_000 * 10**9]


def test_a_list_is_read_ahead_and_the_command_takes_over(start, environment, tmp_path):
    wstrace("prefetch", "x.wst", "-o", "start.list", environment=environment, cwd=tmp_path)
    fd = os.open(start, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    done = wstrace("prefetch", "--apply", "start.list", environment=environment, cwd=tmp_path)
    assert (done.returncode, "are read ahead" in done.stderr) == (0, True), done.stderr
    done = wstrace(
        "prefetch", "--apply", "start.list", "--", "sh", "-c", "exit 7", environment=environment, cwd=tmp_path
    )
    assert done.returncode == 7, done.stderr


def test_what_is_not_the_file_of_the_list_is_skipped_with_its_reason(start, environment, tmp_path):
    (tmp_path / "link").symlink_to(start)
    os.mkfifo(tmp_path / "fifo")
    rows = [[str(start), 5, 5, 0, 5], *([str(tmp_path / name), 5, 5, 0, 5] for name in ("link", "fifo", "none"))]
    lines = [["wstrace-example-prefetch", 1], *rows]
    (tmp_path / "l").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = wstrace("prefetch", "--apply", "l", environment=environment, cwd=tmp_path)
    assert done.stderr == (
        "wstrace: 0 B of 0 files are read ahead; skipped 4 files: 1 No such file or directory, "
        "1 changed since the list was made, 2 not a regular file\n"
    )


@pytest.mark.parametrize(
    "line", ["", "[]", "nonsense", "[" * 100_000, '["x", 5, 5, 0, 5]', '["/x", 5, 5, 0, 6]', '["/x", 5, 5, -1, 2]',
             '["/x", 5, 5, 0, true]', '["/x\\u0000", 5, 5, 0, 5]']
)  # fmt: skip
def test_a_line_that_is_no_range_is_refused_with_its_number(line, environment, tmp_path):
    (tmp_path / "l").write_text(f'["wstrace-example-prefetch", 1]\n{line}\n')
    done = wstrace("prefetch", "--apply", "l", environment=environment, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (125, 1), done.stderr
    assert "line 2" in done.stderr

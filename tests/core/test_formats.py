"""File formats: found by suffix, checked, held in check while they write."""

import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from kit.msgpack_scripted import recorded
from kit.plugin_entries import Entry, module

import wstrace.formats
import wstrace.plugins
from wstrace import cli
from wstrace.entry_points import entry_points
from wstrace.errors import OutputError, UsageError
from wstrace.hookspecs import Format
from wstrace.plugins import default_plugins
from wstrace_exporters.msgpack.read.trace import open_trace


@pytest.fixture
def trace(tmp_path):
    recorded(tmp_path / "x.wst", 3000)
    with open_trace(str(tmp_path / "x.wst")) as opened:
        yield opened


@pytest.fixture
def theirs(monkeypatch):
    """A third party's module with formats."""
    made = types.ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", made)
    return made


@pytest.fixture
def plugins_with(monkeypatch):
    """Our plugins, and one beside them that has these formats, for all that asks for plugins."""
    own = entry_points("wstrace")

    def installed(*formats):
        entry = Entry("their_plugin", module(wstrace_formats=lambda: list(formats)))
        monkeypatch.setattr(wstrace.plugins, "entry_points", lambda group: [*own, entry])
        default_plugins.cache_clear()
        return default_plugins()

    yield installed
    default_plugins.cache_clear()


def test_a_third_partys_format_is_found_by_its_suffix_alone(trace, theirs, tmp_path, plugins_with):
    def write(trace, file, *, title: str = "faults") -> int:
        file.write(f"{title}: {trace.rows['page_fault']}".encode())
        return 1

    theirs.write = write
    plugins_with(Format("theirs", (".one", ".tar.two"), "a test", "theirs:write"))
    assert trace.save(str(tmp_path / "x.one"), title="rows") == 1
    assert (tmp_path / "x.one").read_text() == "rows: 3000"
    assert trace.save(str(tmp_path / "X.TAR.TWO")) == 1
    assert cli.main(["convert", trace.name, "-o", str(tmp_path / "y.one")]) == 0
    assert (tmp_path / "y.one").read_text() == "faults: 3000"
    with pytest.raises(UsageError, match="no option 'titel'; did you mean 'title'"):
        trace.save(str(tmp_path / "z.one"), titel="x")
    with pytest.raises(UsageError, match="'stream'; it takes the whole trace"):
        trace.save(str(tmp_path / "z.one"), stream="process")
    with pytest.raises(UsageError, match=r"'.none' is not known; end it in .*\.csv.*\.one"):
        trace.save(str(tmp_path / "z.none"))
    with pytest.raises(OutputError, match="exists"):
        trace.save(str(tmp_path / "x.one"))
    assert not list(tmp_path.glob("z*"))


def test_a_formats_own_options_are_given_on_the_command_line(trace, theirs, tmp_path, plugins_with, capsys):
    def write(trace, file, *, title: str = "faults", hard: bool = False, wait_ms: int = 0) -> int:
        file.write(f"{title} {hard} {wait_ms}".encode())
        return 1

    theirs.write = write
    plugins_with(Format("theirs", (".one", ".uno"), "a test of ours", "theirs:write"))
    out = tmp_path / "x.one"

    def convert(*options):
        given = [word for option in options for word in ("--option", option)]
        code = cli.main(["convert", trace.name, "-f", "-o", str(out), *given])
        return code, capsys.readouterr().err

    assert convert("hard=yes", "title=a=b,c", "wait_ms=2s")[0] == 0
    assert out.read_text() == "a=b,c True 2000"
    assert trace.save(str(out), force=True, hard=True) == 1
    assert out.read_text() == "faults True 0"
    for option, reported in (
        ("hart=yes", "the format 'theirs' has no option 'hart'; did you mean 'hard'?"),
        ("hard=maybe", "the format 'theirs':hard: 'maybe' is neither true nor false"),
        ("hard", "--option hard: it has no value; write hard=VALUE"),
        ("stream=process", "the format 'theirs' has no option 'stream'"),
    ):
        code, err = convert(option)
        assert (code, reported in err) == (125, True), err
    assert cli.main(["convert", trace.name, "-o", str(tmp_path / "x.csv"), "--option", "stream=process"]) == 125
    assert "the format 'csv' has no option 'stream'" in capsys.readouterr().err
    assert cli.main(["convert", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ".one, .uno a test of ours; --option title=faults, hard=False, wait_ms=0" in shown
    assert ".csv rows as comma-separated values .html, .htm" in shown
    assert cli.main(["plugins"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "their_plugin" in line]
    assert ".one .uno" in line


def quits(trace, file):
    raise SystemExit(0)


def raises(trace, file):
    file.write(b"half")
    raise RuntimeError("it broke")


def returns_nothing(trace, file):
    file.write(b"all")


def counts_backwards(trace, file):
    return -5


def says_yes(trace, file):
    return True


def closes_the_trace(trace, file):
    file.write(b"all")
    trace.close()
    return 1


def closes_the_file(trace, file):
    file.close()
    return 1


def gets_no_memory(trace, file):
    raise MemoryError


def needs_a_file(trace, file):
    Path("/no/such/template").read_text()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (raises, "failed: RuntimeError: it broke"),
        (quits, "failed: SystemExit: 0"),
        (returns_nothing, "failed: TypeError: it returned None"),
        (counts_backwards, "failed: TypeError: it returned -5, not the number of rows"),
        (says_yes, "failed: TypeError: it returned True, not the number of rows"),
        (closes_the_trace, "failed: ValueError: it closed the trace"),
        (closes_the_file, "failed: ValueError: it closed the file"),
        (gets_no_memory, "failed: MemoryError; allow more memory: ulimit -v, or the limit of the container"),
        (needs_a_file, "No such file or directory"),
    ],
)
def test_a_format_that_fails_is_one_line_that_names_its_plugin(
    trace, theirs, tmp_path, plugins_with, capsys, write, why
):
    theirs.write = write
    plugins_with(Format("theirs", (".one",), "a test", "theirs:write"))
    assert cli.main(["convert", trace.name, "-o", str(tmp_path / "x.one")]) == 123
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert "the format 'theirs' of the plugin 'their_plugin'" in reported
    assert why in reported
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.wst"]
    theirs.__dict__.pop("write")
    with pytest.raises(OutputError, match=r"'their_plugin' cannot be used: .*has no attribute 'write'"):
        trace.save(str(tmp_path / "x.one"))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errno.ENOSPC, "; free some space or choose another disk"),
        (errno.EDQUOT, "; free some space or choose another disk"),
        (errno.EFBIG, "; allow larger files (ulimit -f) or choose another disk"),
    ],
)
def test_a_disk_without_room_for_a_format_has_a_remedy(trace, theirs, tmp_path, plugins_with, capsys, error, remedy):
    def write(trace, file):
        raise OSError(error, os.strerror(error))

    theirs.write = write
    plugins_with(Format("theirs", (".one",), "a test", "theirs:write"))
    assert cli.main(["convert", trace.name, "-o", str(tmp_path / "x.one")]) == 123
    assert capsys.readouterr().err.endswith(remedy + "\n")


@pytest.mark.parametrize(
    ("formats", "why"),
    [
        ([Format("a", (".csv",), "", "x:y")], ".csv is the format 'csv' of the plugin 'csv' already"),
        ([Format("a", (".one", ".one"), "", "x:y")], ".one is the format 'a' of the plugin 'their_plugin' already"),
        ([Format("a", (".one",), "", "x:y"), Format("b", (".one",), "", "x:y")], ".one is the format 'a' of"),
        ([Format("a", ("one",), "", "x:y")], "'one' is no suffix such as '.csv'"),
        ([Format("a", (".ONE",), "", "x:y")], "'.ONE' is no suffix"),
        ([Format("a", ".one", "", "x:y")], "is no Format with suffixes="),
        *[
            ([Format("a", (".one",), "", write)], f"the format 'a': write={write!r} is not 'module:function'")
            for write in ("x", "", ":y", "x:", "x:y:z", 5)
        ],
        ([Format("a", (".one",), "", "x:y", takes="some")], "is no Format with suffixes="),
        ([7], "7 is no Format"),
    ],
)
def test_a_format_that_cannot_be_used_leaves_its_plugin_out_and_is_reported(
    trace, tmp_path, plugins_with, capsys, formats, why
):
    found = plugins_with(*formats)
    assert {".csv", ".jsonl", ".ndjson", ".parquet"} <= set(found.formats)
    assert "their_plugin" not in {plugin for plugin, _ in found.formats.values()}
    with pytest.raises(UsageError, match=r"plugin 'their_plugin' failed: wstrace_formats: .*; end it in \.csv"):
        trace.save(str(tmp_path / "x.zz"))
    (broken,) = [plugin for plugin in found.found if plugin.state == "failed"]
    assert (broken.name, why in broken.error) == ("their_plugin", True)
    assert cli.main(["convert", trace.name, "-o", str(tmp_path / "x.csv")]) == 0
    reported = capsys.readouterr().err
    assert f"plugin 'their_plugin' failed: wstrace_formats: {broken.error.split(': ', 1)[1]}\n" in reported
    assert (tmp_path / "x.csv").exists()


def test_the_rows_of_any_stream_are_a_file(trace, tmp_path):
    assert trace.save(str(tmp_path / "x.csv"), stream="process") == trace.rows["process"]
    with pytest.raises(UsageError, match="no stream 'proces'; did you mean 'process'"):
        trace.save(str(tmp_path / "y.csv"), stream="proces")
    with pytest.raises(UsageError, match="no column 'vaa'"):
        trace.save(str(tmp_path / "y.csv"), columns=["vaa"])
    times = trace.batches().to_numpy()["time_ns"]
    some = trace.save(str(tmp_path / "y.jsonl"), end=int(times[1000]))
    assert some == (times < times[1000]).sum() < 3000
    assert len((tmp_path / "y.jsonl").read_text().splitlines()) == some
    assert not (tmp_path / "y.csv").exists()


PACKAGES = """
from wstrace import arrow
from wstrace.errors import Unavailable
from wstrace_exporters.msgpack.interchange import sql
from wstrace_exporters.pyarrow import writer
for load in (arrow.arro3, sql.duckdb, writer.pyarrow):
    try:
        load()
    except Unavailable as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("raise ImportError('libx.so: cannot\\nmap')", "is installed, and cannot be loaded: libx.so: cannot map"),
        ("import no_such_package", "is not installed; pip install 'wstrace["),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_loaded_is_not_reported_as_missing(tmp_path, code, reported):
    """As below `ulimit -v`, where the linker finds no room for a library of a package that is there."""
    for package in ("arro3", "duckdb", "pyarrow"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    words, surroundings = [sys.executable, "-c", PACKAGES], {**os.environ, "PYTHONPATH": str(tmp_path)}
    lines = subprocess.run(words, capture_output=True, text=True, check=True, env=surroundings).stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["arro3-core", "duckdb", "pyarrow"]
    assert all(reported in line for line in lines)

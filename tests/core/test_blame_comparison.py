"""Two runs compared: rows that sum to the difference of both totals, names of two releases, what cannot be shown."""

import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, FILE, PACKAGES, PAGE, Script, saved

from wstrace.analysis.alignment import paired, shift_between, unversioned
from wstrace.analysis.compare import Comparison
from wstrace.errors import TraceFileError, UsageError
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_FILE, PAGE_SHARED
from wstrace.trace import Trace
from wstrace_exporters.console.commands.diff import diff as command

OTHER = "/srv/venv-2/lib/python3.12/site-packages"


def run(*owners: tuple[int, list[tuple[str, str, int]]], shared: int = 0, peak: int = 0) -> Trace:
    """A trace of a program: (pages, the stack that touched them) ..., and pages of a library."""
    script = Script()
    page = 0
    for pages, stack in owners:
        for _ in range(pages):
            script.fault(10 + page, ANON + page * PAGE, stack)
            page += 1
    script.fault(5, FILE, [])
    runs = [(ANON, page, PAGE_EXCLUSIVE)] * bool(page) + [(FILE, shared, PAGE_FILE | PAGE_SHARED)] * bool(shared)
    script.snapshot(90_000, *runs)
    trace = script.trace()
    trace.info.command = ["/usr/bin/python3.11", "app.py"]
    if peak:
        trace.info.usage.peak_resident_bytes = peak * PAGE  # type: ignore[misc]
    return trace


def app(function: str, line: int, file: str = "/srv/app/app.py") -> list[tuple[str, str, int]]:
    return [(function, file, line), ("<module>", file, 50)]


def importing(package: str, packages: str = PACKAGES) -> list[tuple[str, str, int]]:
    return [("__init__", f"{packages}/{package}/core.py", 9), ("<module>", f"{packages}/{package}/__init__.py", 2),
            ("_call", "<frozen importlib._bootstrap>", 7), ("<module>", "/srv/app/app.py", 3)]  # fmt: skip


def changes(found: Comparison, view: str) -> dict[str, tuple[int, int]]:
    """label -> pages in the first and in the second run."""
    return {row.label: (row["first"] // PAGE, row["second"] // PAGE) for row in found.rows(view)}


BEFORE = [(20, app("load", 31)), (10, importing("pandas")), (4, app("save", 40)), (2, app("gone", 60))]
AFTER = [(20, app("load", 33)), (34, importing("pandas", OTHER)), (5, app("save", 42)), (3, app("new", 70))]


def test_each_view_tells_what_the_second_run_has_more():
    found = run(*BEFORE, shared=3).diff(run(*AFTER, shared=5))
    assert found.first.total == 39 * PAGE
    assert found.second.total == 67 * PAGE
    assert found.change == 28 * PAGE
    assert changes(found, "package") == {
        "pandas": (10, 34), "(own code)": (26, 28), "libc.so": (3, 5)}  # fmt: skip
    assert changes(found, "function")["load app.py"] == (20, 20)
    assert changes(found, "function")["__init__ pandas/core.py"] == (10, 34), "of two venvs and two Pythons"
    lines = changes(found, "line")
    assert lines["load app.py:33"] == (20, 20), "its line moved by two, as that of save did"
    assert lines["save app.py:42"] == (4, 5)
    assert lines["import pandas app.py:3"] == (10, 34)
    assert lines["gone app.py:60"] == (2, 0)
    assert lines["new app.py:70"] == (0, 3)
    assert changes(found, "kind") == {"anon": (36, 62), "file": (3, 5)}
    assert changes(found, "file") == {"[anon]": (36, 62), "/usr/lib/libbig.so": (3, 5)}


@pytest.mark.parametrize("view", ["package", "function", "line", "file", "module", "kind"])
def test_the_rows_of_every_view_sum_to_the_difference_of_both_totals(view):
    first, second = run(*BEFORE, shared=3), run(*AFTER, shared=5)
    found = first.diff(second)
    for rows, one, other in ((found.rows(view), found.first, found.second),
                             (second.diff(first).rows(view), found.second, found.first)):  # fmt: skip
        assert sum(row["first"] for row in rows) == one.total
        assert sum(row["second"] for row in rows) == other.total
        assert sum(row["change"] for row in rows) == other.total - one.total
        assert len({row.label for row in rows}) == len(rows), "no two rows have the same label"
    assert [abs(row["change"]) for row in found.rows(view)] == sorted(
        (abs(row["change"]) for row in found.rows(view)), reverse=True
    )


def test_lines_of_unknown_moves_are_one_row_of_their_function():
    first = run((4, app("load", 10)), (5, app("load", 14)))
    second = run((6, app("load", 11)), (7, app("load", 12)))
    found = changes(first.diff(second), "line")
    assert found["load app.py (lines 10, 14; now 11, 12)"] == (9, 13)


def test_shift_between_lines():
    assert shift_between([10, 12, 30], [12, 14, 32]) == 2
    assert shift_between([10, 12], [10, 12, 14]) == 0, "where nothing tells of a move, nothing moved"
    assert shift_between([3], [5]) == 2
    assert shift_between([10, 14], [11, 12]) is None
    assert shift_between(list(range(100_000)), list(range(7, 100_007))) == 7, "in bounded time"


def test_names_of_two_versions():
    for one, other in (("libssl.so.1.1", "libssl.so.3"), ("libpython3.11.so.1.0", "libpython3.12.so.1.0"),
                       ("_core.cpython-311-x86_64-linux-gnu.so", "_core.cpython-313-x86_64-linux-gnu.so"),
                       ("_core.cp311-win_amd64.pyd", "_core.cp312-win_amd64.pyd"), ("python311.dll", "python312.dll"),
                       ("libopenblas64_p-r0-0cf96a72.3.23.so", "libopenblas64_p-r0-5c9b1a22.3.27.so")):  # fmt: skip
        assert unversioned(one) == unversioned(other), one
    assert unversioned("libssl.so.3") != unversioned("libcrypto.so.3")


def test_only_what_is_alone_with_its_name_is_paired():
    # two versions in one run: which of them became libssl.so.4 is not known
    assert paired(["libssl.so.1.1", "libssl.so.3"], ["libssl.so.4"], [lambda name: name, unversioned]) == [
        ("libssl.so.1.1", None), ("libssl.so.3", None), (None, "libssl.so.4")]  # fmt: skip
    assert paired(["libssl.so.1.1", "libssl.so.3"], ["libssl.so.3", "libssl.so.4"],
                  [lambda name: name, unversioned]) == [
        ("libssl.so.3", "libssl.so.3"), ("libssl.so.1.1", "libssl.so.4")]  # fmt: skip


def said(first: Trace, second: Trace, *words: str, folder) -> tuple[int, str]:
    paths = []
    for name, trace in (("a.wst", first), ("b.wst", second)):
        paths.append(str(folder / name))
        saved(trace, paths[-1])
    done = CliRunner().invoke(command, [*paths, *words])
    return done.exit_code, done.output if done.exception is None else str(done.exception)


def test_the_first_line_is_the_answer(tmp_path):
    code, text = said(run(*BEFORE, shared=3), run(*AFTER, shared=5), folder=tmp_path)
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == ("+112.0 KiB resident at the last snapshot (156.0 KiB -> 268.0 KiB): +96.0 pandas, "
                        "+12.0 new app.py:70, ~+8.0 libc.so, ...")  # fmt: skip
    named = [line.split() for line in lines[lines.index("") + 2 :][:3]]
    assert [(row[0], " ".join(row[4:])) for row in named] == [  # change and second, each with its unit
        ("+96.0", "pandas"), ("+12.0", "new app.py:70"), ("~+8.0", "libc.so")]  # fmt: skip
    assert sum(line.endswith("Total") for line in lines) == 1
    _, text = said(run(*BEFORE), run(*BEFORE), folder=tmp_path)
    assert text.splitlines()[0] == "no change: 144.0 KiB resident at the last snapshot"
    _, text = said(run(*BEFORE), run(*AFTER), "--by", "line", "--top", "1", folder=tmp_path)
    assert "Total (of 4 rows)" in text


def test_a_trace_without_stacks_is_compared_by_file_only(tmp_path):
    bare = run((40, []))
    found = run(*BEFORE).diff(bare)
    assert "stacks" in found.why_not("package")
    assert found.why_not("file") == ""
    with pytest.raises(UsageError, match="stacks"):
        found.rows("function")
    code, text = said(run(*BEFORE), bare, folder=tmp_path)
    assert code == 0
    assert text.splitlines()[0].endswith("+16.0 [anon]")
    assert "Python stacks" in text.splitlines()[2]
    assert "Python stacks" in said(run(*BEFORE), bare, "--by", "line", folder=tmp_path)[1]


def test_without_a_snapshot_nothing_is_compared():
    script = Script()
    script.fault(10, ANON, app("load", 1))
    with pytest.raises(TraceFileError, match="no whole snapshot"):
        script.trace().diff(run(*BEFORE))


def test_records_that_were_lost_are_a_doubt():
    lossy = run(*AFTER)
    lossy.ledger.add("lost_kernel", 7)
    assert any("7 lost" in doubt for doubt in run(*BEFORE).diff(lossy).doubts)

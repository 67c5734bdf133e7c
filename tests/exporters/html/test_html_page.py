"""The report in Chromium: it shows what `report --json` and `blame --json` say, and needs no network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from kit import chromium
from kit.blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script, composition, saved

from wstrace import open_trace
from wstrace.analysis.composition import Composition
from wstrace.analysis.timeline import Timeline
from wstrace.clock import now_ns
from wstrace.schema import (
    FAULT_MAJOR,
    FAULT_WRITE,
    LOSS_FORKED,
    LOSS_UNMAPPED,
    MARK,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
    PROCESS_FORK,
    SPAN,
    SPAN_OPEN,
)
from wstrace.testing import batch_of
from wstrace.text import signed
from wstrace_exporters.console.commands.diff import diff
from wstrace_exporters.console.commands.report import report

SECOND = 1_000_000_000
EVIL = "</script><script>document.title='owned'</script><!--\u2028\x1b[31m\u202e" + "n" * 3000
READY = "document.documentElement?.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium.require()
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


_SAID = "document.querySelector('#icicle .said').dataset"


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    """400 pages of the app over 4 s, of which a tenth are gone; files with reads from disk; a mark; evil names."""
    begin, script = now_ns() + 10 * SECOND, Script()
    for page in range(400):
        stack = [("leaf", EVIL, 1), *APP] if page % 7 == 0 else APP if page % 2 else IMPORT
        script.fault(begin + page * SECOND // 100, ANON + page * PAGE, stack)
    for page in range(0, 60, 3):
        script.fault(begin + page * SECOND // 20, FILE + page * PAGE, SAVE, flags=FAULT_MAJOR * (page % 2))
    script.faults.sort()
    script.lose(begin + 5 * SECOND, LOSS_UNMAPPED, start=ANON, end=ANON + 40 * PAGE)
    script.batches.append(batch_of(MARK, script.strings, time_ns=begin + SECOND, pid=7, tid=7, text="warm " + EVIL))
    script.snapshot(begin + 6 * SECOND, (ANON + 40 * PAGE, 360, PAGE_EXCLUSIVE), (FILE, 60, PAGE_FILE | PAGE_SHARED))
    path = str(tmp_path_factory.mktemp("trace") / "x.wst")
    trace = script.trace()
    trace.info.command = ["app", EVIL]
    saved(trace, path)
    return path


@pytest.fixture(scope="module")
def page(browser, trace_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "r.html"
    reported = CliRunner().invoke(report, [trace_file, "--html", str(path)])
    assert reported.exit_code == 0, reported.output
    browser.open(f"file://{path}", READY)
    return path


def shown(browser: chromium.Chromium, script: Script, folder: Path) -> str:
    """The trace of the script, whose report the browser shows."""
    saved(script.trace(), trace := str(folder / "x.wst"))
    assert CliRunner().invoke(report, [trace, "--html", str(folder / "r.html")]).exit_code == 0
    browser.open(f"file://{folder / 'r.html'}", READY)
    return trace


def as_json(command, *words: str):
    reported = CliRunner().invoke(command, [*words])
    assert reported.exit_code == 0, reported.output
    return json.loads(reported.output)


def arrived(trace_file: str, view: str, between: str) -> dict[str, dict[str, int]]:
    """Label -> figures of what arrived in the chosen time; `Total` too."""
    with open_trace(trace_file) as trace:
        blame = Composition(trace, "peak")
    edges = [blame.origin_ns + round(float(text) * 1e9) for text in between.split(",")]
    over = Timeline(blame, np.array(edges, np.uint64)).by(view)
    columns = {
        name: getattr(over, name)[:, 0].round().astype(int).tolist()
        for name in ("resident", "brought", "faults", "from_disk")
    }
    found = {row.label: {name: columns[name][at] for name in columns} for at, row in enumerate(over.rows)}
    found = {label: row for label, row in found.items() if any(row.values())}
    return {**found, "Total": {name: sum(row[name] for row in found.values()) for name in columns}}


def figures(browser) -> dict[str, list[int]]:
    """label -> still resident, brought, faults, from disk; as exact numbers."""
    rows = browser.value(
        "[...document.querySelectorAll('#window tbody tr')].map(row => [row.lastChild.textContent,"
        " [...row.children].slice(0, 4).map(cell => Number(cell.dataset.value))])"
    )
    return dict(rows)


def test_it_asks_nothing_and_breaks_no_rule(browser, page):
    urls = {event["request"]["url"].partition("#")[0] for event in browser.events("Network.requestWillBeSent")}
    # a data: URL carries its own content
    assert {url for url in urls if not url.startswith("data:")} <= {f"file://{page}", "about:blank"}
    assert browser.events("Runtime.exceptionThrown") == []
    issues = [event["issue"]["code"] for event in browser.events("Audits.issueAdded")]
    assert "ContentSecurityPolicyIssue" not in issues
    assert browser.value("document.title") != "owned"


def test_its_policy_is_by_hash_alone(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.read_text("utf-8"))
    assert policy
    own_hash = r"'sha256-[\w+/=]{44}'"
    assert re.fullmatch(f"default-src 'none'; script-src {own_hash}; style-src {own_hash}; img-src data:", policy[1])


def test_the_first_lines_are_those_of_the_terminal(browser, page, trace_file):
    found = as_json(report, trace_file, "--json")
    assert browser.value("document.querySelector('h1').textContent") == found["answer"]
    lines = browser.value("[...document.querySelectorAll('header p')].map(line => line.textContent)")
    assert lines[0] == found["completeness"]


def test_the_whole_is_the_total_of_blame(browser, page, trace_file):
    total = as_json(report, trace_file, "--json", "--by", "kind")
    assert (
        browser.value("Number(document.querySelector('#whole .total b').dataset.value)") == total["total"]["resident"]
    )
    parts = browser.value("Object.fromEntries([...document.querySelectorAll('#whole .part')].map(part =>"
                          " [part.dataset.part, Number(part.querySelector('.number').dataset.value)]))")  # fmt: skip
    assert parts == {"private anonymous": 360 * PAGE, "shared file": 60 * PAGE}


@pytest.mark.parametrize("view", ["line", "file", "kind"])
def test_the_brush_sums_what_arrived_in_its_time(browser, page, trace_file, view):
    browser.value(f"change({{view: '{view}', from: null, to: null}})")
    place = browser.place("#timeline .plot")
    y = place["top"] + 50
    browser.drag((place["left"] + place["width"] * 0.21, y), (place["left"] + place["width"] * 0.55, y))
    between = browser.value("document.querySelector('#window code').dataset.between")
    shown = figures(browser)
    found = arrived(trace_file, view, between)
    assert 0 < shown["Total"][2] < 420
    assert shown["Total"] == list(found["Total"].values())
    assert sorted(shown.values()) == sorted(list(row.values()) for row in found.values())


@pytest.mark.parametrize("width", [360, 700])
def test_a_small_window_is_scrolled_down_alone(browser, page, width):
    show = {"height": 740, "deviceScaleFactor": 1, "mobile": False}
    browser.send("Emulation.setDeviceMetricsOverride", width=width, **show)
    try:
        wide = "[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth)"
        browser.wait(f"!{wide}.length")  # the pictures are drawn anew with the next frame
    finally:
        browser.send("Emulation.setDeviceMetricsOverride", width=1280, **{**show, "height": 1600})


def test_the_brush_moves_by_keys(browser, page):
    browser.value("change({from: 10, to: 20}), document.querySelector('#timeline .plot').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight", modifiers=8)
    assert browser.value("[state.from, state.to]") == [11, 22]
    browser.press("Escape")
    assert browser.value("[state.from, state.to]") == [None, None]


def test_the_icicle_sums_to_the_same(browser, page, trace_file):
    with open_trace(trace_file) as trace:
        rows = composition(trace, "peak").rows("kind")
    sums = [sum(row[name] for row in rows) for name in ("resident", "brought", "from_disk")]
    browser.value("change({from: null, to: null})")
    assert browser.value(f"[0, 1, 2].map(at => Number({_SAID}['weight' + at]))") == sums
    browser.value("document.querySelector('#icicle canvas').focus()")
    for _ in range(3):
        browser.press("ArrowDown")
    assert browser.value(f"{_SAID}.node") == "<module> app.py"


def test_names_are_bounded_and_harmless(page):
    text = page.read_text("utf-8")
    assert text.count("</script>") == 2
    assert "\u2028" not in text
    assert "\x1b" not in text
    assert "n" * 300 not in text
    assert len(text) < 400_000


@pytest.mark.parametrize("by", ["package", "function"])
def test_two_runs_have_the_lines_and_the_table_of_diff_and_one_icicle(browser, tmp_path, by):
    paths = []
    for number, pages in enumerate((10, 25)):
        script = Script()
        for at in range(pages):
            script.fault(10 + at, ANON + at * PAGE, [("leaf", EVIL, 1), *APP] if at % 2 else APP)
        script.fault(90, ANON + 100 * PAGE, IMPORT)
        script.snapshot(100, (ANON, pages, PAGE_EXCLUSIVE), (ANON + 100 * PAGE, 1 + 3 * (1 - number), PAGE_EXCLUSIVE))
        paths.append(str(tmp_path / f"{'ab'[number]}.wst"))
        saved(script.trace(), paths[-1])
    reported = CliRunner().invoke(diff, [*paths, "--html", str(tmp_path / "d.html"), "--by", by])
    assert reported.exit_code == 0, reported.output
    assert CliRunner().invoke(diff, [*paths, "--html", str(tmp_path / "d.html")]).exit_code == 1, "the file exists"
    browser.open(f"file://{tmp_path}/d.html", READY)
    found = as_json(diff, *paths, "--json", "--by", by)
    lines = browser.value("[...document.querySelectorAll('h1, header p')].map(line => line.textContent)")
    assert lines[:2] == [found["answer"], found["completeness"]]
    rows = browser.value("[...document.querySelectorAll('#growth tbody tr')].map(row =>"
                         " [...row.children].map(cell => cell.textContent))")  # fmt: skip
    assert [row[0] for row in rows] == [signed(row["change"]) for row in (*found["rows"], found["total"])]
    assert rows[-1][:3] == ["+48.0 KiB", "56.0 KiB", "104.0 KiB"]
    grown, gone, second, first = browser.value(f"[0, 1, 2, 3].map(at => Number({_SAID}['weight' + at]))")
    assert grown - gone == second - first == found["total"]["change"] == 12 * PAGE
    assert gone == 3 * PAGE, "pages without a fault"
    assert browser.value("document.title") == "wstrace: a.wst and b.wst"
    assert browser.events("Runtime.exceptionThrown") == []


def test_the_processes_and_what_was_copied_are_those_of_the_reports(browser, tmp_path):
    begin, script = now_ns() + 10 * SECOND, Script()
    lines = [[("copy", "/srv/app/app.py", 100 + n)] for n in range(14)]
    for at in range(56):
        script.fault(begin + at, ANON + at * PAGE, APP)
    script.lose(begin + SECOND // 2, LOSS_FORKED, pid=9, other=7)
    script.batches.append(script.process(begin + SECOND // 2, 9, PROCESS_FORK, "other"))
    for at in range(56):
        script.fault(begin + SECOND + at * SECOND // 50, ANON + at * PAGE, lines[at % 14], pid=9, flags=FAULT_WRITE)
    script.snapshot(begin + 4 * SECOND, (ANON, 56, PAGE_EXCLUSIVE))
    script.snapshot(begin + 4 * SECOND + 1, (ANON, 56, PAGE_EXCLUSIVE), pid=9, number=1)
    trace = shown(browser, script, tmp_path)
    rows = ("[...document.querySelectorAll('#copies tbody tr')].map(row =>"
            " [row.lastChild.textContent, Number(row.firstChild.dataset.value)])")  # fmt: skip
    all_ = dict(browser.value(rows))
    assert (
        sum(all_.values()) == 56 * PAGE == browser.value("Number(document.querySelector('#workers h3').dataset.value)")
    )
    assert all_.pop("(2 others)") == 8 * PAGE
    assert set(all_.values()) == {4 * PAGE}
    bars = browser.value(
        "Object.fromEntries([...document.querySelectorAll('.worker')].map(one => [one.querySelector('.label').title,"
        " Number(one.querySelector('.number').dataset.value)]))"
    )
    found = as_json(report, trace, "--by", "process", "--json")
    assert bars == {row["process"]: 56 * PAGE for row in found["rows"]}


def test_a_span_is_a_bar_under_the_timeline_and_chooses_its_time(browser, tmp_path):
    begin, script = now_ns() + 10 * SECOND, Script()
    for at in range(100):
        script.fault(begin + at * SECOND // 100, ANON + at * PAGE, APP)
    times = [begin + SECOND // 10, begin + SECOND // 5]
    script.batches.append(batch_of(SPAN, script.strings, time_ns=times, end_ns=[begin + SECOND // 2, times[1] + 10**8],
                                   pid=7, tid=7, name=["load", EVIL], flags=[0, SPAN_OPEN], span_id=[1, 2],
                                   trace_high=0, trace_low=9))  # fmt: skip
    trace = shown(browser, script, tmp_path)
    bars = browser.value("[...document.querySelectorAll('.span')].map(one => [one.title, one.style.top])")
    assert bars[0] == ["load: 0.4 s, thread 7", "0px"]
    assert bars[1][0].endswith("0.1 s, still open at the end, thread 7")
    assert bars[1][1] == "18px", "below the span that it lies within"
    browser.value("document.querySelector('.span').click()")
    first, last = (
        float(text) for text in browser.value("document.querySelector('#window code').dataset.between").split(",")
    )
    with open_trace(trace) as opened:
        since = composition(opened, "peak").origin_ns
    assert 0 <= (times[0] - since) / 1e9 - first < 0.01
    assert 0 <= last - (begin + SECOND // 2 - since) / 1e9 < 0.01
    assert browser.events("Runtime.exceptionThrown") == []


def test_what_is_resident_is_no_number_where_it_is_not_known(browser, tmp_path):
    """GIVEN faults without a look at the memory, and a span behind them THEN the page shows what was brought."""
    begin, script = now_ns() + 10 * SECOND, Script()
    for at in range(100):
        script.fault(begin + at * SECOND // 100, ANON + at * PAGE, APP)
    ends = [begin + SECOND // 2, begin + 3 * SECOND]
    script.batches.append(batch_of(SPAN, script.strings, time_ns=[begin, begin + 2 * SECOND], end_ns=ends, pid=7, tid=7,
                                   name=["load", "late"], flags=0, span_id=[1, 2], trace_high=0,
                                   trace_low=9))  # fmt: skip
    shown(browser, script, tmp_path)
    assert browser.value("[...document.querySelectorAll('[data-choice]')].map(one => one.dataset.choice)") == [
        "brought", "from_disk"]  # fmt: skip
    cells = browser.value("[...document.querySelectorAll('#window tr:last-child td')].map(one => one.textContent)")
    assert cells == ["not known", "400.0 KiB", "100", "0", "Total"]
    assert "resident" not in browser.value("document.querySelector('#icicle .said').textContent")
    notes = browser.value("[...document.querySelectorAll('.note')].map(one => one.textContent)")
    assert "1 span not drawn: outside of the time from the first fault to the last one" in notes
    assert not [note for note in notes if "longest" in note]
    assert browser.events("Runtime.exceptionThrown") == []

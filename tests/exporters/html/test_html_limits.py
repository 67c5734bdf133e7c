"""What the report does with too much, with too little and with what is broken: it says so, and stays small."""

import base64
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, APP, PAGE, Script, saved

from wstrace import open_trace
from wstrace.errors import OutputError, UsageError
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_READ, MAPPING, PAGE_EXCLUSIVE, PROCESS, PROCESS_FORK
from wstrace.testing import batch_of, trace_of
from wstrace.trace import Trace
from wstrace_exporters.console.commands.diff import diff
from wstrace_exporters.console.commands.report import report
from wstrace_exporters.html.pictures.icicle import packed
from wstrace_exporters.html.report import write


def page(trace: Trace) -> tuple[dict, int]:
    """The data of a trace's report, and the bytes of the page."""
    file = io.BytesIO()
    write(trace, file)
    text = file.getvalue().decode("utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0]), len(text)


def numbers(text: str) -> list[int]:
    """What varints() wrote."""
    found, value, shift = [], 0, 0
    for one in base64.b64decode(text):
        value |= (one & 127) << shift
        shift += 7
        if not one & 128:
            found.append(value)
            value = shift = 0
    return found


def scripted() -> Script:
    script = Script()
    for at in range(4):
        script.fault(100 + at * 1_000_000, ANON + at * PAGE, APP)
    script.snapshot(1 << 40, (ANON, 4, PAGE_EXCLUSIVE))
    return script


def test_an_empty_trace_says_what_it_cannot_show():
    found, _ = page(trace_of())
    assert found["why"]["pages"].startswith("no resident pages are in the trace: record with")
    assert found["why"]["times"] == "the trace holds no faults"
    assert (found["whole"]["parts"], found["tree"], found["time"]["n"]) == ([], None, 0)


def test_a_trace_without_stacks_says_so():
    script = Script()
    script.fault(100, ANON)
    script.snapshot(200, (ANON, 1, PAGE_EXCLUSIVE))
    found, _ = page(script.trace())
    assert found["why"]["stacks"][0].startswith("no stacks were recorded: below a process and thread stands")
    assert found["tree"]["names"][0] == "all"


def test_a_cut_file_is_reported_so(tmp_path):
    path = tmp_path / "x.wst"
    saved(scripted().trace(), str(path))
    path.write_bytes(path.read_bytes()[:-40])
    with open_trace(str(path)) as trace:
        found, _ = page(trace)
    assert "the file is cut" in found["headline"][1]
    for command, words in ((report, [path]), (diff, [path, path])):
        shown = CliRunner().invoke(command, [*map(str, words), "--html", str(tmp_path / f"{command.name}.html")])
        assert shown.output.count("(the trace is cut: `wstrace info` tells what is lost)") == len(words), shown.output


def test_small_nodes_are_not_drawn_and_the_sums_stay():
    steps = [("all", 0), *((f"function_{at}", 1) for at in range(70)), *((f"leaf {at}", at) for at in range(5000))]
    found = packed(steps, [(1 + at % 70, 71 + at) for at in range(5000)], np.ones((5000, 1)), [1])
    rows = np.array(numbers(found["nodes"])).reshape(-1, 4)
    assert rows[0].tolist()[3] == 5000
    assert found["folded"].startswith("5,000 small frames are not drawn")
    assert not [text for text in found["names"] if text.startswith("leaf")]
    parents = np.arange(len(rows)) - rows[:, 0]
    assert rows[1:][parents[1:] == 0, 3].sum() == 5000


def test_ten_thousand_files_and_a_thousand_processes_stay_small():
    script = Script()
    names = [f"/{'long/' * 50}{at}/{'f' * 150}.so" for at in range(10_000)]
    start = [0x7000_0000_0000 + at * 8 * PAGE for at in range(10_000)]
    script.batches.insert(0, batch_of(
        MAPPING, script.strings, id=list(range(10, 10_010)), time_ns=1, pid=7, start=start,
        end=[one + 8 * PAGE for one in start], offset=0, dev=1, ino=list(range(10_000)), build_id=0, file=names,
        flags=MAP_READ | KIND_FILE << KIND_SHIFT))  # fmt: skip
    script.batches.append(batch_of(
        PROCESS, script.strings, time_ns=list(range(2, 1002)), pid=list(range(100, 1100)), ppid=7,
        tid=list(range(100, 1100)), event=PROCESS_FORK, code=-1,
        name=[f"worker-{at}-{'w' * 300}" for at in range(1000)],
    ))  # fmt: skip
    for at in range(1000):
        script.fault(2000 + at, ANON + at * PAGE, APP, pid=100 + at)
    found, size = page(script.trace())
    assert size < 600_000
    assert len(found["workers"]["bars"]) == 40
    assert any(line.startswith("40 of 1,0") for line in found["workers"]["notes"])


def test_a_report_is_an_html_file_and_overwrites_none(tmp_path):
    trace = scripted().trace()
    with pytest.raises(UsageError, match=r"ends in \.html"):
        trace.html(str(tmp_path / "x.txt"))
    path = tmp_path / "x.html"
    assert trace.html(str(path)) == 4
    with pytest.raises(OutputError):
        trace.html(str(path))
    assert trace.html(str(path), force=True) == 4

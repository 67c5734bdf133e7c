"""Everything that can be wrong with an output, with names from outside, and with a terminal."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from screen import Screen

from wstrace.analysis import headline
from wstrace.errors import OutputError, UsageError
from wstrace.options import options_of
from wstrace.schema import KINDS
from wstrace.terminal.elide import elide
from wstrace.terminal.output import Output
from wstrace.text import printable
from wstrace.trace_info import Level, TraceInfo
from wstrace_exporters.console.console import Console

LIBC, TORCH, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch/lib/libtorch_cpu.so", "/usr/bin/python3.11"


HOSTILE = "/tmp/\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202egnp.so" + b"\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("options", [{}, {"by": "file"}, {"format": "lines"}, {"file": "*\x1b*"}], ids=str)
def test_names_from_outside_only_print(kit: Any, options: dict[str, Any]) -> None:
    trace = kit.Trace()
    info = trace.context.info
    info.saved, info.level, info.notes = HOSTILE, Level("odd\x1b", HOSTILE), [HOSTILE]
    text = kit.printed(
        trace, [trace.process([(700, 1, 700, 3, HOSTILE)]), trace.faults([(3, HOSTILE, HOSTILE)])], **options
    )
    assert text.replace("\n", "").isprintable()
    assert "x1b" in text


def test_markup_in_names_stays_text(kit: Any) -> None:
    trace = kit.Trace()
    assert "/tmp/[bold red]x[/bold red] :smile:" in kit.printed(
        trace, [trace.faults([(3, "/tmp/[bold red]x[/bold red] :smile:", LIBC)])]
    )


@pytest.mark.parametrize("encoding", ["cp437", "cp1252", "ascii", "utf-16"])
def test_every_encoding_takes_the_report(kit: Any, encoding: str) -> None:
    trace, stream = kit.Trace(), io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    text = kit.printed(
        trace, [*kit.ordinary(trace), trace.faults([(30_000, "/tmp/\u65e5\u672c-\u00e9.so", LIBC)])], stream
    )
    if encoding == "utf-16":
        assert "\u2588" in text
        assert "\u65e5\u672c-\u00e9.so" in text
    else:
        assert "##############" in text
        assert "\\u65e5\\u672c-" in text


def test_a_pipe_gets_plain_text_with_whole_names(kit: Any) -> None:
    trace = kit.Trace()
    long = "/deep" * 60 + "/lib.so"
    text = kit.printed(trace, [trace.faults([(3, long, LIBC)])])
    assert long in text
    assert "\x1b" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    "name",
    [
        "/usr/lib/x86_64-linux-gnu/libtorch_cpu.so",
        "\u65e5\u672c" * 40,
        "e\u0301" * 60,
        "\U0001f468\u200d\U0001f469" * 20,
    ],
)
@pytest.mark.parametrize("unicode", [True, False])
def test_a_cut_name_keeps_its_end_within_the_room(name: str, unicode: bool) -> None:
    from rich.cells import cell_len

    name = printable(name)
    assert cell_len(elide([name], 20, unicode=unicode)[0]) <= 20
    assert elide([name], 4096, unicode=unicode) == [name]
    if name.isascii():
        assert elide(["/usr/lib/x86_64-linux-gnu/libtorch_cpu.so"], 20, unicode=True) == ["/us\u2026/libtorch_cpu.so"]


def test_path_is_a_new_file_or_one_clear_error(kit: Any, tmp_path: Path) -> None:
    trace = kit.Trace()
    kit.printed(trace, kit.ordinary(trace))
    console = Console(path=str(tmp_path / "r.txt"))
    console.start(trace.context)
    console.close()
    assert (tmp_path / "r.txt").read_text(encoding="utf-8").startswith("peak 412.6 MiB resident; 0 faults")
    with pytest.raises(OutputError, match=r"cannot write .*No such file"):
        Console(path=str(tmp_path / "no" / "r.txt")).start(trace.context)


def test_a_closed_stream_is_no_error(kit: Any) -> None:
    trace, stream = kit.Trace(), io.StringIO()
    stream.close()
    console = Console(stream)
    console.start(trace.context)
    console.close()
    assert console.broken


def test_options_are_read_off_the_signature() -> None:
    options = options_of(Console)
    assert {
        "format",
        "by",
        "top",
        "hard",
        "soft",
        "file",
        "tid",
        "start",
        "end",
        "json",
        "live",
        "quiet",
        "path",
    } <= set(options)
    assert "stream" not in options
    assert options["live"].convert("none") is None
    with pytest.raises(ValueError, match="summary"):
        options["format"].convert("sumary")
    with pytest.raises(UsageError):
        Console(hard=True, soft=True)


def test_cancel_and_abandon_print_nothing(kit: Any) -> None:
    for end in (Console.cancel, Console.after_fork_in_child):
        stream = io.StringIO()
        console = Console(stream)
        console.start(kit.Trace().context)
        end(console)
        assert stream.getvalue() == ""


@pytest.mark.parametrize(("options", "launched", "stream", "live"), [
    ({}, True, Screen, False), ({}, False, Screen, True), ({"live": True}, True, Screen, True),
    ({"live": False}, False, Screen, False), ({"live": True}, False, io.StringIO, False),
    ({"live": True, "quiet": True}, False, Screen, False), ({"live": True, "format": "lines"}, False, Screen, False),
])  # fmt: skip
def test_live_only_on_a_terminal_that_the_target_does_not_share(
    kit: Any, options: dict[str, Any], launched: bool, stream: Any, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("wstrace_exporters.console.live.REDRAW_SECONDS", 0.0)
    trace, output = kit.Trace(), stream()
    targets = (kit.target(os.getpid() + 1 if not launched else 700, launched=launched),)
    trace.context = replace(trace.context, targets=targets)
    console = Console(output, **options)
    console.start(trace.context)
    console.export(trace.faults([(3, LIBC, LIBC)]))
    console.tick()
    drawn = output.getvalue()
    console.close()
    assert ("3 faults" in drawn) == live
    assert ("0 lost" in drawn) == live


def test_the_live_table_shows_who_has_the_most_faults_and_escapes_their_names(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("wstrace_exporters.console.live.REDRAW_SECONDS", 0.0)
    trace, output = kit.Trace(), Screen()
    trace.context = replace(trace.context, targets=(kit.target(os.getpid() + 1, launched=False),))
    console = Console(output)
    console.start(trace.context)
    console.export(trace.faults([(3, LIBC, LIBC), (900, "/srv/[red]evil\x1b[2J.so", LIBC)]))
    drawn = output.getvalue()
    console.close()
    rows = [line for line in drawn.splitlines() if "/s  /" in line]
    assert len(rows) == 2
    assert r"[red]evil\x1b[2J.so" in rows[0]
    assert LIBC in rows[1]


def test_a_terminal_that_goes_away_costs_the_live_line_only(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("wstrace_exporters.console.live.REDRAW_SECONDS", 0.0)

    class Gone(Screen):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    trace, output = kit.Trace(), Gone()
    trace.context = replace(trace.context, targets=(kit.target(os.getpid() + 1, launched=False),))
    console = Console(output)
    console.start(trace.context)
    Gone.gone = True
    for _ in range(5):
        console.export(trace.faults([(3, LIBC, LIBC)]))
    assert console.summary.total == 15
    with pytest.raises(OutputError, match="Input/output error"):
        console.close()


def test_on_a_terminal_lines_keep_to_its_width(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    for width in (24, 40, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        trace = kit.Trace()
        text = kit.printed(
            trace, [*kit.ordinary(trace), trace.faults([(30_000, "/\u65e5\u672c" * 200, LIBC)])], Screen()
        )
        assert "\x1b[" in text
        assert max(cell_len(Text.from_ansi(line).plain) for line in text.splitlines()) <= width


def test_no_color_is_respected(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = kit.Trace()
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in kit.printed(trace, kit.ordinary(trace), Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = kit.printed(trace, kit.ordinary(trace), Screen())
    assert "\x1b[36m" not in text
    assert "\x1b[1;31m" not in text


def test_headline_of_anonymous_memory_names_who_asked_for_it(kit: Any) -> None:
    trace = kit.Trace()
    console = Console(io.StringIO())
    console.export(trace.faults([(5, "[anon]", LIBC), (4, "[anon]", PYTHON), (6, LIBC, PYTHON)]))
    assert headline.answer(console.summary, TraceInfo(), console._filter, 15).endswith("most in [anon] (by libc.so.6)")
    assert KINDS[2] == "anon"


def test_output_of_a_process_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    output = Output.standard("stderr")
    output.write("text")
    output.close()

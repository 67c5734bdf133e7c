"""Everything that can be wrong with an output, with names from outside, and with a terminal."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from kit.blame_scripted import ANON, APP, PAGE, Script, saved

from wstrace.terminal import Bar, Column, Output, TextTable, width_of
from wstrace.trace_info import Level
from wstrace_exporters.console.console import Console


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


HOSTILE = "/tmp/\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202egnp.so" + b"\xff".decode("utf-8", "surrogateescape")


def shown(kit: Any, folder: Path, name: str, stream: Any = None) -> str:
    """What is printed of a kept trace, one of whose functions and files has this name."""
    script, path = Script(), str(folder / "kept.wst")
    script.fault(10, ANON, [(name, name, 3), *APP])
    script.fault(11, ANON + PAGE, APP)
    saved(script.trace(), path)
    trace = kit.Trace()
    trace.context.info.saved, trace.context.info.notes = path, [name]
    trace.context.info.level = Level("odd\x1b", name)
    return str(kit.printed(trace, stream))


def test_names_from_outside_only_print(kit, tmp_path):
    text = shown(kit, tmp_path, HOSTILE)
    assert text.replace("\n", "").isprintable()
    assert "x1b" in text
    assert "[bold red]x[/]" in text
    assert "wstrace report " in text


@pytest.mark.parametrize("encoding", ["cp437", "cp1252", "ascii", "utf-16"])
def test_every_encoding_takes_the_report(kit, tmp_path, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    text = shown(kit, tmp_path, "\u65e5\u672c-\u00e9", stream)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    Output(stream).show(TextTable([Column("", "bar")], [[Bar(1, 1)]]))
    assert stream.buffer.getvalue().decode(encoding) == ("\u2588" if encoding == "utf-16" else "#") * 14 + "\n"
    assert ("\u65e5\u672c-\u00e9" if encoding == "utf-16" else "\\u65e5\\u672c-") in text


def test_a_pipe_gets_plain_text_with_whole_names(kit, tmp_path):
    text = shown(kit, tmp_path, "deep" * 60)
    assert "deep" * 60 in text
    assert "\x1b" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [24, 40, 80, 120])
def test_on_a_terminal_lines_keep_to_its_width(kit, tmp_path, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    text = shown(kit, tmp_path, "deep" * 100, Screen())
    assert "\x1b[" in text
    words = [click.unstyle(line) for line in text.splitlines()]
    assert all(width_of(line) <= width or " " not in line.strip() for line in words)


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_no_color_is_respected(kit, tmp_path, name, value, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    assert "\x1b[" not in shown(kit, tmp_path, "load", Screen())


def test_the_last_line_says_where_the_trace_is(kit):
    for path, last in (("", "not saved: add -o FILE"), ("-", "saved to stdout")):
        trace = kit.Trace()
        trace.context.info.saved = path
        assert kit.printed(trace).splitlines()[-1] == last


@pytest.mark.skipif(sys.platform == "win32", reason="the words of another shell")
@pytest.mark.parametrize("name", ["a $(id).wst", "a;id`id`.wst", 'a"b.wst', "a'b c.wst", "*.wst"])
def test_a_shell_expands_nothing_of_the_next_command(kit, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = Script()
    script.fault(10, ANON, APP)
    saved(script.trace(), "x.wst")
    Path("x.wst").rename(name)
    trace = kit.Trace()
    trace.context.info.saved = name
    command = kit.printed(trace).splitlines()[-1].partition("next: wstrace report ")[2]
    said = subprocess.run(["sh", "-c", f"printf '%s,' {command}"], capture_output=True, text=True)
    assert said.stdout == f"{name},--by,stack,"


def test_quiet_prints_losses_and_nothing_else(kit):
    trace = kit.Trace()
    trace.context.ledger.add("recorded", 5, "page_fault")
    assert kit.printed(trace, quiet=True) == ""
    trace.context.ledger.add("lost_kernel", 113)
    assert kit.printed(trace, quiet=True) == "lost          113  records that the kernel dropped: its buffer was full\n"


def test_cancel_and_abandon_print_nothing(kit):
    for end in (Console.cancel, Console.after_fork_in_child):
        stream = io.StringIO()
        console = Console(stream)
        console.start(kit.Trace().context)
        end(console)
        assert stream.getvalue() == ""


def test_output_of_a_process_without_streams(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    output = Output.standard("stderr")
    output.write("text")

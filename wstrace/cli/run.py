"""`wstrace run`: traces a command from its first instruction."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import click

from wstrace.cli import before_the_trace
from wstrace.cli.tracing import Recording, Tracing, tracing_options
from wstrace.errors import CommandNotFound, UsageError
from wstrace.options import parse_spec


class TargetWords(click.Command):
    """A click command whose own options end at the target: `--`, COMMAND, FILE, -m MODULE or -c CODE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Inserts `--` where the target begins, so that click does not parse the target's own options."""
        ctx.meta["wstrace.literal"] = False
        self._takes_value = {
            name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts
        }
        at = 0
        while at < len(args):
            word = args[at]
            if word == "--":
                ctx.meta["wstrace.literal"] = True
                break
            if (word in ("-m", "-c") or not word.startswith("-") or word == "-") and self.begins_target(word):
                args = [*args[:at], "--", *args[at:]]
                break
            at += 1 + self._value_follows(word)
        return super().parse_args(ctx, args)

    def begins_target(self, word: str) -> bool:
        """Whether a word that is no option of this command begins the target."""
        return True

    def _value_follows(self, word: str) -> bool:
        """Whether the next word is the value of this option, or of the last of short ones together (`-fo FILE`)."""
        if word.startswith("--"):
            return word in self._takes_value
        first = next((at for at, letter in enumerate(word) if f"-{letter}" in self._takes_value), len(word))
        return first == len(word) - 1


@click.command(cls=TargetWords, options_metavar="[OPTIONS]")
@tracing_options
@click.option("--user", metavar="NAME", help="Run the target as this user (under sudo: the caller).")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND | FILE.py | -m MODULE | -c CODE")
@click.pass_context
def run(ctx: click.Context, options: Tracing, user: str | None, target: tuple[str, ...]) -> int:
    """Trace a command from its first instruction; its exit code is passed on.

    FILE.py, -m MODULE and -c CODE run under this Python; all that follows belongs to the target.
    wstrace's own words go to stderr, as does what the target prints where -o is - (stdout). A trace that is kept (-o,
    --html) has the pages at the peak where no source was added (Linux; -P no:peak_snapshot leaves them out).

    \b
    wstrace run -- python3 -c "import numpy"
    wstrace run -o import.wst -m mypackage --its-own-option
    """
    literal = ctx.meta["wstrace.literal"]
    command = command_of(target, literal=literal)
    if not literal and _is_script(target) and not os.path.exists(target[0]):
        raise CommandNotFound(f"there is no file {target[0]}", "write: wstrace run -- COMMAND, if it is a command")
    if user == "":
        raise UsageError("--user names nobody", "write a user's name, or leave it out")
    with before_the_trace():
        recording = Recording(options)
        recording.options = with_sources_by_the_way(recording)
        os.environ.update(recording.plugins.target_environment(recording.exporter_names()))
        # Launch before anything else: the launcher's memory at its fork counts in the target's peak (VmHWM).
        with _prints_elsewhere(recording.options.output):
            launched = recording.plugins.platform.launch(command, user=user or recording.config.get("user"))
    with closing(launched):
        return recording.record([launched], command)


@contextmanager
def _prints_elsewhere(output: object) -> Iterator[None]:
    """Whoever is launched inside prints to stderr where the trace goes to stdout, which would be damaged by it."""
    if output != "-" or not _is_open(1):  # Without a stdout the exporter will say so.
        yield
        return
    # A closed stderr must not become the copy of stdout, as the lowest number that is free.
    opened = [] if _is_open(2) else [os.open(os.devnull, os.O_WRONLY)]
    kept = os.dup(1)
    try:
        os.dup2(opened[0] if opened else 2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        for number in (kept, *opened):
            os.close(number)


def _is_open(number: int) -> bool:
    """Whether a descriptor is open."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def with_sources_by_the_way(recording: Recording) -> Tracing:
    """The options, with the sources of Plugins.by_the_way() where the user added no source.

    Options of a source that is there by default add none.
    """
    options, config = recording.options, recording.config
    chosen = {parse_spec(one).name for one in (*config.get("sources", ()), *options.sources)}
    shown = recording.kept or recording.answers
    if not shown or options.over_time or not chosen <= set(recording.plugins.defaults("source")):
        return options
    return options._replace(sources=(*recording.plugins.by_the_way(), *options.sources))


def command_of(words: Sequence[str], *, literal: bool) -> Sequence[str]:
    """The command line that the words after the options mean.

    words: what the user wrote. literal: whether `--` stood before the words, which are then the command itself. Raises
    UsageError: there is no command; or -m or -c has no value.
    """
    if not words:
        raise UsageError("no command to trace", "write: wstrace run -- COMMAND ...")
    if literal:
        return words
    if words[0] in ("-m", "-c"):
        if len(words) == 1:
            raise UsageError(f"{words[0]} needs a value", "write: wstrace run -m MODULE, or -c CODE")
        return [sys.executable, *words]
    if _is_script(words):
        return [sys.executable, *words]
    return words


def _is_script(words: Sequence[str]) -> bool:
    """Whether the first word is the file name of a Python script."""
    return bool(words) and words[0].endswith((".py", ".pyw"))

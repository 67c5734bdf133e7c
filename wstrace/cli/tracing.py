"""What `run` and `attach` share: their options, the session made of them, signals, and the exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from wstrace.bus import STOP_SECONDS
from wstrace.cli.common import Duration, exit_on_exporter_error, is_administrator
from wstrace.cli.privilege import debug_privilege
from wstrace.config import Config
from wstrace.errors import LossError, OutputError, UsageError, WstraceError
from wstrace.interfaces import Target
from wstrace.ledger import Ledger
from wstrace.options import Spec, options_of, parse_duration, parse_spec
from wstrace.plugins import Plugins
from wstrace.text import base_name, printable

if TYPE_CHECKING:
    from wstrace.session import Session


@dataclass(slots=True)
class Tracing:
    """The options that `run` and `attach` share."""

    sources: tuple[str, ...]
    exporters: tuple[str, ...]
    plugin: tuple[str, ...]
    no_plugins: bool
    output: str | None
    force: bool
    duration: float | None
    children: bool
    wait_children: bool
    quiet: bool
    verbose: bool
    live: bool | None
    fail_on_loss: bool
    require: str
    config: str | None


_OPTIONS = [
    click.option("-s", "--source", "sources", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Add a source."),
    click.option("-e", "--exporter", "exporters", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Add an exporter."),
    click.option("-P", "--plugin", multiple=True, metavar="no:NAME", help="Leave a plugin, source or exporter out."),
    click.option("--no-plugins", is_flag=True, help="Load wstrace's own plugins only."),
    click.option("-o", "--output", metavar="FILE", help="Keep the trace in FILE (- for stdout)."),
    click.option("-f", "--force", is_flag=True, help="Overwrite FILE."),
    click.option("--duration", type=Duration(), metavar="30s|5m", help="End the trace after this time."),
    click.option("--children/--no-children", default=None, help="Trace processes that the target starts (default)."),
    click.option("--wait-children", is_flag=True, help="Go on until no traced process is left."),
    click.option("-q", "--quiet", is_flag=True, default=None, help="Print only errors and what was lost."),
    click.option("-v", "--verbose", is_flag=True, default=None, help="All figures of completeness."),
    click.option("--live/--no-live", default=None, help="Show a live line of faults, resident memory and loss."),
    click.option(
        "--fail-on-loss",
        is_flag=True,
        default=None,
        help="Exit with 121 when anything was lost (123: a file lacks records).",
    ),
    click.option("--require", type=click.Choice(["full"]), help="Do not fall back to a lesser level: exit with 122."),
    click.option("--config", metavar="FILE", help="Read options from a TOML file."),
    debug_privilege,
]


def tracing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command the options of Tracing, as its first argument."""

    @functools.wraps(command)
    def with_tracing(**values: Any) -> Any:
        own = {name: values.pop(name) for name in Tracing.__slots__}
        return command(Tracing(**own), **values)

    for option in reversed(_OPTIONS):
        with_tracing = option(with_tracing)
    return with_tracing


class Trace:
    """A tracing command at work: its plugins and configuration. What they name is checked by session()."""

    def __init__(self, options: Tracing) -> None:
        words = [word.removeprefix("no:") for word in options.plugin]
        if any(not word.startswith("no:") for word in options.plugin):
            raise UsageError(f"-P {options.plugin[0]}", "write -P no:NAME")
        self.options = options
        self._error: WstraceError | None = None  # what a source or enricher failed with
        self.plugins = Plugins.from_environment(disabled=words, third_party=not options.no_plugins)
        self.config = Config.load(options.config, project=not is_administrator())
        self._left_out = words

    def exporter_names(self) -> list[str]:
        """The exporters that are asked for by name."""
        return [parse_spec(text).name for text in (*self.config.get("exporters", ()), *self.options.exporters)]

    def _check(self) -> None:
        """Every name and key must be known."""
        self.config.check({**self.plugins.sources, **self.plugins.enrichers, **self.plugins.exporters})
        known = {plugin.name for plugin in self.plugins.found}
        if any(word not in known for word in self._left_out):
            known.update(_all_classes())
        for word in self._left_out:
            if word not in known:
                raise UsageError(f"-P no:{word}: there is no such plugin", "wstrace plugins shows all")

    def session(self, targets: Sequence[Target], command: Sequence[str] = ()) -> Session:
        """The session that the options ask for; command: see Session.

        Raises:
            UsageError: an unknown name, option or key.
        """
        # numpy's OpenBLAS starts a thread a CPU, and each spins for its first 50 ms: half of what importing numpy costs
        # (170 ms of CPU become 100). Not before this: a launched target has its own copy of our environment
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from wstrace.session import Session

        self._check()
        options, config = self.options, self.config
        children = options.children if options.children is not None else _truth(config.get("children", True))
        return Session(
            targets=targets,
            sources=self._specs("source", options.sources),
            exporters=self._specs("exporter", options.exporters),
            command=command,
            children=children,
            wait_children=options.wait_children,
            require=options.require or config.get("require", ""),
            record=False,
            plugins=self.plugins,
            config=config,
        )

    def _specs(self, role: str, asked: Sequence[str]) -> list[Spec]:
        """Defaults, then configured ones, then those of the command line; a later one of the same name replaces."""
        classes = getattr(self.plugins, role + "s")
        quiet = self.options.quiet or _truth(self.config.get("quiet", False))
        told = {"quiet": quiet or None, "verbose": self.options.verbose or None, "live": self.options.live}
        specs = {name: Spec(name) for name in self.plugins.defaults(role)}
        for text in (*self.config.get(role + "s", ()), *asked):
            spec = parse_spec(text)
            self.plugins.class_of(role, spec.name)
            specs[spec.name] = spec
        if role == "exporter" and (output := self.options.output or self.config.get("output")):
            for name, cls in classes.items():
                if cls.takes_output:
                    given = specs[name].options if name in specs else {}
                    specs[name] = Spec(name, {**given, "path": output, "force": self.options.force})
        for name, spec in specs.items():
            known = options_of(classes[name])
            extra = {key: value for key, value in told.items() if value is not None and key in known}
            specs[name] = Spec(name, {**extra, **spec.options})
        return list(specs.values())

    def drive(self, session: Session) -> None:
        """From start to stop. Ctrl-C: for a launched target the second one ends the trace, else the first."""
        duration = self.options.duration or _seconds(self.config.get("duration"))
        launched = any(target.launched for target in session.context.targets)
        ending = _Ending(2 if launched else 1)
        with _signals(session, launched, ending), self.plugins.platform.on_console_close(ending.close):
            session.start()
            ending.starting = False
            until = float("inf") if duration is None else time.monotonic() + duration
            while not ending.asked and time.monotonic() < until:
                if session.wait(min(0.5, until - time.monotonic())):
                    break
            try:
                session.stop(seconds=1.0 if ending.closed or (ending.asked and launched) else STOP_SECONDS)
            except WstraceError as error:  # told once the command has ended: its own exit code comes first
                self._error = error
            if launched and not ending.asked:
                _outlive(session, ending)

    def exit_code(self, session: Session) -> int:
        """The command's own code wins, 0 too where a source or enricher failed; then what failed, then loss.

        Raises:
            PluginError, OutputError, LossError: for the code and the line on stderr.
        """
        code = session.info.exit_code
        launched = code is not None and any(target.launched for target in session.context.targets)
        failure = self._failure(session)
        if self._error is not None and not launched:
            raise self._error
        for error in (self._error, failure if code else None):
            if error is not None:
                warn(printable(str(error)))
        if failure is not None and not (launched and code):
            raise failure
        return code or 0 if launched else 0

    def _failure(self, session: Session) -> WstraceError | None:
        """A failed output; or loss, where that is asked for."""
        try:
            exit_on_exporter_error(session)
        except OutputError as error:
            return error
        if self.options.fail_on_loss or _truth(self.config.get("fail_on_loss", False)):
            if losses := session.ledger.losses():
                return LossError("lost: " + ", ".join(_lost(session.ledger, *row) for row in losses))
            if self._error is not None:
                return LossError("lost: how much is not known, because a part of the tracer failed")
        return None


class Interrupted(KeyboardInterrupt):
    """A signal while the session was starting: nothing is traced yet, and whatever hangs there is left.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


@dataclass(slots=True)
class _Ending:
    """Who asked for the end of a trace: so many interrupts are needed, or the end of the console."""

    needed: int
    interrupts: int = 0
    closed: bool = False
    starting: bool = True

    @property
    def asked(self) -> bool:
        """The trace is to end now."""
        return self.closed or self.interrupts >= self.needed

    def close(self) -> None:
        """The console is gone: seconds are left."""
        self.closed = True


def _outlive(session: Session, ending: _Ending) -> None:
    """The trace is over; a command that goes on is waited for, since its exit code is ours."""
    if session.wait(0):
        return
    alive = [target for target in session.context.targets if target.exit_code is None]
    names = ", ".join(f"{printable(base_name(target.name))} ({target.pid})" for target in alive)
    warn(f"trace ended; {names} goes on, waiting for it; Ctrl-C stops it")
    while not ending.asked and not session.wait(0.5):
        pass


@contextmanager
def _signals(session: Session, launched: bool, ending: _Ending) -> Iterator[None]:
    """Handlers while a session runs: what they take for a wish to end it goes into `ending`."""

    def pass_on(number: int, _: object) -> None:
        for target in session.context.targets:
            if launched:
                target.signal(number)

    def interrupt(number: int, frame: object) -> None:
        if ending.starting:
            raise Interrupted(number)
        ending.interrupts += 1
        if ending.interrupts == 1 and not _from_terminal():
            pass_on(number, frame)

    def end(number: int, frame: object) -> None:
        if ending.starting:
            raise Interrupted(number)
        pass_on(number, frame)
        if not launched:
            ending.interrupts += 2

    handlers = {
        name: (interrupt if name in ("SIGINT", "SIGBREAK") else end)
        for name in ("SIGINT", "SIGBREAK", "SIGTERM", "SIGHUP")
        if hasattr(signal, name)
    }
    previous: dict[str, Any] = {}
    for name, handler in handlers.items():
        if signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:  # nohup stays nohup
            previous[name] = signal.signal(getattr(signal, name), handler)
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(getattr(signal, name), handler)


def _from_terminal() -> bool:
    """Whether Ctrl-C on our terminal reaches the target by itself: it shares our foreground process group."""
    ask, group = getattr(os, "tcgetpgrp", None), getattr(os, "getpgrp", None)
    if ask is None or group is None:
        return True
    for stream in (0, 1, 2):
        try:
            if ask(stream) == group():
                return True
        except OSError:
            continue
    return False


def _lost(ledger: Ledger, stage: str, who: str, n: int) -> str:
    return f"{n:,} {who + ' ' if who else ''}({ledger.words(stage)})"


def _all_classes() -> list[str]:
    everything = Plugins.from_environment()
    return [*everything.sources, *everything.enrichers, *everything.exporters, *everything.resolvers]


def _truth(value: Any) -> bool:
    return value.lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def _seconds(value: Any) -> float | None:
    return None if value is None else parse_duration(str(value))


def warn(text: str) -> None:
    """A line of wstrace's own on stderr."""
    print(f"wstrace: {text}", file=sys.stderr)  # noqa: T201

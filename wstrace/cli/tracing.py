"""What `run` and `attach` share: their options, the session that these describe, signals, and the exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from wstrace.bus import STOP_SECONDS
from wstrace.cli import Ending, alarm_in, before_the_trace
from wstrace.cli.common import Duration, debug_privilege, exit_on_exporter_error, is_administrator
from wstrace.errors import LossError, OutputError, UsageError, WstraceError, shape
from wstrace.interfaces import Group, Target
from wstrace.ledger import Ledger
from wstrace.options import Config, Spec, options_of, parse_duration, parse_spec
from wstrace.output_file import exists, temporary_folder
from wstrace.plugins import Plugins, default_plugins
from wstrace.text import base_name, number, printable
from wstrace.trace_info import NOT_SAVED

if TYPE_CHECKING:
    from wstrace.interfaces import Platform
    from wstrace.session import Session
    from wstrace.trace_info import TraceInfo


class Tracing(NamedTuple):
    """The values of the options that `run` and `attach` share."""

    sources: tuple[str | Spec, ...] = ()
    exporters: tuple[str | Spec, ...] = ()
    plugin: tuple[str, ...] = ()
    no_plugins: bool = False
    output: str | None = None
    force: bool = False
    duration: float | None = None
    over_time: float | None = None
    children: bool | None = None
    wait_children: bool = False
    quiet: bool = False
    fail_on_loss: bool = False
    require: str | None = None
    config: str | None = None
    pictures: str | None = None


#: The name under which TraceInfo.extra has the pids of traced processes that had not ended when a source stopped; as
#: many of them are named.
RECORDER = "flight_recorder"
_WENT_ON, _NAMED = "went_on", 3
_SPEC = "NAME[:OPT=VAL,...]"
_OPTIONS = [
    click.option(
        "-s", "--source", "sources", multiple=True, metavar=_SPEC, help="Add a source; options: plugins NAME."
    ),
    click.option(
        "-e", "--exporter", "exporters", multiple=True, metavar=_SPEC, help="Add an exporter; options: likewise."
    ),
    click.option("-P", "--plugin", multiple=True, metavar="no:NAME", help="Leave a plugin, source or exporter out."),
    click.option("--no-plugins", is_flag=True, help="Load wstrace's own plugins only."),
    click.option("-o", "--output", metavar="FILE", help="Keep the trace in FILE (- for stdout)."),
    click.option("-f", "--force", is_flag=True, help="Overwrite FILE."),
    click.option("--duration", type=Duration(), metavar="30s|5m", help="End the trace after this time."),
    click.option("--over-time", type=Duration(), metavar="1s", help="Show what grew, how fast, and which line did it."),
    click.option("--html", "pictures", metavar="FILE", help="Write a report with pictures at the end."),
    click.option("--children/--no-children", default=None, help="Trace processes that the target starts (default)."),
    click.option("--wait-children", is_flag=True, help="Go on until no traced process is left."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors and what was lost."),
    click.option(
        "--fail-on-loss", is_flag=True, help="Exit with 121 when anything was lost (123: a file lacks records)."
    ),
    click.option("--require", type=click.Choice(["full"]), help="Do not fall back to a lesser level: exit with 122."),
    click.option("--config", metavar="FILE", help="Read options from a TOML file."),
    debug_privilege,
]


def tracing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a click command the shared options; their values are its first argument, a Tracing."""

    @functools.wraps(command)
    def with_tracing(**values: Any) -> Any:
        own = {name: values.pop(name) for name in Tracing._fields}
        return command(Tracing(**own), **values)

    for option in reversed(_OPTIONS):
        with_tracing = option(with_tracing)
    return with_tracing


class Recording:
    """What one tracing command records: its options, plugins and configuration. record() checks the names in them."""

    def __init__(self, options: Tracing) -> None:
        words = [word.removeprefix("no:") for word in options.plugin]
        if any(not word.startswith("no:") for word in options.plugin):
            raise UsageError(f"-P {options.plugin[0]}", "write -P no:NAME")
        if "" in (options.output, options.pictures) or options.over_time == 0:
            raise UsageError("-o, --html or --over-time has an empty value", "write what it is, or leave it out")
        self._error: WstraceError | None = None  # the error of a source or enricher
        self._no_page: WstraceError | None = None  # why the report of --html was not written
        self.plugins = default_plugins()
        if words or options.no_plugins:
            self.plugins = Plugins.from_environment(disabled=words, third_party=not options.no_plugins)
        self.config = config = Config.load(options.config, project=not is_administrator())
        seconds = config.get("duration")
        self.options = options._replace(
            output=options.output or config.get("output"),
            duration=parse_duration(str(seconds)) if options.duration is None and seconds else options.duration,
            children=config.flag("children", True) if options.children is None else options.children,
            quiet=options.quiet or config.flag("quiet"),
            fail_on_loss=options.fail_on_loss or config.flag("fail_on_loss"),
            require=options.require or config.get("require", ""),
        )
        self._left_out, self._temporary = words, False

    def exporter_names(self) -> list[str]:
        """The names of the exporters that the options and the configuration ask for."""
        return [spec.name for spec in self._exporters()]

    def _exporters(self) -> list[Spec]:
        return [parse_spec(one) for one in (*self.config.get("exporters", ()), *self.options.exporters)]

    def _has(self, *names: str) -> bool:
        """Whether one of these exporters is wanted."""
        return any(spec.name in names for spec in self._exporters())

    def _check(self) -> None:
        """Raises UsageError for an unknown name or configuration key."""
        if self.config.given:  # otherwise classes that this trace does not need would be imported for their options
            self.config.check({**self.plugins.sources, **self.plugins.enrichers, **self.plugins.exporters})
        known = {plugin.name for plugin in self.plugins.found}
        if any(word not in known for word in self._left_out):
            known |= Plugins.from_environment().class_names()
        for word in self._left_out:
            if word not in known:
                raise UsageError(f"-P no:{word}: there is no such plugin", "wstrace plugins shows all")
        if page := self.options.pictures:
            output = self.options.output
            piped = output and (output == "-" or (os.path.exists(output) and not os.path.isfile(output)))
            if piped or self._has(RECORDER) or not self.plugins.taking_output():
                raise UsageError("--html needs the whole trace in a file", "later: wstrace report FILE --html OUT.html")
            if output and os.path.realpath(page) == os.path.realpath(output):
                raise UsageError(f"-o and --html both name {page}", "name two files")
            if not page.lower().endswith((".html", ".htm")):
                raise UsageError(f"{page}: a report is a file that ends in .html", f"write {page}.html")
            if os.path.isfile(page) and not self.options.force:
                raise exists(page)

    def record(self, targets: Sequence[Target], command: Sequence[str] = (), *, groups: Sequence[Group] = ()) -> int:
        """Traces what is given as the options ask, to the end; returns the exit code. For the arguments, see Session.

        Raises UsageError: a name, an option or a configuration key is unknown; PluginError: a source or enricher
        failed, and no command was launched; OutputError: an exporter failed; LossError: records were lost under
        --fail-on-loss.
        """
        with ExitStack() as opened:
            with before_the_trace():
                self._temporary = self.answers
                if self._temporary:
                    path = os.path.join(opened.enter_context(temporary_folder()), "trace.wst")
                    self.options = self.options._replace(output=path)
                session = self._session(targets, command, groups)
            if self._temporary:
                session.info.extra[NOT_SAVED] = "add -o FILE"
            shape()  # what its parts have imported may log
            self._drive(session)
            self._picture(session)
            return self._exit_code(session)

    @property
    def kept(self) -> bool:
        """Whether the user wants a file of the trace."""
        return bool(self.options.output) or self._has(RECORDER, *self.plugins.taking_output())

    @property
    def answers(self) -> bool:
        """Whether the trace is kept for the report at its end alone, on the terminal or as pictures."""
        used = set(self.plugins.defaults("exporter")) & set(self.plugins.reporting())
        return not self.kept and bool(self.options.pictures or (used and not self.options.quiet))

    def _session(self, targets: Sequence[Target], command: Sequence[str], groups: Sequence[Group]) -> Session:
        """The session that the options ask for."""
        # numpy's OpenBLAS starts one thread per CPU, each of which spins for its first 50 ms; without them, importing
        # numpy costs 100 ms of CPU instead of 170. Set here, because an earlier change would reach a launched target.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from wstrace.session import Session

        self.plugins.platform.keep_freed_memory()
        self._check()
        options = self.options
        return Session(
            targets=targets,
            groups=groups,
            sources=self._specs("source", [*_snapshots(options), *options.sources]),
            exporters=self._specs("exporter", options.exporters),
            command=command,
            children=bool(options.children),
            wait_children=options.wait_children,
            require=options.require or "",
            record=False,
            plugins=self.plugins,
            config=self.config,
        )

    def _specs(self, role: str, requested: Sequence[str | Spec]) -> list[Spec]:
        """Specs by default, by configuration and by command line; a later one replaces one of the same name."""
        shared = {"quiet": self.options.quiet, "over_time": self.options.over_time}
        specs = {name: Spec(name) for name in self.plugins.defaults(role)}
        for one in (*self.config.get(role + "s", ()), *requested):
            spec = parse_spec(one)
            self.plugins.class_of(role, spec.name)
            specs[spec.name] = spec
        if role == "exporter" and (output := self.options.output):
            for name in self.plugins.taking_output():
                given = specs[name].options if name in specs else {}
                specs[name] = Spec(name, {**given, "path": output, "force": self.options.force})
        for name, spec in specs.items():
            known = options_of(self.plugins.class_of(role, name))
            extra = {key: value for key, value in shared.items() if value and key in known}
            specs[name] = Spec(name, {**extra, **spec.options})
        return list(specs.values())

    def _drive(self, session: Session) -> None:
        """Runs the session from start to stop.

        Ctrl-C ends the trace, for a launched target only the second time. A source's error is kept for _exit_code().
        """
        duration = self.options.duration
        launched = any(target.launched for target in session.context.targets)
        ending = Ending(2 if launched else 1)
        with _signals(session, launched, ending):
            with before_the_trace():
                try:
                    session.start(ready=ending.check)
                except WstraceError:
                    ending.check()  # Ctrl-C in a terminal ends the held command too, whose end is then no error.
                    raise
            ending.started()
            until = float("inf") if duration is None else time.monotonic() + duration
            while not ending.requested and time.monotonic() < until:
                if session.wait(min(0.5, until - time.monotonic())):
                    break
            try:
                session.stop(seconds=STOP_SECONDS)
            except WstraceError as error:  # reported in _exit_code(), after the command has ended
                self._error = error
            if launched and not ending.requested:
                _outlive(session, ending, self.plugins)

    def _picture(self, session: Session) -> None:
        """Writes the report of --html, of the trace that was kept."""
        if not self.options.pictures:
            return
        from wstrace import open_trace

        try:
            with open_trace(session.info.saved) as trace:
                trace.save(self.options.pictures, force=self.options.force)
        except WstraceError as error:
            self._no_page = error

    def _exit_code(self, session: Session) -> int:
        """The exit code of a session that has stopped, or its error is raised.

        A launched command's own code wins over an error of a source or enricher; if it is not 0, over every error. The
        error is then a line on stderr.
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
        """The error of an exporter or of --html, or the loss of records under --fail-on-loss; None without any."""
        try:
            exit_on_exporter_error(session)
        except OutputError as error:
            if not (self._temporary and session.info.incomplete):  # the report has said what it lacks
                return error
        if self._no_page is not None:
            return self._no_page
        if self.options.fail_on_loss:
            if losses := session.ledger.losses():
                return LossError("lost: " + ", ".join(_lost(session.ledger, *row) for row in losses))
            if self._error is not None:
                return LossError("lost: how much is not known, because a part of the tracer failed")
        return None


def _outlive(session: Session, ending: Ending, plugins: Plugins) -> None:
    """Waits for a launched command that outlives the trace, as its exit code becomes ours; says what outlives it."""
    if session.wait(0):
        if left := _left_behind(session.info, plugins.platform):
            warn(left)
        return
    alive = [target for target in session.context.targets if target.exit_code is None]
    names = ", ".join(f"{printable(base_name(target.name))} ({target.pid})" for target in alive)
    warn(f"trace ended; {names} goes on, waiting for it; Ctrl-C stops it")
    while not ending.requested and not session.wait(0.5):
        pass


def _left_behind(info: TraceInfo, platform: Platform) -> str:
    """Names those processes that still run, with what traces them; "" where all have ended.

    A source reports a process that ends a little after the command, as a helper does that waits for its end. So they
    are looked up once more, when all records are written.
    """
    pids = info.extra.get(_WENT_ON)
    found = [(pid, platform.process(pid)) for pid in (pids if isinstance(pids, list) else ())]
    running = [(f"{printable(base_name(one.name))} ({pid})", str(pid)) for pid, one in found if one is not None]
    if not running:
        return ""
    more = f" and {number(len(running) - _NAMED)} more" if len(running) > _NAMED else ""
    names, some = zip(*running[:_NAMED], strict=True)
    return (
        f"no longer traced, still running: {', '.join(names)}{more}; "
        f"`wstrace run --wait-children` waits for them, `wstrace attach {' '.join(some)}` traces them from now on"
    )


@contextmanager
def _signals(session: Session, launched: bool, ending: Ending) -> Iterator[None]:
    """Handles signals while a session runs: passes them on to launched targets and notes them in `ending`."""

    def pass_on(number: int, _: object) -> None:
        for target in session.context.targets:
            if launched:
                target.signal(number)

    def interrupt(number: int, frame: object) -> None:
        if ending.starting:
            ending.arrive_early(number)
            return
        ending.interrupts += 1
        if ending.interrupts == 1 and not _from_terminal():
            pass_on(number, frame)

    def end(number: int, frame: object) -> None:
        if ending.starting:
            ending.arrive_early(number)
            return
        pass_on(number, frame)
        if not launched:
            ending.interrupts += 2

    def hangs(number: int, frame: object) -> None:
        if ending.starting:
            ending.check()

    handlers = {"SIGINT": interrupt, "SIGBREAK": interrupt, "SIGTERM": end, "SIGHUP": end, "SIGALRM": hangs}
    previous: dict[str, Any] = {}
    for name, handler in handlers.items():
        if not hasattr(signal, name):
            continue
        if signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:  # under nohup, SIGHUP stays ignored
            previous[name] = signal.signal(getattr(signal, name), handler)
    try:
        yield
    finally:
        if ending.early:
            alarm_in(0)
        for name, handler in previous.items():
            signal.signal(getattr(signal, name), handler)


def _from_terminal() -> bool:
    """Whether the terminal itself sends Ctrl-C to the target, which shares our foreground process group."""
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


def _snapshots(options: Tracing) -> list[str]:
    """The source of --over-time: snapshots so rare that they, which hold the lock of the target's mappings, take 1 % of
    the time at most.
    """
    return [f"working_set:interval={options.over_time:g},max_cpu=0.01"] if options.over_time else []


def _lost(ledger: Ledger, stage: str, who: str, n: int) -> str:
    return f"{n:,} {who + ' ' if who else ''}({ledger.words(stage)})"


def warn(text: str) -> None:
    """Writes one line on stderr that begins with `wstrace: `."""
    with suppress(OSError):  # stderr itself may be full, or a closed terminal; the exit code remains
        print(f"wstrace: {text}", file=sys.stderr)  # noqa: T201

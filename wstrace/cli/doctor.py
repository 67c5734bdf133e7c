"""`wstrace doctor`: tries what can be traced on this machine with this privilege, and says how to enable the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from wstrace.cli.common import is_administrator, print_json
from wstrace.errors import WstraceError, pass_interrupt, why
from wstrace.interfaces import Level
from wstrace.options import TOP, Config, options_of
from wstrace.plugins import Plugins
from wstrace.terminal import Column, Output, TextTable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--config", metavar="FILE", help="A TOML file whose values are shown too.")
@click.option("--options", "every_option", is_flag=True, help="Show options at their default, too.")
def doctor(as_json: bool, config: str | None, every_option: bool) -> None:
    """Check what this machine can trace, how to enable the rest, and where each option's value comes from."""
    findings = examine(Plugins.from_environment(), Config.load(config, project=not is_administrator()))
    if as_json:
        print_json(findings)
        return
    Output.standard("stdout").show(*_parts(findings, every_option=every_option))


def examine(plugins: Plugins, config: Config) -> dict[str, Any]:
    """Probes every source and returns the findings as plain values for print_json().

    Returns `system`, `sources` (level, why, remedy), `remedies`, `options` (value, origin) and `failed` plugins.
    """
    try:
        platform = plugins.platform
        system, remedies = dict(platform.environment()), dict(platform.remedies())
    except WstraceError as error:
        system, remedies = {"capture": str(error)}, {}
    classes = {**plugins.sources, **plugins.enrichers, **plugins.exporters}
    options = {key: config.origin(key) for key in TOP}
    for name, cls in classes.items():
        for option in options_of(cls).values():
            default = "required" if option.default is inspect.Parameter.empty else option.default
            options[f"{name}.{option.name}"] = config.origin(option.name, default, table=name)
    return {
        "system": system,
        "sources": _levels(plugins.sources),
        "remedies": remedies,
        "options": {name: {"value": value, "origin": origin} for name, (value, origin) in options.items()},
        "failed": {p.name: p.error for p in plugins.found if p.state == "failed"},
    }


def _levels(sources: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The level of each source, and of what else it can do, as `source:option`."""
    found = {}
    for name, cls in sources.items():
        found[name] = _probe(cls.probe)
        try:
            abilities = dict(cls.abilities())
        except BaseException as error:
            pass_interrupt(error)
            abilities = {"abilities": Level("none", f"their probe failed: {why(error)}")}
        found |= {f"{name}:{option}": _words(level) for option, level in abilities.items()}
    return found


def _probe(probe: Callable[[], Any]) -> dict[str, str]:
    try:
        level = probe()
        if not isinstance(level, Level):
            raise TypeError(f"it gave {type(level).__name__}, not a Level")  # noqa: TRY301
    except WstraceError as error:
        level = Level("none", error.why, error.remedy)
    except BaseException as error:
        pass_interrupt(error)
        level = Level("none", f"its probe failed: {why(error)}")
    return _words(level)


def _words(level: Level) -> dict[str, str]:
    return {"level": level.name, "why": level.why, "remedy": level.remedy}


def _parts(findings: dict[str, Any], *, every_option: bool = False) -> Iterator[str | TextTable]:
    sources, lesser = [], []
    for name, level in findings["sources"].items():
        sources.append([f"  {name}", level["level"], level["why"]])
        if level["remedy"]:
            sources.append(["", "", f"-> {level['remedy']}"])
        if level["level"] != "full" and level["why"]:
            lesser.append(f"{name} ({level['level']})")
    if lesser:
        yield f"Not in full: {', '.join(lesser)}; the lines with -> say how to enable the rest."
    else:
        yield "Every source is at its full level here."
    yield from ("", _table(findings["system"].items()), "", "Sources", _table(sources))
    if lesser and findings["remedies"]:
        yield from ("", "How to enable the rest, ready to paste")
        yield _table(
            [f"  {where}" * (number == 0), line]
            for where, text in findings["remedies"].items()
            for number, line in enumerate(text.splitlines())
        )
    changed = {name: o for name, o in findings["options"].items() if o["origin"] != "default"}
    shown = {**changed, **findings["options"]} if every_option else changed
    yield from ("", "Options (value, origin)" if shown else "Options: all at their default (--options lists them)")
    yield _table(
        [f"  {name}", f"{'-' if option['value'] in (None, '') else option['value']}  ({option['origin']})"]
        for name, option in shown.items()
    )
    for name, error in findings["failed"].items():
        yield from ("", f"Plugin {name} failed: {error}")


def _table(rows: Iterable[Sequence[str]]) -> TextTable:
    """A table without headings, whose cells are never cut, so that a line can be copied."""
    cells = [list(row) for row in rows]
    return TextTable([Column("", "text")] * max(map(len, cells), default=0), cells, whole=True)

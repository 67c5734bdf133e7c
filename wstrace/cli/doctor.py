"""`wstrace doctor`: what can be traced on this machine with this privilege, as tried; and what lifts the rest."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click

from wstrace.cli.common import is_administrator
from wstrace.config import TOP, Config
from wstrace.errors import WstraceError
from wstrace.interfaces import Level
from wstrace.options import options_of
from wstrace.plugins import Plugins
from wstrace.text import printable


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--config", metavar="FILE", help="A TOML file whose values are shown too.")
def doctor(as_json: bool, config: str | None) -> None:
    """Show what can be traced here, each source's level and what lifts it, and where each option's value comes from."""
    findings = examine(Plugins.from_environment(), Config.load(config, project=not is_administrator()))
    if as_json:
        click.echo(json.dumps(findings, indent=2, default=str))
        return
    click.echo("\n".join(printable(line) for line in _lines(findings)))


def examine(plugins: Plugins, config: Config) -> dict[str, Any]:
    """The findings: system, sources (level, why, remedy), remedies, options (value, origin), plugins that failed."""
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
        "sources": {name: _probe(cls) for name, cls in plugins.sources.items()},
        "remedies": remedies,
        "options": {name: {"value": value, "origin": origin} for name, (value, origin) in options.items()},
        "failed": {p.name: p.error for p in plugins.found if p.state == "failed"},
    }


def _probe(cls: Any) -> dict[str, str]:
    try:
        level = cls.probe()
    except WstraceError as error:
        level = Level("none", error.why, error.remedy)
    return {"level": level.name, "why": level.why, "remedy": level.remedy}


def _lines(findings: dict[str, Any]) -> list[str]:
    lines = [f"{name:<12} {value}" for name, value in findings["system"].items()]
    lines += ["", "Sources"]
    for name, level in findings["sources"].items():
        why = f"  {level['why']}" if level["why"] else ""
        lines.append(f"  {name:<14} {level['level']:<9}{why}")
        if level["remedy"]:
            lines.append(f"  {'':<14} -> {level['remedy']}")
    if findings["remedies"]:
        lines += ["", "What lifts the level, ready to paste"]
        for where, text in findings["remedies"].items():
            first, *rest = text.splitlines()
            lines += [f"  {where:<14} {first}", *(f"  {'':<14} {line}" for line in rest)]
    changed = {name: o for name, o in findings["options"].items() if o["origin"] != "default"}
    lines += ["", "Options (value, origin)"]
    for name, option in {**changed, **findings["options"]}.items():
        value = "-" if option["value"] in (None, "") else option["value"]
        lines.append(f"  {name:<28} {value}  ({option['origin']})")
    for name, error in findings["failed"].items():
        lines += ["", f"Plugin {name} failed: {error}"]
    return lines

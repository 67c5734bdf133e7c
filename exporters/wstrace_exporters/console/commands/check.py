"""`wstrace check`: whether a command takes more page faults and memory than its baseline, or than a limit."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from wstrace.analysis.baseline import PLACE
from wstrace.cli.common import Size, print_json
from wstrace.cli.run import TargetWords, command_of
from wstrace.cli.tracing import warn
from wstrace.errors import BudgetError, Unavailable, UsageError
from wstrace.text import base_name, plural, printable, size

if TYPE_CHECKING:
    from wstrace.analysis.baseline import Baseline, Entry, Judgement
    from wstrace_exporters.console.counted_runs import Runs

_GREW = 10


@click.command(cls=TargetWords, options_metavar="[OPTIONS]")
@click.option("--baseline", "path", default=PLACE, metavar="FILE", show_default=True, help="The file of baselines.")
@click.option("--update", is_flag=True, help="Record the command in it.")
@click.option("--require-baseline", is_flag=True, help="Fail if FILE has none of this command for this environment.")
@click.option("--name", metavar="ID", help="The command's name in FILE; by default the command line.")
@click.option("--runs", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Runs, of which the least counts; one more warms up.")  # fmt: skip
@click.option("--faults", type=click.IntRange(0), metavar="N", help="A limit of its page faults.")
@click.option("--major", type=click.IntRange(0), metavar="N", help="A limit of those from disk.")
@click.option("--peak", type=Size(), metavar="SIZE", help="A limit of its highest resident size, such as 200MiB.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; what the command prints goes to stderr.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND | FILE.py | -m MODULE | -c CODE")
@click.pass_context
def check(ctx: click.Context, /, target: tuple[str, ...], *, path: str, as_json: bool, **options: Any) -> int:
    """Fail with exit code 120 when a command takes more memory than its baseline or a limit.

    It runs several times; only the first run has this terminal's input and output. Its own failure is passed on.

    \b
    wstrace check --update -- python3 -c "import numpy"   record it, and commit the file
    wstrace check -- python3 -c "import numpy"            in CI
    wstrace check --peak 200MiB --faults 30000 -- node app.js
    """
    from wstrace.analysis.baseline import Judgement, Machine
    from wstrace.plugins import default_plugins
    from wstrace_exporters.console.counted_runs import Runs

    command = command_of(target, literal=ctx.meta["wstrace.literal"])
    platform = default_plugins().platform
    file, machine = _loaded(path, anew=options["update"]), Machine.this(platform)
    name = options["name"] or shlex.join([base_name(command[0]), *command[1:]])
    runs = Runs(platform, command, to_stderr=as_json)
    if code := runs.count(options["runs"]):
        return code
    measured = runs.entry()
    judgement, earlier = Judgement(), None
    if not options["update"]:
        earlier = None if file.why_not(machine) else file.environments[machine.key].tests.get(name)
        judgement = earlier.judged(measured.figures, platform.page_size) if earlier else Judgement()
    _judge_limits(judgement, runs, options)
    missing = "" if earlier or options["update"] else file.why_not(machine) or f"{path} has nothing of {name}"
    if judgement.broken or options["update"]:
        measured = runs.traced()
    over = f"over its budget: {'; '.join(judgement.broken)}" if judgement.broken else ""
    if missing and options["require_baseline"]:
        over = "; ".join(filter(None, (over, missing)))
        judgement.broken.append(missing)
    if options["update"]:
        file.record(machine, {name: measured}, platform.page_size)
        file.save()
    _show(judgement, over, runs, measured, earlier, as_json=as_json)
    if options["update"]:
        warn(f"{printable(name, 60)} is in {printable(path)}: {plural(measured.runs, 'run')}")
    elif missing and not options["require_baseline"]:
        warn(f"not judged by a baseline: {printable(missing)}; record one: wstrace check --update")
    if over:
        required = missing and options["require_baseline"]
        raise BudgetError(over, "record a baseline: wstrace check --update" if required else "")
    return 0


def _loaded(path: str, *, anew: bool) -> Baseline:
    """The file; `anew` takes the place of one that is no baseline."""
    from wstrace.analysis.baseline import Baseline

    try:
        return Baseline.load(path)
    except UsageError as error:
        if not anew:
            raise
        warn(f"the baseline is recorded anew: {error.why}")
        return Baseline(path)


def _judge_limits(judgement: Judgement, runs: Runs, options: dict[str, Any]) -> None:
    """Adds the limits of the command line, each of which a figure that cannot be had breaks."""
    from wstrace.analysis.baseline import written

    for figure in ("peak", "faults", "major"):
        limit = options[figure]
        if limit is None:
            continue
        if figure not in runs.least:
            raise Unavailable(f"the system does not say {figure} of this command", f"leave out --{figure}")
        judgement.limit[figure] = min(limit, judgement.limit.get(figure, limit))
        if runs.least[figure] > limit:
            judgement.broken.append(f"{figure} {written(figure, runs.least[figure])}, limit {written(figure, limit)}")


def _show(
    judgement: Judgement, over: str, runs: Runs, measured: Entry, earlier: Entry | None, *, as_json: bool
) -> None:
    """Prints the figures, what is over them, and who brings more."""
    from wstrace.analysis.baseline import Entry, grew, written

    rows = grew(earlier or Entry({}, {}, 0, (), measured.level), measured) if over else []
    if as_json:
        figures = ", ".join(f"{name} {written(name, value)}" for name, value in runs.least.items())
        within = f"within its budget: {figures}" if judgement.limit else f"no budget: {figures}"
        print_json({"schema": 2, "ok": not judgement.broken, "answer": over or within,
                    "notes": judgement.noisy, "total": runs.least,
                    "rows": [{"label": name, "change": now - was, "first": was, "second": now}
                             for name, was, now in rows],
                    "limit": judgement.limit, "spread": dict(measured.spread), "broken": judgement.broken})  # fmt: skip
        return
    for name, value in runs.least.items():
        allowed = f"   allowed {written(name, judgement.limit[name])}" if name in judgement.limit else ""
        spread = f"   spread {written(name, measured.spread[name])}" if name in measured.spread else ""
        click.echo(f"{name:<7} {written(name, value):>12}{spread}{allowed}")
    for note in judgement.noisy:
        click.echo(note)
    if rows:
        click.echo("more than in the baseline:" if earlier else "over a limit; it brings:")
    for name, was, now in rows[:_GREW]:
        click.echo(f"{'+' + size(now - was):>12}  {printable(name, 90)}" + (f" ({size(was)} before)" if was else ""))

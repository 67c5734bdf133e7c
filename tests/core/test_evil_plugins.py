"""Plugins that raise, exit, or give back garbage, at every hook and method: they are named, and the host lives."""

import errno
import inspect
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit.evil_plugin import evil, misbehave

import wstrace.cli
import wstrace.hookspecs
import wstrace.plugins
from wstrace.batch import Batch
from wstrace.cli import main
from wstrace.cli.doctor import _probe
from wstrace.errors import PluginError, WstraceError, named, why
from wstrace.hookspecs import hookimpl
from wstrace.plugins import Plugins, default_plugins
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import RecordingExporter, ScriptedSource, batch_of

HOWS = ["raise", "exit", "garbage", "memory", "base", "generator"]
HOOKS = [name for name, f in inspect.getmembers(wstrace.hookspecs, inspect.isfunction) if name.startswith("wstrace_")]


def faults(n: int = 4) -> Batch:
    return batch_of(PAGE_FAULT, time_ns=list(range(n)), pid=1, tid=1, pc=1, va=4096, flags=0)


def run(**parts: Any) -> tuple[Session, RecordingExporter, WstraceError | None]:
    good = RecordingExporter()
    parts = {"sources": [ScriptedSource([faults(), faults()])], "exporters": [], "enrichers": [], **parts}
    parts["exporters"] = [*parts["exporters"], good]
    session = Session(record=False, **parts)
    try:
        session.start()
        session.wait(5)
        session.stop(seconds=2.0)
    except WstraceError as error:
        return session, good, error
    return session, good, None


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("method", ["export", "tick", "flush", "close"])
def test_an_exporter_costs_only_itself(method, how):
    session, good, error = run(exporters=[evil("exporter", method, how)()])
    assert error is None
    assert sum(map(len, good.batches)) == 8
    queue = session.exporter_queues[0]
    if method in ("export", "close", "flush") and how != "garbage":
        assert queue.error or queue.detached, "seen by the exit code"
    if method == "export" and how != "garbage":
        assert session.ledger.get("failed_exporter", "bad") == 8


@pytest.mark.parametrize("how", ["raise", "exit", "memory", "base", "generator"])
def test_an_exporter_that_cannot_start_is_named(how):
    _, good, error = run(exporters=[evil("exporter", "start", how)()])
    assert isinstance(error, PluginError)
    assert str(error).startswith("exporter bad failed: ")
    assert good.calls == [], "the session ended before it"


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("method", ["start", "enrich", "close"])
def test_an_enricher_costs_only_its_columns(method, how, caplog):
    _, good, error = run(enrichers=[evil("enricher", method, how)()])
    assert error is None
    assert sum(map(len, good.batches)) == 8
    assert all(isinstance(batch, Batch) for batch in good.batches)
    if how != "garbage" or method != "start":
        assert "enricher bad is detached" in caplog.text


class Once:
    """A source that has given all it has when it was drained once, so that nobody waits for more."""

    finished = False

    def drain(self, timeout: float) -> tuple[()]:
        self.finished = True
        return ()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("method", ["open", "start", "drain", "stop", "finished"])
def test_a_source_that_fails_is_named_and_the_others_go_on(method, how):
    source = evil("source", method, how)
    if method not in ("drain", "finished"):
        source = type("Bad", (Once, source), {})
    session, good, error = run(sources=[source(), ScriptedSource([faults(), faults()])])
    if method in ("open", "start"):
        assert (error is None) == (how == "garbage")
    elif method != "finished" or how != "garbage":
        assert isinstance(error, PluginError), error
    if error is not None:
        assert str(error).startswith("source bad failed: ")
    if method in ("drain", "stop") or error is None:
        assert sum(map(len, good.batches)) == 8
    if method == "drain":
        assert [note for note in session.info.notes if "source bad failed" in note], "the trace says it"


@pytest.mark.parametrize(
    "garbage",
    [
        5,
        Batch(PAGE_FAULT, {"va": np.array(["text"])}),
        Batch(PAGE_FAULT, {"va": np.array([object()])}),
        Batch(PAGE_FAULT, {"va": np.array([1.5]), "pid": np.array([1], "<u4")}),
    ],
    ids=["no batch", "text", "objects", "floats"],
)
def test_garbage_columns_end_at_the_source_that_gave_them(garbage):
    source = evil("source", "start", "garbage")()
    source.drain = lambda timeout: [garbage]
    _, good, error = run(sources=[source, ScriptedSource([faults(), faults()])])
    assert isinstance(error, PluginError)
    assert "source bad failed: TypeError: it" in str(error)
    assert [len(batch) for batch in good.batches] == [4, 4]


@pytest.mark.parametrize("how", HOWS)
def test_a_probe_that_fails_is_a_level(how):
    found = _probe(evil("source", "probe", how))
    assert found["level"] == "none"
    assert "its probe failed: " in found["why"]


@pytest.fixture
def found(monkeypatch):
    """found(load): what load() gives is found as the plugin `evil`, beside wstrace's own."""

    def find(load):
        own = wstrace.plugins._entry_points()
        entry = SimpleNamespace(name="evil", distribution="evil", version="1.0", load=load)
        monkeypatch.setattr(wstrace.plugins, "_entry_points", lambda: [*own, entry])
        default_plugins.cache_clear()
        return default_plugins()

    yield find
    default_plugins.cache_clear()


def state(plugins: Plugins) -> tuple[str, str]:
    return next((plugin.state, plugin.error) for plugin in plugins.found if plugin.name == "evil")


@pytest.mark.parametrize("role", ["source", "exporter", "enricher", "resolver"])
@pytest.mark.parametrize("how", ["raise", "exit", "memory", "base", "generator"])
def test_what_cannot_be_made_is_named_or_left_out(role, how, found):
    made = evil(role, "__init__", how)
    made.default = True
    plugins = found(lambda: SimpleNamespace(**{f"wstrace_{role}s": hookimpl(lambda: [made])}))
    wanted = {f"{one}s": ["bad"] if one == role else [] for one in ("source", "exporter")}
    if role == "resolver":
        assert "bad" not in Session(plugins=plugins, record=False, **wanted).context.resolvers
        return
    with pytest.raises(PluginError, match=f"{role} bad failed: "):
        Session(plugins=plugins, record=False, **wanted)


GARBAGE = [5, [5], {"x": 5}, [type("Unnamed", (), {})], "text"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("value", ["raise", "exit", "base", "generator", *GARBAGE], ids=str)
def test_whatever_a_hook_does_the_commands_go_on_and_the_plugin_is_named(hook, value, found, capsys):
    def implementation():
        return misbehave(value) if isinstance(value, str) and value != "text" else value

    implementation.__name__ = hook
    plugin = SimpleNamespace(**{hook: hookimpl(implementation)})
    plugins = found(lambda: plugin)
    assert main(["--help"]) == 0
    assert main(["plugins"]) == 0
    capsys.readouterr()
    Session(plugins=plugins, sources=[], record=False)
    for role in ("sources", "exporters", "formats", "dimensions"):
        getattr(plugins, role)
    plugins.target_environment([])
    assert plugins.platform.name in ("linux", "windows")
    if hook != "wstrace_platform":
        assert state(plugins)[0] == "failed", state(plugins)
        assert state(plugins)[1].startswith(hook)


@pytest.mark.parametrize(
    "variables", [{"": "x"}, {"A=B": "y"}, {"A\0B": "y"}, {"A": "\0"}, {"A": "\ud800"}, {"A": 5}, {5: "A"}], ids=repr
)
def test_variables_that_no_environment_takes_are_left_out_and_the_plugin_is_named(variables, found, caplog):
    plugin = SimpleNamespace(wstrace_target_environment=hookimpl(lambda exporters: variables))
    plugins = found(lambda: plugin)
    assert plugins.target_environment([]) == Plugins(third_party=False).target_environment([])
    assert state(plugins)[0] == "failed"
    assert state(plugins)[1].startswith("wstrace_target_environment: ")
    assert main(["run", "-q", "--", "true"]) in (0, 122)  # 122 where nothing can be traced
    assert "plugin 'evil' failed: wstrace_target_environment: " in caplog.text


@pytest.mark.parametrize("how", ["raise", "exit", "memory", "base", "generator"])
def test_an_import_that_fails_is_named(how, found, capsys):
    plugins = found(lambda: misbehave(how))
    assert state(plugins)[0] == "failed"
    assert main(["plugins"]) == 0
    assert "evil" in capsys.readouterr().out


def test_a_command_of_another_distribution_costs_only_itself(tmp_path, monkeypatch, capsys):
    about = tmp_path / "evil-1.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Name: evil\nVersion: 1.0\n")
    words = {"worse": "no.such:module", "worst": "wstrace.cli:INTERNAL", "info": "no.such:module"}
    lines = (f"{word} = {target}\n" for word, target in words.items())
    about.joinpath("entry_points.txt").write_text("[wstrace.commands]\n" + "".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--help"]) == 0
    assert "\nMore:\n  worse  From evil.\n  worst  From evil.\n" in capsys.readouterr().out
    assert main(["info", "--help"]) == 0  # a word of wstrace's own stays that
    capsys.readouterr()
    for word in ("worse", "worst"):
        assert main([word]) == 125
        assert f"wstrace: the command {word!r} failed: " in capsys.readouterr().err


def test_a_checkout_that_is_not_installed_says_so(monkeypatch, capsys):
    monkeypatch.setattr(wstrace.plugins, "entry_points", lambda group: [])
    monkeypatch.setattr(wstrace.cli, "entry_points", lambda group: [])
    default_plugins.cache_clear()
    try:
        for words in (["report", "x.wst"], ["run", "--", "true"], ["attach", "1", "-s", "page_faults"]):
            assert main(words) == 125
            shown = capsys.readouterr().err
            assert "wstrace's own plugins are not found" in shown
            assert "-m pip install -e " in shown
            assert len(shown.splitlines()) == 1
    finally:
        default_plugins.cache_clear()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "perf_event_open"), "allow more open files: ulimit -n"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "allow more open files: ulimit -n"),
        (MemoryError("Unable to allocate 384. KiB"), "allow more memory: ulimit -v, or the limit of the container"),
        (
            OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
            "allow more memory: ulimit -v, or the limit of the container",
        ),
        (ValueError("odd"), "WSTRACE_DEBUG=1 shows where"),
    ],
)
def test_a_limit_of_the_process_is_reported_with_what_lifts_it(error, remedy):
    with pytest.raises(PluginError) as shown, named("source x"):
        raise error
    assert shown.value.remedy == remedy
    assert shown.value.exit_code == (125 if isinstance(error, ValueError) else 122), "the system does not permit more"
    assert str(shown.value).startswith("source x failed: ")


def test_an_error_without_words_is_its_type():
    assert why(MemoryError()) == "MemoryError"
    assert why(ValueError("odd")) == "ValueError: odd"

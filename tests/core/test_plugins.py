"""Plugins: found one by one, each guarded, switched on and off."""

import pytest
from kit.plugin_entries import Entry, module

import wstrace.plugins
from wstrace.errors import UsageError, WstraceError
from wstrace.hookspecs import Reference
from wstrace.interfaces import Enricher
from wstrace.plugins import Plugins
from wstrace.schema import PAGE_FAULT
from wstrace.session import Session
from wstrace.testing import RecordingExporter, ScriptedSource, batch_of


def raising():
    raise RuntimeError("this hook is broken")


class OutputExporter(RecordingExporter):
    name = "output"


GOOD = Entry(
    "good",
    module(wstrace_sources=lambda: [ScriptedSource], wstrace_exporters=lambda: [RecordingExporter]),
    dist="wstrace",
)


def plugins(monkeypatch, *entries, **kwargs) -> Plugins:
    monkeypatch.setattr(wstrace.plugins, "entry_points", lambda group: list(entries))
    return Plugins(**kwargs)


def states(found: Plugins) -> dict[str, str]:
    return {p.name: p.state for p in found.found}


def test_a_hook_that_raises_costs_only_its_plugin(monkeypatch):
    found = plugins(monkeypatch, Entry("bad", module(wstrace_sources=raising)), GOOD)
    assert found.sources == {"scripted": ScriptedSource}
    assert states(found)["bad"] == "failed"


def test_a_misspelt_hook_is_an_error(monkeypatch):
    found = plugins(monkeypatch, Entry("bad", module(wstrace_source=lambda: [])), GOOD)
    assert states(found) == {"good": "loaded", "bad": "failed"}
    bad = next(p.error for p in found.found if p.name == "bad")
    assert "there is no hook wstrace_source; did you mean 'wstrace_sources'?" in bad


def test_two_plugins_with_one_name_of_a_class(monkeypatch):
    found = plugins(monkeypatch, GOOD, Entry("late", module(wstrace_sources=lambda: [ScriptedSource])))
    assert found.sources == {"scripted": ScriptedSource}
    assert "taken" in next(p.error for p in found.found if p.name == "late")


def test_switching_off_by_plugin_or_class_name(monkeypatch):
    other = Entry("other", module(wstrace_sources=lambda: []))
    assert states(plugins(monkeypatch, GOOD, other, disabled=["good"])) == {"good": "disabled", "other": "loaded"}
    assert plugins(monkeypatch, GOOD, disabled=["scripted"]).sources == {}
    assert states(plugins(monkeypatch, GOOD, other, allowed=["other"])) == {"good": "not allowed", "other": "loaded"}
    assert states(plugins(monkeypatch, GOOD, other, third_party=False)) == {"good": "loaded", "other": "disabled"}


def test_the_environment_switches_too(monkeypatch):
    monkeypatch.setattr(wstrace.plugins, "entry_points", lambda group: [GOOD])
    environ = {"WSTRACE_DISABLE_PLUGINS": "good, x"}
    assert states(Plugins.from_environment(environ=environ)) == {"good": "disabled"}
    assert states(Plugins.from_environment(environ={"WSTRACE_LOAD_PLUGINS": ""})) == {"good": "not allowed"}


def test_an_unknown_name_suggests_the_nearest_or_says_what_failed(monkeypatch):
    found = plugins(monkeypatch, Entry("broken", ImportError("gone")), GOOD)
    with pytest.raises(UsageError, match="did you mean 'scripted'"):
        found.class_of("source", "scriptd")
    with pytest.raises(UsageError, match=r"its plugin is failed ImportError: gone"):
        found.class_of("source", "broken")


def referring(name, target, monkeypatch):
    """The plugins of which one offers an exporter by that Reference."""
    offered = module(wstrace_exporters=lambda: [Reference(name, target)])
    return plugins(monkeypatch, GOOD, Entry("referring", offered))


def test_what_is_offered_by_reference_is_imported_when_it_is_requested(monkeypatch):
    wanted = []
    monkeypatch.setattr(wstrace.plugins, "load", lambda target: wanted.append(target) or OutputExporter)
    found = referring("output", "theirs:OutputExporter", monkeypatch)
    assert found.defaults("exporter") == found.taking_output() == []
    assert found.class_of("exporter", "recording") is RecordingExporter
    assert wanted == []
    assert found.class_of("exporter", "output") is OutputExporter
    assert found.exporters == {"recording": RecordingExporter, "output": OutputExporter}
    assert wanted == ["theirs:OutputExporter"]


@pytest.mark.parametrize(
    ("name", "target", "why"),
    [
        ("output", "gone.for_good:OutputExporter", "No module named 'gone'"),
        ("output", "wstrace.options:Spec", "is no exporter with the name"),
        ("other", "wstrace.testing:RecordingExporter", "is no exporter with the name"),
        ("output", 5, "which is no exporter class with a name"),
    ],
)
def test_a_wrong_reference_costs_only_its_plugin(name, target, why, monkeypatch):
    found = referring(name, target, monkeypatch)
    with pytest.raises(WstraceError, match=why if isinstance(target, str) else "there is no exporter"):
        found.class_of("exporter", name)
    assert found.exporters == {"recording": RecordingExporter}
    assert states(found) == {"good": "loaded", "referring": "failed"}
    assert why in next(p.error for p in found.found if p.name == "referring")


def test_an_enricher_may_be_offered_by_reference(monkeypatch):
    class Chunk(Enricher):
        name = "chunk"

        def enrich(self, batch):
            yield batch.with_columns({"chunk": (batch["va"] >> 21).astype("<u4")})

    monkeypatch.setattr(wstrace.plugins, "load", lambda target: Chunk)
    offered = module(wstrace_enrichers=lambda: [Reference("chunk", "theirs:Chunk")])
    found = plugins(monkeypatch, GOOD, Entry("chunks", offered))
    source = ScriptedSource([batch_of(PAGE_FAULT, va=[1 << 21, 5 << 21])])
    with Session(plugins=found, sources=[source]) as session:
        session.wait(5)
    assert [batch["chunk"].tolist() for batch in session.trace.batches()] == [[1, 5]]
    assert session.info.notes == found.failures() == []


def test_a_plugin_of_which_a_part_fails_says_so_in_each_trace(monkeypatch, caplog):
    def enrichers():
        return [Reference("chunk", "gone.for_good:Chunk")]

    half = module(wstrace_sources=lambda: [ScriptedSource], wstrace_enrichers=enrichers)
    found = plugins(monkeypatch, Entry("half", half))
    said = "plugin 'half' failed: wstrace_enrichers: ModuleNotFoundError: No module named 'gone'"
    for _ in range(2):
        caplog.clear()
        with Session(plugins=found, sources=[ScriptedSource([])], record=False) as session:
            session.wait(5)
        assert [record.getMessage() for record in caplog.records] == session.info.notes == [said]


def test_built_ins_come_first_and_all_of_them_load():
    found = Plugins()
    assert [p.name for p in found.found if p.state != "loaded"] == []
    assert {"page_faults", "working_set", "write_watch", "replay"} <= set(found.sources)
    assert {"console", "msgpack", "otel"} <= set(found.exporters)
    assert found.defaults("source") == ["page_faults", "final_snapshot"]
    assert found.defaults("exporter") == ["console"]
    assert [p.error for p in found.found if p.error] == []


def test_nothing_is_found_by_scanning_the_path(tmp_path, monkeypatch):
    (tmp_path / "wstrace_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "evil" not in states(wstrace.plugins.Plugins())

"""Plugins: read as importlib.metadata reads entry points, found one by one, each guarded, switched on and off."""

import sys
import zipfile
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from kit.plugin_entries import Entry, module

import wstrace.plugins
from wstrace.entry_points import EntryPoint, entry_points
from wstrace.errors import UsageError, WstraceError
from wstrace.hookspecs import Reference
from wstrace.plugins import Plugins
from wstrace.testing import RecordingExporter, ScriptedSource


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


def test_built_ins_come_first_and_all_of_them_load():
    found = Plugins()
    assert [p.name for p in found.found if p.state != "loaded"] == []
    assert {"page_faults", "working_set", "write_watch", "replay"} <= set(found.sources)
    assert {"console", "msgpack", "otel"} <= set(found.exporters)
    assert found.defaults("source") == ["page_faults", "final_snapshot"]
    assert found.defaults("exporter") == ["console"]
    assert [p.error for p in found.found if p.error] == []


POINTS = """
[console_scripts]
other = no:no

[wstrace.x]
# a comment
first = one
second=one.two:three.four
 third  =  one : two [extra]

[groups]
stranger = one
"""


def install(folder: Path, name: str, about: str = "", points: str = "", shown: str | None = None) -> None:
    made = folder / (about or f"{name}-1.0.dist-info")
    made.mkdir(parents=True)
    head = "PKG-INFO" if made.suffix == ".egg-info" else "METADATA"
    text = shown or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nName: not this one\n"
    (made / head).write_text(text)
    if points:
        (made / "entry_points.txt").write_text(points)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """sys.path: two folders, the first of which hides what is in the second; one that is no folder; one that is not."""
    folders = [tmp_path / "first", tmp_path / "second", tmp_path / "absent"]
    for folder in folders[:2]:
        folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
    return sys.path


def reported_by_the_library() -> set[tuple[str, ...]]:
    return {(e.name, e.value, e.dist.name, e.dist.version) for e in metadata.entry_points(group="wstrace.x")}


def test_every_layout_is_read_as_the_library_reads_it(path):
    first, second = Path(path[0]), Path(path[1])
    install(first, "Wheel_Made", points=POINTS)
    install(first, "develop", "develop.egg-info", "[wstrace.x]\nold = develop\n")
    install(first, "egg", "egg-2.0-py3.11.egg-info", "[wstrace.x]\negg = egg\n", "Name: egg\nVersion: 2.0\n")
    install(first, "folded", points="[wstrace.x]\nfolded = x\n",
            shown="Metadata-Version: 2.1\nVersion: 1.0\nLicense: one\n        two: three\nName: folded\n")  # fmt: skip
    install(first, "hides")
    install(second, "hides", "hides-0.9.dist-info", "[wstrace.x]\nhidden = x\n")
    install(first, "dash_ed", points="[wstrace.x]\nkept = x\n")
    install(second, "dash-ed", "dash.ed-1.0.dist-info", "[wstrace.x]\nhidden = x\n")
    install(second, "without_points")
    (second / "a_file-1.0.egg-info").write_text("Name: a_file\n")
    found = entry_points("wstrace.x")
    assert {tuple(entry) for entry in found} == reported_by_the_library()
    assert {entry.name for entry in found} == {"first", "second", "third", "old", "egg", "folded", "kept"}


def test_what_a_value_names_is_loaded():
    assert EntryPoint("x", "os.path", "", "").load() is metadata.EntryPoint("x", "os.path", "g").load()
    for value in ("os:path.join", "os : path.join", "os:path.join [extra, more]"):
        assert EntryPoint("x", value, "", "").load() is metadata.EntryPoint("x", value, "g").load()
    with pytest.raises(AttributeError):
        EntryPoint("x", "os:absent", "", "").load()
    with pytest.raises(ImportError):
        EntryPoint("x", "no_such_module_anywhere", "", "").load()


def test_a_zip_file_on_the_path_has_distributions_too(path, tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as made:
        made.writestr("zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n")
        made.writestr("zipped-1.0.dist-info/entry_points.txt", "[wstrace.x]\nzipped = zipped\n")
    path.append(str(tmp_path / "app.zip"))
    install(Path(path[0]), "plain", points="[wstrace.x]\nplain = plain\n")
    assert set(entry_points("wstrace.x")) == {("zipped", "zipped", "zipped", "1.0"), ("plain", "plain", "plain", "1.0")}


def test_a_finder_with_distributions_of_its_own_is_used(path, monkeypatch):
    class Own(metadata.Distribution):
        def read_text(self, filename):
            return {"METADATA": "Name: own\nVersion: 3\n", "entry_points.txt": "[wstrace.x]\nown = own\n"}.get(filename)

        def locate_file(self, path):
            return path

    class Finder(MetaPathFinder):
        def find_distributions(self, context=None):
            return [Own()]

        def find_spec(self, *_):
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert entry_points("wstrace.x") == [("own", "own", "own", "3")]


def test_files_that_are_no_text_cost_only_their_own_plugin(path):
    install(Path(path[0]), "good", points="[wstrace.x]\ngood = good\n")
    install(Path(path[0]), "bad", points="[wstrace.x]\n")
    (Path(path[0]) / "bad-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[wstrace.x]\nbad = \xff\n")
    assert entry_points("wstrace.x") == [("good", "good", "good", "1.0")]

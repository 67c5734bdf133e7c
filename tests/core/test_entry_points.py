"""Entry points: read as importlib.metadata reads them, from folders that look like those that installers make."""

import sys
import zipfile
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from wstrace.entry_points import EntryPoint, entry_points

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
    assert set(entry_points("wstrace.x")) == {
        ("zipped", "zipped", "zipped", "1.0"),
        ("plain", "plain", "plain", "1.0"),
    }


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

"""Baselines: what is growth and what is chance, what is learned, and files that others have changed."""

import json
import os
from pathlib import Path

import pytest

from wstrace.analysis.baseline import Baseline, Bytes, Entry, Machine, grew
from wstrace.errors import OutputError, UsageError

PAGE = 4096
HERE = Machine("cpython-3.12-linux-x86_64-4096", {"python": "3.12.1", "kernel": "6.1", "cpu": "one"})


def entry(faults: int, spread: int = 0, runs: int = 5) -> Entry:
    return Entry({"faults": faults}, {"faults": spread}, runs)


@pytest.mark.parametrize(
    ("recorded", "allowed"),
    [(entry(1000), 64), (entry(1000, 10), 64), (entry(1000, 30), 90), (entry(10_000), 100), (entry(10_000, 50), 150)],
)
def test_growth_is_what_is_past_the_spread_the_share_and_the_pages(recorded, allowed):
    at = recorded.figures["faults"] + allowed
    assert not recorded.judged({"faults": at}, PAGE).broken
    (said,) = recorded.judged({"faults": at + 1}, PAGE).broken
    assert said.startswith(f"{at + 1:,} faults, +")
    assert f"(allowed: {at:,})" in said


def test_bytes_are_judged_by_the_page():
    recorded = Entry({"peak": 1 << 20, "new": 0}, {"peak": 0, "new": 0}, 5)
    assert not recorded.judged({"peak": (1 << 20) + 64 * PAGE, "new": 64 * PAGE}, PAGE).broken
    assert recorded.judged({"new": 65 * PAGE}, PAGE).broken == [
        "new 260.0 KiB, +260.0 KiB over the baseline of 0 B (allowed: 256.0 KiB)"
    ]


def test_what_differs_by_chance_is_not_judged():
    noisy = entry(2000, 70)
    assert noisy.judged({"faults": 9000}, PAGE).noisy == ["faults: too noisy to judge, its runs differ by 4%"]
    assert not noisy.judged({"faults": 9000}, PAGE).broken
    assert not entry(100, 20).judged({"faults": 160}, PAGE).noisy, "64 pages cover it"


def test_the_least_counts_and_the_spread_is_learned():
    one = Entry.of([{"faults": 1010, "peak": 5}, {"faults": 1000, "peak": 7}])
    assert (one.figures, one.spread, one.runs) == ({"faults": 1000, "peak": 5}, {"faults": 10, "peak": 2}, 2)
    both = one.learned(Entry.of([{"faults": 1040}]), PAGE)
    assert (both.figures, both.spread, both.runs) == ({"faults": 1000}, {"faults": 40}, 3)
    lower = both.learned(Entry.of([{"faults": 990}]), PAGE)
    assert (lower.figures, lower.spread, lower.runs) == ({"faults": 990}, {"faults": 50}, 4)
    anew = lower.learned(Entry.of([{"faults": 2000}, {"faults": 2005}]), PAGE)
    assert (anew.figures, anew.spread, anew.runs) == ({"faults": 2000}, {"faults": 5}, 2)


def test_what_grew_is_paired_over_moved_lines_and_versions():
    before = Entry(
        {}, {}, 1, [Bytes("load app.py:12", 100), Bytes("libssl.so.1.1", 50), Bytes("same x.py:1", 9)], "line"
    )
    after = Entry({}, {}, 1, [Bytes("load app.py:19", 400), Bytes("new b.py:1", 70), Bytes("libssl.so.3", 60),
                              Bytes("same x.py:1", 9)], "line")  # fmt: skip
    assert grew(before, after) == [("load app.py:19", 100, 400), ("new b.py:1", 0, 70), ("libssl.so.3", 50, 60)]


def saved(path: Path) -> Baseline:
    file = Baseline.load(str(path))
    file.record(HERE, {"b": Entry.of([{"faults": 5, "peak": 6, "new": 7}], [Bytes("<x>\n", 3)]), "a": entry(1)}, PAGE)
    file.save()
    return file


def test_a_file_has_a_line_for_each_test_and_is_read_again(tmp_path):
    path = tmp_path / ".wstrace" / "baseline.json"
    file = saved(path)
    assert Baseline.load(str(path)) == file
    data = json.loads(path.read_text())
    assert data["version"] == 1
    tests = data["environments"][HERE.key]["tests"]
    assert tests["b"] == {"faults": 5, "peak": 6, "new": 7, "spread": {"faults": 0, "peak": 0, "new": 0}, "runs": 1,
                          "level": "file", "by": [["<x>\n", 3]]}  # fmt: skip
    lines = [line for line in path.read_text().splitlines() if line.startswith("    ")]
    assert [line.split(":")[0].strip() for line in lines] == ['"a"', '"b"']


def test_another_environment_is_not_compared(tmp_path):
    path = tmp_path / "b.json"
    assert Baseline.load(str(path)).why_not(HERE) == f"there is no baseline ({path})"
    file = saved(path)
    assert not file.why_not(HERE)
    assert not file.why_not(Machine(HERE.key, {**HERE.versions, "cpu": "another"}))
    newer = Machine(HERE.key, {**HERE.versions, "kernel": "6.18"})
    assert file.why_not(newer) == f"{path} was recorded with other versions: kernel 6.1 there, 6.18 here"
    other = Machine("cpython-3.13-linux-x86_64-4096", {})
    assert file.why_not(other) == f"{path} has no baseline for {other.key}, only for {HERE.key}"
    file.record(newer, {"c": entry(9)}, PAGE)
    assert list(file.environments[HERE.key].tests) == ["c"]
    file.record(other, {"d": entry(9)}, PAGE)
    assert len(file.environments) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"version": 1,\n<<<<<<< ours\n=======\n>>>>>>> theirs\n}',
            "has a merge conflict in it; take one side of each",
        ),
        ("", "is no baseline (JSONDecodeError"),
        ("[]", "is no baseline (TypeError"),
        ('{"version": 2}', "has version 2, and this wstrace knows 1"),
        ('{"version": 1, "environments": []}', "is no baseline"),
        ('{"version": 1, "environments": {"e": {"versions": {}, "tests": {"t": {"faults": -1}}}}}', "-1 is no count"),
        ('{"version": 1, "environments": {"e": {"versions": {}, "tests": {"t": {"runs": 1}}}}}', "no figure"),
        ("[" * 100_000, "is no baseline"),
        ('{"version": 1e400}', "is no baseline (OverflowError"),
    ],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path, text, said):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        Baseline.load(str(path))
    assert said in str(refused.value).replace("\n", " ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a FIFO in a folder")
def test_a_fifo_in_its_place_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "b.json")
    with pytest.raises(UsageError, match=r"it is no regular file"):
        Baseline.load(str(tmp_path / "b.json"))


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can make another user's link")
@pytest.mark.parametrize("moment", [(os, "mkdir"), (Baseline, "_text")], ids=["before", "while it is written"])
def test_a_folder_that_another_user_exchanges_is_not_followed(tmp_path, monkeypatch, moment):
    """As root in another user's project: nothing comes into the folder to which that user's link leads."""
    victim, folder = tmp_path / "victim", tmp_path / ".wstrace"
    victim.mkdir()
    folder.mkdir()
    owner, name = moment
    own = getattr(owner, name)

    def exchanged(*args, **kwargs):
        if not folder.is_symlink():
            folder.rename(tmp_path / "first")
            folder.symlink_to(victim)
            os.chown(folder, 1234, 1234, follow_symlinks=False)
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, exchanged)
    if name == "mkdir":
        with pytest.raises(OutputError, match="is a symbolic link that uid 1234 may change"):
            Baseline(str(folder / "baseline.json")).save()
    else:
        Baseline(str(folder / "baseline.json")).save()
        assert [file.name for file in (tmp_path / "first").iterdir()] == ["baseline.json"]
    assert not list(victim.iterdir())


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "b.json").symlink_to(tmp_path / "victim")
    with pytest.raises((OutputError, UsageError)):
        saved(tmp_path / "b.json")

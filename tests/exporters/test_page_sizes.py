"""A trace of a machine with larger pages, read on this one: the same pages are so many times the bytes, everywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script, saved
from kit.command_line import wstrace
from kit.go_pprof import totals

from wstrace.clock import now_ns
from wstrace.schema import (
    FAULT_MAJOR,
    FAULT_WRITE,
    LOSS_FORKED,
    LOSS_UNMAPPED,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
    PROCESS_FORK,
)
from wstrace.trace import Trace
from wstrace_exporters.msgpack.format import osfile

SECOND = 1_000_000_000
OF_BLAME = {"resident", "private", "shared", "brought"}
BEGIN = now_ns() + 10 * SECOND


def scripted(page: int) -> Trace:
    """A process that touches, loads and forks, on a machine whose pages and fault-around window are of that size."""
    script = Script()
    for number in range(40):
        script.fault(BEGIN + number * SECOND // 10, ANON + number * page, APP if number % 2 else IMPORT)
    for number in range(0, 12, 3):
        script.fault(BEGIN + number * SECOND // 10, FILE + number * page, SAVE, flags=FAULT_MAJOR * (number % 2))
    script.batches.append(script.process(BEGIN + 5 * SECOND, 9, PROCESS_FORK, "child"))
    script.lose(BEGIN + 5 * SECOND, LOSS_FORKED, pid=9, other=7)
    for number in range(10, 15):
        script.fault(BEGIN + 5 * SECOND + number, ANON + number * page, APP, pid=9, flags=FAULT_WRITE)
    script.faults.sort()
    script.lose(BEGIN + 5 * SECOND, LOSS_UNMAPPED, start=ANON, end=ANON + 4 * page)
    script.snapshot(BEGIN + 6 * SECOND, (ANON + 4 * page, 36, PAGE_EXCLUSIVE), (FILE, 12, PAGE_FILE | PAGE_SHARED))
    trace = script.trace()
    trace.info.page_size, trace.info.command = page, ["app"]
    trace.info.extra["fault_around_bytes"] = 16 * page
    return trace


def made(path: Path, page: int) -> str:
    """A file with that trace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(osfile, "page_size", lambda: page)
        saved(scripted(page), str(path))
    return str(path)


@pytest.fixture(scope="module", params=[16384, 65536])
def two(request, tmp_path_factory):
    """How many times as large the pages of the second trace are; the two traces."""
    folder = tmp_path_factory.mktemp("traces")
    return request.param // PAGE, made(folder / "a.wst", PAGE), made(folder / "b.wst", request.param)


def leaves(found: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a JSON document, and where it is."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from leaves(value, f"{at}.{name}")
    elif isinstance(found, list):
        for value in found:
            yield from leaves(value, f"{at}[]")
    else:
        yield at, found


def larger(times: int, first: Any, second: Any) -> set[str]:
    """Where the numbers of the second are so many times those of the first; all others are equal."""
    found, one, other = set(), list(leaves(first)), list(leaves(second))
    assert [at for at, _ in one] == [at for at, _ in other]
    for (at, before), (_, now) in zip(one, other, strict=True):
        if before != now:
            assert isinstance(before, (int, float)), (at, before, now)
            assert now == before * times, (at, before, now)
            found.add(at.rpartition(".")[2])
    return found


def wanted(path: str, *words: str) -> Any:
    shown = wstrace(words[0], path, *words[1:])
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    return {key: value for key, value in found.items() if key not in ("answer", "completeness", "facts", "ledger")}


@pytest.mark.parametrize(
    ("words", "bytes_of"),
    [
        (["report", "--json"], OF_BLAME),
        (["report", "--by", "kind", "--json"], OF_BLAME),
        (["report", "--over-time", "1s", "--json"], {"resident", "private"}),
        (["unshared", "--json"], {"copied"}),
        (["imports", "--json"], {"resident", "private"}),
    ],
)  # fmt: skip
def test_bytes_grow_with_the_pages_and_counts_do_not(two, words, bytes_of):
    times, first, second = two
    found = larger(times, wanted(first, *words), wanted(second, *words))
    assert bytes_of <= found
    assert not found & {"faults", "pages", "major", "samples", "in_all", "time_ns"}


def test_profiles_have_the_bytes_of_blame(two, tmp_path):
    times = two[0]
    paths = tmp_path / "a.pb.gz", tmp_path / "b.pb.gz"
    for path, page in zip(paths, (PAGE, times * PAGE), strict=True):
        scripted(page).save(str(path))
    first, second = (totals(path) for path in paths)
    assert second == {"faults": first["faults"], **{name: times * first[name] for name in ("brought", "resident")}}


def test_traces_of_different_page_sizes_are_not_merged(two, tmp_path):
    """A file tells one size, by which the other host's pages would be counted, too."""
    _, first, second = two
    shown = wstrace("convert", first, second, "-o", str(tmp_path / "m.wst"))
    assert shown.returncode == 125
    assert f"{first} has pages of 4.0 KiB, {second} has pages of" in shown.stderr
    assert not (tmp_path / "m.wst").exists()

"""The programs that wstrace is tested against. Where one is absent the tests say so; WSTRACE_REQUIRE_PEERS=1 fails."""

import importlib
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs the collector or versitygw builds it, from a cold cache in some minutes."""
    for item in items:
        if {"collector_binary", "versity_binary"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(900))


def built(module: str) -> Path:
    """The path of what a module here builds with Go."""
    from built_with_go import NoGo
    from required import absent

    try:
        return importlib.import_module(module).binary()
    except NoGo as why:
        absent(str(why))
        raise


@pytest.fixture(scope="session")
def collector_binary():
    return built("collector")


@pytest.fixture(scope="session")
def versity_binary():
    return built("versity_binary")


@pytest.fixture
def collector(collector_binary, tmp_path):
    """A running collector, ended with the test."""
    from collector import Collector

    with Collector(tmp_path / "collector") as running:
        yield running


@pytest.fixture
def prometheus_binary():
    """Debian's prometheus."""
    import prometheus
    from required import absent

    found = prometheus.binary()
    if found is None:
        absent("there is no prometheus on this machine (apt-get install prometheus)")
        raise AssertionError
    return found

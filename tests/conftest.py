"""What all tests share: `--long`, skips that are loud, and an environment without variables of others."""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from kit.machine import one_after_the_other

from wstrace.errors import Unavailable

# How fast examples are made says how busy the machine is, and nothing about what is tested.
settings.register_profile("wstrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wstrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long proofs too")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`; with another `--dist` than the usual one, that one."""
    return one_after_the_other(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="a long proof: run with --long"))


@pytest.fixture(autouse=True)
def no_variables():
    """The variables of whoever runs the tests do not count."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("OTEL_", "WSTRACE_CONFIG"))] + ["TRACEPARENT"]:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def signals_of_a_terminal():
    """SIGINT and SIGHUP end a process: nohup, and a shell for its background, leave them ignored, and children too."""
    ignored = {}
    for name in ("SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            ignored[number] = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    for number, handler in ignored.items():
        signal.signal(number, handler)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def watchable():
    """Skips where write watch does not work."""
    from wstrace_plugins.write_watch.source import WriteWatchSource

    try:
        WriteWatchSource.probe()
    except Unavailable as refused:
        pytest.skip(f"no write watch here: {refused}")


@pytest.fixture
def open_folder():
    """A folder that every user may enter. pytest's own lie in one that is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Where CI must have everything, a skip is a failure: only long proofs and other systems may be left out."""
    report = yield
    if os.environ.get("WSTRACE_REQUIRE_PEERS") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "--long" not in reason and "only on" not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped where nothing may be: {reason}"
    return report

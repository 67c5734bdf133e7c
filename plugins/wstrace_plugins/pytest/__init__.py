"""The pytest plugin: budgets of page faults and resident bytes for tests. Switched on by `--wstrace`.

pytest imports this module at every start, so it imports nothing itself; what measures is imported with `--wstrace`.
pytest knows the hooks of a plugin by their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MARKER = (
    "wstrace(peak=, new=, faults=, major=, written=, runs=1, isolated='no'): with --wstrace, fail when the test goes "
    "past a limit: its highest resident size, or that at its end, less that at its start; page faults, and those of "
    "them from disk; written bytes. Sizes such as '8MiB'. isolated='fork' or 'exec' allows runs > 1."
)
#: options, and settings of the same names for the configuration file: their meaning, and the default of a value
_OPTIONS = {
    "wstrace": ("Measure tests; judge those with a marker.", None),
    "wstrace-update": ("Record tests with a marker in .wstrace/baseline.json: later runs are compared with it.", None),
    "wstrace-require-baseline": ("Fail tests with a marker that have no baseline for this environment.", None),
    "wstrace-top": ("Rows of the table at the end (default 10, 0: none).", "10"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and settings."""
    group = parser.getgroup("wstrace", "budgets of page faults and resident memory")
    for name, (meaning, default) in _OPTIONS.items():
        setting = name.replace("-", "_")
        if default is None:
            group.addoption(f"--{name}", action="store_true", default=None, help=meaning)
            parser.addini(setting, meaning, type="bool", default=False)
        else:
            group.addoption(f"--{name}", metavar="N", help=meaning)
            parser.addini(setting, meaning, default=default)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the fixture and the marker, and with `--wstrace` what measures."""
    from wstrace_plugins.pytest import settings

    config.addinivalue_line("markers", MARKER)
    config.pluginmanager.register(settings, "wstrace-fixtures")
    if settings.setting(config, "wstrace"):
        from wstrace_plugins.pytest.plugin import Budgets

        config.pluginmanager.register(Budgets(config), "wstrace-budgets")

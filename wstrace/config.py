"""Finds the value of an option: command line, then WSTRACE_* variables, then --config, then pyproject.toml.

In a file, the options of each plugin are in a table of its name, and the command's own are at the top:

    [tool.wstrace]              # in a --config file: without `tool.wstrace`
    exporters = ["otel"]
    fail_on_loss = true
    [tool.wstrace.page_faults]
    ring_bytes = "4MiB"
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from wstrace.errors import UsageError
from wstrace.options import TRUE, Spec, options_of
from wstrace.text import nearest

#: The command line's own options: keys at the top of a configuration, and WSTRACE_<KEY> variables.
TOP = ("sources", "exporters", "output", "duration", "children", "fail_on_loss", "require", "quiet", "user")
#: Variables with the same prefix that are not options.
_OTHER_VARIABLES = {"WSTRACE_DEBUG", "WSTRACE_DISABLE_PLUGINS", "WSTRACE_LOAD_PLUGINS"}
#: The longest file: the keys that there are fill some KiB.
_FILE_BYTES = 1 << 20


class Config:
    """Values, each with its origin.

    Args:
        layers: (origin, nested mapping), the strongest first.
    """

    def __init__(self, layers: list[tuple[str, Mapping[str, Any]]]) -> None:
        self._layers = layers

    @classmethod
    def load(cls, path: str | None = None, *, environ: Mapping[str, str] = os.environ, project: bool = True) -> Config:
        """The configuration of a command: variables, the file, and with `project` the local pyproject.toml.

        Raises:
            UsageError: the file cannot be read or is not TOML.
        """
        layers: list[tuple[str, Mapping[str, Any]]] = [("environment", _from_environment(environ))]
        if path is not None:
            layers.append((path, _read(path)))
        here = "pyproject.toml"
        if project and os.path.isfile(here):
            layers.append(("pyproject.toml", _read(here).get("tool", {}).get("wstrace", {})))
        return cls(layers)

    @property
    def given(self) -> bool:
        """Whether anything is set."""
        return any(layer for _, layer in self._layers)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a top-level key, or the default."""
        return self.origin(key, default)[0]

    def flag(self, key: str, default: bool = False) -> bool:
        """Whether a top-level key is true, which a variable says in words."""
        value = self.get(key, default)
        return value.lower() in TRUE if isinstance(value, str) else bool(value)

    def origin(self, key: str, default: Any = None, table: str = "") -> tuple[Any, str]:
        """(value, where it comes from) of a top-level key or of a key in a plugin's table."""
        for origin, layer in self._layers:
            values = layer.get(table, {}) if table else layer
            if isinstance(values, Mapping) and key in values:
                return values[key], origin
        return default, "default"

    def options(self, cls: type, spec: Spec) -> dict[str, Any]:
        """The options for an object of the class: those in the spec take precedence over the configured ones."""
        known = options_of(cls)
        configured: dict[str, Any] = {}
        for _, layer in reversed(self._layers):
            table = layer.get(spec.name)
            if isinstance(table, Mapping):
                configured.update(table)
        return {**{key: value for key, value in configured.items() if key in known}, **spec.options}

    def check(self, tables: Mapping[str, type], top: Sequence[str] = TOP) -> None:
        """Checks that every key is known; the error names the nearest known one.

        Args:
            tables: name -> class of every source, enricher and exporter.
            top: the keys at the top that the command reads.

        Raises:
            UsageError: a key or a table that nothing reads.
        """
        for origin, layer in self._layers:
            for key, value in layer.items():
                if key in tables and isinstance(value, Mapping):
                    known = options_of(tables[key])
                    for option in value:
                        if option not in known:
                            raise UsageError(f"{origin}: {key} has no option {option!r}", nearest(option, known))
                elif key not in top:
                    raise UsageError(f"{origin}: there is no key {key!r}", nearest(key, [*top, *tables]))


def _read(path: str) -> dict[str, Any]:
    import tomllib  # The import takes 2 ms of a start, and most users have no file.

    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES + 1)
        if len(text) > _FILE_BYTES:
            raise UsageError(f"{path} is longer than {_FILE_BYTES >> 20} MiB", "give --config a TOML file")
        return tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "give --config an existing TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path} is no TOML that can be read: its values are nested too deeply") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """WSTRACE_EXPORTERS=otel sets a top-level key, WSTRACE_PAGE_FAULTS__RING_BYTES=4MiB one in a plugin's table."""
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith("WSTRACE_") or name in _OTHER_VARIABLES:
            continue
        table, separator, option = name.removeprefix("WSTRACE_").lower().partition("__")
        if separator:
            values.setdefault(table, {})[option] = text
        elif table in TOP:
            values[table] = text.split(";") if table in ("sources", "exporters") else text
    return values

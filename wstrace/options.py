"""Options as users type them: `NAME:opt=val,...` read against the keyword-only arguments of a class; and Config.

The value of an option is that of the command line, else of WSTRACE_* variables, else of --config or pyproject.toml.
In a file, the options of each plugin are in a table of its name, and the command's own are at the top:

    [tool.wstrace]              # in a --config file: without `tool.wstrace`
    exporters = ["otel"]
    fail_on_loss = true
    [tool.wstrace.page_faults]
    ring_bytes = "4MiB"
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from wstrace.errors import UsageError
from wstrace.text import nearest

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


def parse_size(text: str) -> int:
    """The number of bytes in `16MiB`, `64k` or `4096`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise ValueError(f"{text!r} is not a size such as 16MiB")
    return int(float(match[1]) * _SIZES[match[2]])


def parse_duration(text: str) -> float:
    """The number of seconds in `30s`, `5m`, `250ms` or `1.5`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or (match[2] or "s") not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration such as 30s or 5m")
    return float(match[1]) * _SECONDS[match[2] or "s"]


class Spec(NamedTuple):
    """A request for a source, exporter or enricher: its name and its options, as texts or values."""

    name: str
    options: Mapping[str, Any] = types.MappingProxyType({})


def parse_spec(text: str | Spec) -> Spec:
    """Parses `name` or `name:opt=val,opt=val`; what is a Spec already stays one.

    The text is split at the first colon, so that `path=C:\\x.wst` works; a value may contain a comma.
    Raises UsageError: an option without `=`.
    """
    if isinstance(text, Spec):
        return text
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    last = ""
    for piece in rest.split(",") if rest else ():
        key, equals, value = piece.partition("=")
        if equals and re.fullmatch(r"[a-z_][a-z0-9_]*", key):
            options[key], last = value, key
        elif last:  # This is not a new option: the comma belongs to the value before it.
            options[last] += "," + piece
        else:
            raise UsageError(f"{text!r}: {piece!r} is no option", "write NAME:option=value,option=value")
    return Spec(name, options)


class Option(NamedTuple):
    """An option of a class: its name, type annotation and default (inspect.Parameter.empty = required)."""

    name: str
    annotation: Any
    default: Any

    @property
    def type_name(self) -> str:
        """The annotation in short, such as `int` or `str | None`."""
        kind = self.annotation
        return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")

    def convert(self, value: Any) -> Any:
        """The value of a text (or of a TOML value), converted by the annotation. Raises ValueError."""
        return _convert(value, self.annotation, self.name)


def options_of(cls: type) -> dict[str, Option]:
    """The options of a source, enricher or exporter class, taken from the signature of its `__init__`."""
    init = cls.__dict__.get("__init__") or cls.__init__  # type: ignore[misc]
    return {} if init is object.__init__ else keyword_options(init)


def meanings(cls: type) -> dict[str, str]:
    """Option -> its meaning, from the section `Args:` of the class's docstring."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", inspect.getdoc(cls) or "", re.MULTILINE)
    found = re.findall(r"^    ([\w, ]+): ((?:.*\n?)(?:^     +.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for names, text in found for name in names.split(",")}


@functools.cache  # a start asks two to three times for the options of each class
def keyword_options(function: Callable[..., object]) -> dict[str, Option]:
    """The options of a function, which are its keyword-only arguments."""
    hints = typing.get_type_hints(function)
    return {
        p.name: Option(p.name, hints.get(p.name, str), p.default)
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def converted(given: Mapping[str, Any], known: Mapping[str, Option], name: str) -> dict[str, Any]:
    """The values of options that users gave, converted to their types.

    Raises UsageError: an unknown option (the message names the nearest), or a value of the wrong type.
    """
    values = {}
    for key, value in given.items():
        if key not in known:
            raise UsageError(f"{name} has no option {key!r}", nearest(key, known))
        try:
            values[key] = known[key].convert(value)
        except ValueError as wrong:
            raise UsageError(f"{name}:{key}: {wrong}") from None
    return values


def _without_swallowed_option(key: str, value: Any, known: Mapping[str, Option], name: str) -> None:
    """Raises UsageError for `path=x.wst,force`: without `=`, `force` would silently become part of the value."""
    annotation = known[key].annotation
    if not isinstance(value, str) or str not in (annotation, *_members(annotation)):
        return
    *before, last = value.split(",")
    if before and last in known:
        example = "yes" if known[last].annotation is bool else "VALUE"
        raise UsageError(
            f"{name}:{key}={value} ends in the option {last!r}, without a value", f"write {last}={example}"
        )


def build(cls: type, given: Mapping[str, Any], name: str) -> Any:
    """Creates an object of the class with these options.

    Raises UsageError: an unknown option (the message names the nearest), a wrong type, or a missing required one.
    """
    known = options_of(cls)
    for key in given.keys() & known.keys():
        _without_swallowed_option(key, given[key], known, name)
    values = converted(given, known, name)
    missing = [o.name for o in known.values() if o.default is inspect.Parameter.empty and o.name not in values]
    if missing:
        raise UsageError(f"{name} needs {missing[0]}", f"write {name}:{missing[0]}=VALUE")
    return cls(**values)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; () for any other annotation."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else ()


def _convert(value: Any, annotation: Any, name: str) -> Any:
    """The value in the type of its annotation. Raises ValueError."""
    origin = typing.get_origin(annotation)
    if members := _members(annotation):
        kinds = [kind for kind in members if kind is not type(None)]
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return _convert(value, kinds[0], name)
    if origin is Literal:
        choices = [str(choice) for choice in typing.get_args(annotation)]
        if str(value) not in choices:
            raise ValueError(f"{value!r}: {nearest(str(value), choices)}")
        return value
    if not isinstance(value, str):
        return _of_type(value, annotation)
    if annotation is bool:
        if value.lower() not in TRUE | _FALSE:
            raise ValueError(f"{value!r} is neither true nor false")
        return value.lower() in TRUE
    if annotation in (int, float):
        return annotation(_number(value, name))
    if origin in (list, tuple):
        kind = (typing.get_args(annotation) or (str,))[0]
        return origin(_convert(piece, kind, name) for piece in value.split(","))
    return value


def _of_type(value: Any, annotation: Any) -> Any:
    """A value that is no text, as of a TOML file, if it is of the plain type that the option has. Raises ValueError."""
    kind = typing.get_origin(annotation) or annotation
    if kind in (int, str, bool, list):
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    else:
        fits = kind is not float or (isinstance(value, int | float) and not isinstance(value, bool))
    if not fits:
        raise ValueError(f"{value!r} is no {_WORDS[kind]}")
    return value


_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", list: "list"}


def _number(text: str, name: str) -> float:
    """A plain number, or one with a unit: bytes for options named `*_bytes`, milliseconds for `*_ms`, else seconds."""
    try:
        return float(text) if not text.isdigit() else int(text)
    except ValueError:
        pass
    if name.endswith("_bytes"):
        return parse_size(text)
    return parse_duration(text) * (1000.0 if name.endswith("_ms") else 1.0)


#: The command line's own options: keys at the top of a configuration, and WSTRACE_<KEY> variables.
TOP = ("sources", "exporters", "output", "duration", "children", "fail_on_loss", "require", "quiet", "user")
#: Variables with the same prefix that are not options.
_OTHER_VARIABLES = {"WSTRACE_DEBUG", "WSTRACE_DISABLE_PLUGINS", "WSTRACE_LOAD_PLUGINS"}
#: The longest file: the keys that there are fill some KiB.
_FILE_BYTES = 1 << 20


class Config:
    """Values, each with its origin. layers: (origin, nested mapping), the strongest first."""

    def __init__(self, layers: list[tuple[str, Mapping[str, Any]]]) -> None:
        self._layers = layers

    @classmethod
    def load(cls, path: str | None = None, *, environ: Mapping[str, str] = os.environ, project: bool = True) -> Config:
        """The configuration of a command: variables, the file, and with `project` the local pyproject.toml.

        Raises UsageError: the file cannot be read or is not TOML.
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

        tables: name -> class of every source, enricher and exporter. top: the keys at the top that the command reads.
        Raises UsageError: a key or a table that nothing reads.
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

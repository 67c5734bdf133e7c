"""Checks of what a plugin's hooks return; each raises when a plugin returned something else, which costs only it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wstrace.declarations import Format, Reference


def is_class(role: str, cls: Any) -> None:
    """Raises TypeError for what is no subclass of that class of `interfaces` with a name."""
    from wstrace import interfaces

    base = getattr(interfaces, role)
    if not (isinstance(cls, type) and issubclass(cls, base) and isinstance(getattr(cls, "name", None), str)):
        raise TypeError(f"it gave {cls!r}, which is no {role} class with a name")


def refers_to(reference: Reference, cls: Any, role: str) -> None:
    """Raises TypeError when what was imported for a Reference is not what that says."""
    is_class(role, cls)
    for said in ("name", "takes_output", "default", "reports"):
        if getattr(cls, said, False) != (wanted := getattr(reference, said)):
            raise TypeError(f"{reference.target} is no {role} whose {said} is {wanted!r}, as its Reference says")


def _classes_of(role: str, *, references: bool = False) -> Callable[[Any], Any]:
    """Returns a check of a hook's result: every item is a class of that role, or a Reference where there may be."""

    def check(given: Any) -> Any:
        classes = list(given)
        for cls in classes:
            if not (references and isinstance(cls, Reference)):
                is_class(role, cls)
            elif not (isinstance(cls.name, str) and isinstance(cls.target, str)):
                raise TypeError(f"it gave {cls!r}, which is no Reference of two texts")
        return classes

    return check


def _stages(given: Any) -> Any:
    for stage, about in given.items():
        loss, words = about
        if not (isinstance(stage, str) and isinstance(loss, bool) and isinstance(words, str)):
            raise TypeError(f"it gave {stage!r}: {about!r}, which is no stage with (is it loss?, words)")
    return given


def _entries(role: str) -> Callable[[Any], Any]:
    """Returns a check of a hook's result: every item is one of these declarations, with a name."""

    def check(given: Any) -> Any:
        found = list(given)
        for one in found:
            if type(one).__name__ != role or not isinstance(one.name, str) or not one.name:
                raise TypeError(f"it gave {one!r}, which is no {role} with a name")
        return found

    return check


def _variables(given: Any) -> Any:
    for name, text in given.items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise TypeError(f"it gave {name!r}: {text!r}, which are not two texts")
        if not name or "=" in name or b"\0" in os.fsencode(name + text):
            raise ValueError(f"it gave {name!r}: {text!r}, which no environment takes")
    return given


def _platform(given: Any) -> Any:
    from wstrace.interfaces import Platform

    if not isinstance(given, Platform):
        raise TypeError(f"it gave {given!r}, which is no Platform")
    return given


#: hook -> the check of its result, which raises when a plugin returned something else
CHECKS: dict[str, Callable[[Any], Any]] = {
    "wstrace_sources": _classes_of("Source", references=True),
    "wstrace_enrichers": _classes_of("Enricher"),
    "wstrace_resolvers": _classes_of("Resolver"),
    "wstrace_exporters": _classes_of("Exporter", references=True),
    "wstrace_dimensions": _entries("Dimension"),
    "wstrace_measures": _entries("Measure"),
    "wstrace_stages": _stages,
    "wstrace_target_environment": _variables,
    "wstrace_platform": _platform,
}


def suffixes_of(
    plugin: str, formats: Iterable[object], taken: Mapping[str, tuple[str, Format]]
) -> dict[str, tuple[str, Format]]:
    """suffix -> (plugin, Format) for the formats that a plugin's hook returned. Raises ValueError for unusable ones."""
    found: dict[str, tuple[str, Format]] = {}
    for given in formats:
        if (
            not isinstance(given, Format)
            or given.takes not in ("rows", "trace")
            or not isinstance(given.suffixes, tuple)
        ):
            raise ValueError(f"{given!r} is no Format with suffixes=('.one', ...) and takes='rows' or 'trace'")
        if not isinstance(given.write, str) or [*map(bool, given.write.split(":"))] != [True, True]:
            raise ValueError(f"the format {given.name!r}: write={given.write!r} is not 'module:function'")
        for suffix in given.suffixes:
            if not isinstance(suffix, str) or not suffix.startswith(".") or suffix != suffix.lower() or len(suffix) < 2:
                raise ValueError(f"the format {given.name!r}: {suffix!r} is no suffix such as '.csv'")
            if suffix in taken:
                other, theirs = taken[suffix]
                raise ValueError(f"{suffix} is the format {theirs.name!r} of the plugin {other!r} already")
            if suffix in found:
                raise ValueError(f"{suffix} is named twice, the second time by the format {given.name!r}")
            found[suffix] = (plugin, given)
    return found

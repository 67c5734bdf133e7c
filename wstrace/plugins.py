"""Finds plugins: entry points of the group `wstrace`, each loaded under guard; built-in plugins are found the same way.

Hooks say what a plugin offers. The bus delivers the records, none of which passes through a hook.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pluggy

import wstrace.hookspecs
from wstrace import interfaces
from wstrace.entry_points import EntryPoint, entry_points
from wstrace.errors import Unavailable, UsageError, log, named, pass_interrupt, why
from wstrace.hookspecs import Dimension, Format, Reference
from wstrace.text import nearest

if TYPE_CHECKING:
    from wstrace.interfaces import Enricher, Exporter, Platform, Resolver, Source

#: The group of entry points, and the distribution of the built-in plugins.
GROUP = BUILT_IN = "wstrace"
#: The entry point of wstrace_plugins.os, the built-in plugin with a platform; loading all plugins takes 40 ms.
_PLATFORM = "os"
#: What pluggy.HookimplMarker puts on a function.
_MARK = f"{GROUP}_impl"
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: What failed and what to do, for a checkout whose plugins are not installed for this Python.
NOT_INSTALLED = (
    f"wstrace's own plugins are not found: {_ROOT} is not installed for {sys.executable}",
    f"run: {sys.executable} -m pip install -e {_ROOT}",
)


class Plugin:
    """One entry point. `state`: loaded, disabled, not allowed, unavailable (on this system) or failed."""

    def __init__(self, entry: EntryPoint) -> None:
        self.name, self.distribution, self.version = entry.name, entry.distribution, entry.version
        self.state, self.error = "loaded", ""
        self.hooks: list[str] = []


class _Manager(pluggy.PluginManager):
    """Looks for hooks among the marked names of a module alone: pluggy takes 20 us for each of its other names."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """The options of the hook of that name; None = it is none."""
        found = vars(plugin).get(name) if isinstance(plugin, ModuleType) else None
        if isinstance(plugin, ModuleType) and not (callable(found) and hasattr(found, _MARK)):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Plugins:
    """The plugins that were found, and the classes that they offer.

    disabled: names of plugins, sources, enrichers or exporters to switch off. allowed: names of the only plugins to
    load; None = all. third_party: False loads built-in plugins only.
    """

    def __init__(
        self, *, disabled: Iterable[str] = (), allowed: Iterable[str] | None = None, third_party: bool = True
    ) -> None:
        self._disabled = frozenset(disabled)
        self._allowed = None if allowed is None else frozenset(allowed)
        self._third_party = third_party
        self._offers: dict[str, dict[str, tuple[str, Any]]] = {}
        self._manager = _Manager(GROUP)
        self._manager.add_hookspecs(wstrace.hookspecs)
        self.found = [self._load(entry) for entry in _entry_points()]

    @classmethod
    def from_environment(
        cls, *, disabled: Iterable[str] = (), third_party: bool = True, environ: Mapping[str, str] = os.environ
    ) -> Plugins:
        """The plugins that WSTRACE_DISABLE_PLUGINS and WSTRACE_LOAD_PLUGINS permit."""
        allowed = environ.get("WSTRACE_LOAD_PLUGINS")
        return cls(
            disabled=[*disabled, *_words(environ.get("WSTRACE_DISABLE_PLUGINS", ""))],
            allowed=None if allowed is None else _words(allowed),
            third_party=third_party,
        )

    def _load(self, entry: EntryPoint) -> Plugin:
        plugin = Plugin(entry)
        if entry.name in self._disabled:
            plugin.state = "disabled"
        elif self._allowed is not None and entry.name not in self._allowed:
            plugin.state = "not allowed"
        elif not self._third_party and entry.distribution != BUILT_IN:
            plugin.state = "disabled"
        if plugin.state == "loaded":
            try:
                self._register(plugin, entry.load())
            except BaseException as broken:
                pass_interrupt(broken)
                plugin.state, plugin.error = "failed", why(broken)
        return plugin

    def _register(self, plugin: Plugin, module: Any) -> None:
        self._manager.register(module, plugin.name)
        unknown = [hook for hook in self._hooks(module) if not hasattr(wstrace.hookspecs, hook)]
        if unknown:  # pluggy itself ignores a misspelt hook
            self._manager.unregister(module)
            known = [name for name in vars(wstrace.hookspecs) if name.startswith("wstrace_")]
            raise UsageError(f"there is no hook {unknown[0]}", nearest(unknown[0], known))
        plugin.hooks = self._hooks(module)

    def _hooks(self, module: Any) -> list[str]:
        """The names of the hooks that a registered module implements."""
        return sorted(caller.name for caller in self._manager.get_hookcallers(module) or ())

    @property
    def not_installed(self) -> bool:
        """Whether no built-in plugin was found, as in a checkout that was never installed."""
        return not any(plugin.distribution == BUILT_IN for plugin in self.found)

    def _call(self, hook: str, check: Callable[[str, Any], Any], **arguments: object) -> list[Any]:
        """What `check` makes of each plugin's name and result; what either raises is recorded with the plugin."""
        results = []
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            plugin = implementation.plugin_name
            try:
                given = implementation.function(*(arguments[name] for name in implementation.argnames))
                if given is not None:
                    results.append(check(plugin, given))
            except Unavailable as absent:
                self._fail(plugin, str(absent), state="unavailable")
            except BaseException as broken:
                pass_interrupt(broken)
                self._fail(plugin, f"{hook}: {why(broken)}")
        return results

    def _fail(self, name: str, error: str, state: str = "failed") -> None:
        for plugin in self.found:
            if plugin.name == name:
                plugin.state, plugin.error = state, error

    def _offered(self, role: str) -> dict[str, tuple[str, Any]]:
        """name -> (plugin, class or Reference) of a role, such as `source`."""
        if role not in self._offers:
            found: dict[str, tuple[str, Any]] = {}
            calls = self._call(f"wstrace_{role}s", lambda plugin, given: (plugin, _offers_of(role, given)))
            for plugin, offers in calls:
                for offer in offers:
                    if offer.name in found:
                        self._fail(plugin, f"wstrace_{role}s: {offer.name!r} is taken by another plugin")
                    elif offer.name not in self._disabled:
                        found[offer.name] = plugin, offer
            self._offers[role] = found
        return self._offers[role]

    def _imported(self, role: str, name: str) -> Any:
        """The class of that name. Raises whatever its import raises, where it was offered by a Reference."""
        plugin, offer = self._offered(role)[name]
        if not isinstance(offer, Reference):
            return offer
        cls = load(offer.target)
        for said in ("name", "takes_output", "default", "reports"):
            if not _is_class(role, cls) or getattr(cls, said, False) != getattr(offer, said):
                raise TypeError(f"{offer.target} is no {role} with the {said} that its Reference has")
        self._offered(role)[name] = plugin, cls
        return cls

    def _classes(self, role: str) -> dict[str, Any]:
        """name -> class of a role, all of them imported; one that cannot be is its plugin's failure."""
        found = {}
        for name, (plugin, _) in self._offered(role).items():
            try:
                found[name] = self._imported(role, name)
            except BaseException as broken:
                pass_interrupt(broken)
                self._fail(plugin, f"wstrace_{role}s: {why(broken)}")
        return found

    @functools.cached_property
    def sources(self) -> dict[str, type[Source]]:
        """The classes of sources, by name, all of them imported."""
        return self._classes("source")

    @functools.cached_property
    def enrichers(self) -> dict[str, type[Enricher]]:
        """The classes of enrichers by name, in the order in which they run."""
        return dict(sorted(self._classes("enricher").items()))

    @functools.cached_property
    def resolvers(self) -> dict[str, type[Resolver]]:
        """The classes of resolvers, by name."""
        return self._classes("resolver")

    def make_resolvers(self) -> dict[str, Resolver]:
        """One resolver of each class by name; one whose constructor fails is logged and left out."""
        made = {}
        for name, cls in self.resolvers.items():
            try:
                made[name] = cls()
            except BaseException as error:
                pass_interrupt(error)
                log().error("resolver %s is left out: %s", name, why(error))
        return made

    @functools.cached_property
    def exporters(self) -> dict[str, type[Exporter]]:
        """The classes of exporters, by name, all of them imported."""
        return self._classes("exporter")

    @functools.cached_property
    def formats(self) -> dict[str, tuple[str, Format]]:
        """suffix -> (plugin, Format). One unusable format excludes all formats of its plugin."""
        found: dict[str, tuple[str, Format]] = {}
        self._call("wstrace_formats", lambda plugin, given: found.update(suffixes_of(plugin, given, found)))
        return found

    def failures(self, hook: str = "") -> list[str]:
        """One line for each plugin that failed so far, in this hook or in any."""
        return [
            f"plugin {plugin.name!r} failed: {plugin.error}"
            for plugin in self.found
            if plugin.state == "failed" and plugin.error.startswith(hook)
        ]

    @functools.cached_property
    def dimensions(self) -> list[Dimension]:
        """What plugins add to what rows of a report can be by."""
        return [one for found in self._call("wstrace_dimensions", _all_of(Dimension)) for one in found]

    @functools.cached_property
    def stages(self) -> dict[str, tuple[bool, str]]:
        """Ledger stages that plugins add to `wstrace.ledger.STAGES`: stage -> (whether it is loss, what it counts)."""
        found: dict[str, tuple[bool, str]] = {}
        self._call("wstrace_stages", lambda _, given: found.update(_stages(given)))
        return found

    @functools.cached_property
    def platform(self) -> Platform:
        """The platform of this system. Raises Unavailable when no plugin serves it."""
        for platform in self._call("wstrace_platform", lambda _, given: given):
            return cast("Platform", platform)
        if self.not_installed:
            raise UsageError(*NOT_INSTALLED)
        absent = sorted((p.state != "unavailable", p.error) for p in self.found if p.error)
        reasons = [error for _, error in absent] or ["no plugin serves this system"]
        raise Unavailable(f"processes cannot be traced here: {reasons[0]}")

    def target_environment(self, exporters: Sequence[str]) -> dict[str, str]:
        """Environment variables for a command that is about to be launched."""
        found: dict[str, str] = {}
        self._call("wstrace_target_environment", lambda _, given: found.update(_variables(given)), exporters=exporters)
        return found

    def defaults(self, role: str) -> list[str]:
        """The names of the sources or exporters that are used by default."""
        return self._marked(role, "default")

    def by_the_way(self) -> list[str]:
        """The specs of the sources that `wstrace run` adds where a trace is kept and no source was chosen."""
        offers = [(name, offer) for name, (_, offer) in self._offered("source").items() if isinstance(offer, Reference)]
        return [f"{name}:{offer.by_the_way}" for name, offer in offers if offer.by_the_way]

    def taking_output(self) -> list[str]:
        """The names of the exporters that write the file of `-o`."""
        return self._marked("exporter", "takes_output")

    def reporting(self) -> list[str]:
        """The names of the exporters that report at the end of the trace that was kept."""
        return self._marked("exporter", "reports")

    def _marked(self, role: str, attribute: str) -> list[str]:
        """The names of the classes with an attribute, none of them imported for it."""
        return [name for name, (_, offer) in self._offered(role).items() if getattr(offer, attribute, False)]

    def class_names(self) -> set[str]:
        """The names of all sources, enrichers, resolvers and exporters."""
        return {name for role in ("source", "enricher", "resolver", "exporter") for name in self._offered(role)}

    def class_of(self, role: str, name: str) -> type[Any]:
        """The class of a source, exporter or enricher.

        Raises UsageError: the name is unknown (the error suggests the nearest), or its plugin is not loaded;
        PluginError: it cannot be imported; Unavailable: its plugin does not serve this system.
        """
        known = self._offered(role)
        if name in known:
            with named(f"{role} {name}"):
                return cast("type[Any]", self._imported(role, name))
        for plugin in self.found:
            if plugin.name == name and plugin.state == "unavailable":
                raise Unavailable(plugin.error)
            if plugin.name == name and plugin.state != "loaded":
                raise UsageError(
                    f"{role} {name!r}: its plugin is {plugin.state} {plugin.error}".rstrip(),
                    "wstrace plugins shows all",
                )
        if self.not_installed:
            raise UsageError(*NOT_INSTALLED)
        raise UsageError(f"there is no {role} {name!r}", nearest(name, known))


def _is_class(role: str, cls: Any) -> bool:
    base = getattr(interfaces, role.capitalize())
    return isinstance(cls, type) and issubclass(cls, base) and isinstance(getattr(cls, "name", None), str)


def _offers_of(role: str, given: Any) -> list[Any]:
    """What a plugin offers of a role. Raises TypeError for what is neither a class with a name nor a Reference."""
    offers = list(given)
    for offer in offers:
        if not (isinstance(offer, Reference) and isinstance(offer.target, str)) and not _is_class(role, offer):
            raise TypeError(f"it gave {offer!r}, which is no {role} class with a name")
    return offers


def _all_of(kind: type[Any]) -> Callable[[str, Any], list[Any]]:
    """Returns a check of a hook's result: every item is one of these declarations, with a name."""

    def check(_: str, given: Any) -> list[Any]:
        found = list(given)
        for one in found:
            if not isinstance(one, kind) or not isinstance(one.name, str) or not one.name:
                raise TypeError(f"it gave {one!r}, which is no {kind.__name__} with a name")
        return found

    return check


def _stages(given: Any) -> dict[str, tuple[bool, str]]:
    for stage, (loss, words) in given.items():
        if not (isinstance(stage, str) and isinstance(loss, bool) and isinstance(words, str)):
            raise TypeError(f"it gave {stage!r}, which is no stage with (is it loss?, words)")
    return dict(given)


def _variables(given: Any) -> dict[str, str]:
    for name, text in given.items():
        if not name or "=" in name or b"\0" in os.fsencode(name + text):
            raise ValueError(f"it gave {name!r}: {text!r}, which no environment takes")
    return dict(given)


def suffixes_of(
    plugin: str, formats: Iterable[Any], taken: Mapping[str, tuple[str, Format]]
) -> dict[str, tuple[str, Format]]:
    """suffix -> (plugin, Format) for the formats that a plugin's hook returned. Raises ValueError for unusable ones."""
    found: dict[str, tuple[str, Format]] = {}
    for given in formats:
        if not isinstance(given, Format) or given.takes not in ("rows", "trace") or isinstance(given.suffixes, str):
            raise ValueError(f"{given!r} is no Format with suffixes=('.one', ...) and takes='rows' or 'trace'")
        if not isinstance(given.write, str) or [*map(bool, given.write.split(":"))] != [True, True]:
            raise ValueError(f"the format {given.name!r}: write={given.write!r} is not 'module:function'")
        for suffix in given.suffixes:
            if not suffix.startswith(".") or suffix != suffix.lower() or len(suffix) < 2:
                raise ValueError(f"the format {given.name!r}: {suffix!r} is no suffix such as '.csv'")
            if known := taken.get(suffix) or found.get(suffix):
                other, theirs = known
                raise ValueError(f"{suffix} is the format {theirs.name!r} of the plugin {other!r} already")
            found[suffix] = plugin, given
    return found


def load(target: str) -> Any:
    """The object that "module:attribute" names."""
    module, _, attribute = target.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


@functools.cache
def default_plugins() -> Plugins:
    """The plugins for embedding, found once per process as the environment variables say."""
    return Plugins.from_environment()


@functools.cache
def own_platform() -> Platform | None:
    """The Platform of this system from wstrace_plugins.os, even where that is switched off; None if there is none."""
    for entry in _entry_points():
        if (entry.distribution, entry.name) == (BUILT_IN, _PLATFORM):
            try:
                return cast("Platform", entry.load().wstrace_platform())
            except Unavailable:
                break
    return None


def _entry_points() -> list[EntryPoint]:
    """The plugins' entry points: built-in ones first, then by name; of two with one name, the first counts."""
    entries: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(GROUP), key=lambda e: (e.distribution != BUILT_IN, e.name)):
        entries.setdefault(entry.name, entry)
    return list(entries.values())


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]

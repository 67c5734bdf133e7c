"""Which native and JIT frames are the program's own: modules that are not the system's, functions of own files."""

from __future__ import annotations

import re
from typing import NamedTuple

from wstrace.analysis.own import Origin, OwnRule, Seen, package_of
from wstrace.text import base_name

#: where a system keeps what it brings; /usr/local/bin and /opt are the user's
_SYSTEM = re.compile(r"/(?:usr/(?!local/)|usr/local/lib|lib|lib64|bin|sbin|nix/store|snap)(?:/|$)|/usr/(?!local/)")
#: programs that run another one's code, and their libraries
_RUNTIME = re.compile(r"(?:lib)?(?:python|pypy|node|java|jvm|jli|ruby|perl|php|dotnet|coreclr)[\d.]*(?:[.-]|$)")
#: what V8 calls a function in a perf map: `JS:*name file:line:column`
_V8 = re.compile(r"(?:JS|LazyCompile|Function|Script|Eval):[*~^+']?(?P<name>.*?) ?(?P<file>[^ ]\S*?)(?::\d+){1,2}")
#: code of a runtime's own in a perf map
_STUB = re.compile(
    r"(?:Builtin|BytecodeHandler|Stub|RegExp|Bytecode|Handler):|Interpreter$|[a-z ]+ (?:stub|adapter|blob)s?$"
)
_JAVA = re.compile(r"(?:^|[ ;:L])(?:java|javax|jdk|sun|com[./]sun|kotlin|scala)[./]")
_MODULES = re.compile(r"/node_modules/((?:@[^/]+/)?[^/]+)/")


class Named(NamedTuple):
    """A JIT function as its runtime names it in a perf map: its name, its source file ("" = not told), whose it is."""

    function: str
    file: str
    origin: Origin
    package: str = ""


def jit_named(text: str, rule: OwnRule) -> Named:
    """What a name of a perf map tells. V8's line is where the function begins, not where it was: it is left out."""
    found = _V8.fullmatch(text)
    if found is None:
        library = _STUB.match(text) or _JAVA.search(text)
        return Named(text, "", Origin.NONE if library else Origin.OWN)
    function, file = found["name"] or "(anonymous)", found["file"].removeprefix("file://")
    if file.startswith("node:"):
        return Named(function, file, Origin.NONE)
    if package := _MODULES.findall(file):
        return Named(function, file, Origin.PACKAGE, package[-1])
    ((origin, package_name),) = rule.origins([Seen(file, begins=True)])
    return Named(function, file, origin, package_name)


def module_origin(path: str, rule: OwnRule) -> tuple[Origin, str]:
    """Whose a mapped file is, and its package: NONE of the system's, of a runtime and of what has no path."""
    ((told, package),) = rule.origins([Seen(path)])
    if told == Origin.PACKAGE:
        return told, package
    if rule.tells(path):
        return told, package
    if not path.startswith("/") or _SYSTEM.match(path) or _RUNTIME.match(base_name(path)) or told != Origin.OWN:
        return Origin.NONE, ""
    return Origin.OWN, package_of(path)

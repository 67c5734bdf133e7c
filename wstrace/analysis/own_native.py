"""Classifies native modules and JIT functions: the program's own code, packages, the system and language runtimes."""

from __future__ import annotations

import re
from typing import NamedTuple

from wstrace.analysis.own import Origin, OwnRule, SourceFile, package_of
from wstrace.text import base_name

#: folders of the system's own files; /usr/local/bin and /opt belong to the user
_SYSTEM = r"/(?:usr/(?!local/)|usr/local/lib|lib|lib64|bin|sbin|nix/store|snap)(?:/|$)|/usr/(?!local/)"
#: folders of the headers of C++ compilers, and of the sources of Rust's library
_HEADERS = r"/include/c\+\+/|/lib/(?:gcc|clang|llvm-[\d.]+)/|^/rustc/"
#: language runtimes, and their libraries
_RUNTIME = r"(?:lib)?(?:python|pypy|node|java|jvm|jli|ruby|perl|php|dotnet|coreclr)[\d.]*(?:[.-]|$)"
#: what V8 calls a function in a perf map: `JS:*name file:line:column`; both may contain spaces, as `get x` does
_FILE = r"(?:/|file:|node:).*?|[^ ]\S*?"
_V8 = rf"(?:JS|LazyCompile|Function|Script|Eval):[*~^+']?(?:(?P<name>.*?) )?(?P<file>{_FILE})(?::\d+){{1,2}}"
#: names in a perf map of code that belongs to the runtime
_STUB = r"(?:Builtin|BytecodeHandler|Stub|RegExp|Bytecode|Handler):|Interpreter$|[a-z ]+ (?:stub|adapter|blob)s?$"
_JAVA = r"(?:^|[ ;:L])(?:java|javax|jdk|sun|com[./]sun|kotlin|scala)[./]"
_MODULES = r"/node_modules/((?:@[^/]+/)?[^/]+)/"


class JitFunction(NamedTuple):
    """A function that a runtime compiled: its name, its source file ("" = not known), and whose code it is."""

    function: str
    file: str
    origin: Origin
    package: str = ""


def jit_function(symbol: str, rule: OwnRule) -> JitFunction:
    """Parses a symbol of a perf map. The line in V8's symbols is left out: it is the function's first one."""
    found = re.fullmatch(_V8, symbol)
    if found is None:
        library = re.match(_STUB, symbol) or re.search(_JAVA, symbol)
        return JitFunction(symbol, "", Origin.NONE if library else Origin.OWN)
    function, file = found["name"] or "(anonymous)", found["file"].removeprefix("file://")
    if file.startswith("node:"):
        return JitFunction(function, file, Origin.NONE)
    if package := re.findall(_MODULES, file):
        return JitFunction(function, file, Origin.PACKAGE, package[-1])
    ((origin, package_name),) = rule.origins([SourceFile(file, outermost=True)])
    return JitFunction(function, file, origin, package_name)


def is_own(path: str, rule: OwnRule) -> bool:
    """Whether a source file of code in the program's own module is the program's: not one of the system's headers.

    A file that is not known ("") is taken for own.
    """
    ((origin, _),) = rule.origins([SourceFile(path)])
    if rule.names(path):
        return origin == Origin.OWN
    return not path or (origin == Origin.OWN and not re.match(_SYSTEM, path) and not re.search(_HEADERS, path))


def module_origin(path: str, rule: OwnRule) -> tuple[Origin, str]:
    """Whose code a mapped file is, and its package; NONE of the system, of a runtime, and of what has no path."""
    ((origin, package),) = rule.origins([SourceFile(path)])
    if origin == Origin.PACKAGE or rule.names(path):
        return origin, package
    if (
        not path.startswith("/")
        or re.match(_SYSTEM, path)
        or re.match(_RUNTIME, base_name(path))
        or origin != Origin.OWN
    ):
        return Origin.NONE, ""
    return Origin.OWN, package_of(path)

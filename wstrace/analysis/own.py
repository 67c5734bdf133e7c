"""Classifies source files: the program's own code, installed packages, the interpreter's library."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from wstrace.text import base_name

#: folders of the system's own files; /usr/local/bin and /opt belong to the user
_SYSTEM = r"/(?:usr/local/lib|lib|lib64|bin|sbin|nix/store|snap)(?:/|$)|/usr/(?!local/)"
#: folders of the headers of C++ compilers, and of the sources of Rust's library
_HEADERS = r"/include/c\+\+/|/lib/(?:gcc|clang|llvm-[\d.]+)/|^/rustc/"
#: language runtimes, and their libraries
_RUNTIME = r"(?:lib)?(?:python|pypy|node|java|jvm|jli|ruby|perl|php|dotnet|coreclr)[\d.]*(?:[.-]|$)"
#: what V8 calls a function in a perf map: `JS:*name file:line:column`; both may contain spaces, as `get x` does
_FILE = r"(?:/|file:|node:).*?|[^ ]\S*?"
_V8 = rf"(?:JS|LazyCompile|Function|Script|Eval):[*~^+']?(?:(?P<name>.*?) )?(?P<file>{_FILE})(?::\d+){{1,2}}"
#: names in a perf map of code that belongs to the runtime
_STUB = (
    r"(?:Builtin|BytecodeHandler|Stub|RegExp|Bytecode|Handler):|Interpreter$|StubRoutines|"
    r"[a-z ]+ (?:stub|adapter|blob)s?$"
)
_JAVA = r"(?:^|[ ;:L])(?:java|javax|jdk|sun|com[./]sun|kotlin|scala)[./]"
#: a function of Go's standard library: its package first, as `internal/abi.Name`; not a part of a C function `sort`
_GO = (
    r"(?:archive|bufio|bytes|cmp|compress|container|context|crypto|database|debug|embed|encoding|errors|expvar|flag|"
    r"fmt|go|hash|html|image|index|internal|io|iter|log|maps|math|mime|net|os|path|plugin|reflect|"
    r"regexp|runtime|slices|sort|strconv|strings|structs|sync|syscall|testing|text|time|unicode|unique|vendor|weak)"
    r"(?:/|\.(?!(?:part|isra|constprop|cold|lto_priv|llvm)\b))"
)
_MODULES = r"/node_modules/((?:@[^/]+/)?[^/]+)/"

#: the prefix of a path below `lib/pythonX.Y`; group 1 is the folder that holds `lib`
# Patterns are texts: most traces need none of them, and each would take 0.3 ms of every start.
_LIBRARY = r"^(.*/)?lib(?:64)?/(?:python|pypy)\d[\d.]*t?/"
_ZIPPED = r"/python\d+\.zip/"
_PACKAGES = r"(?:^|/)(?:site|dist)-packages/([^/]+)"
_PACKAGES_FOLDER = r"^.*/(?:site|dist)-packages/"
#: `.libs`: the folder of the libraries that a wheel brings along for its package
_SUFFIX = r"\.(?:py|pyc|pyx|so|libs)$"
#: the names that interactive sessions give to what a user types
_INTERACTIVE = ("<stdin>", "<console>", "<python-input", "<ipython-input", "<doctest")
#: `./` and `../` at the start of a relative path
_RELATIVE = r"^(?:\.\.?/)+"
_SCRIPTS = ("bin", "sbin")


class Origin(IntEnum):
    """Where code comes from. A stack is attributed to its innermost frame of the highest origin."""

    #: no source file is known
    NONE = 0
    #: a language's runtime, as libjvm.so: its functions say more than those of libc that they call
    RUNTIME = 1
    #: generated code, which has no file: a dataclass's `__init__`, a template, what a JIT compiler has made
    GENERATED = 2
    LIBRARY = 3
    #: a script that an installer writes to start a package: `bin/pytest`
    ENTRY_SCRIPT = 4
    PACKAGE = 5
    #: a program of the system's, as /usr/bin/redis-server: the innermost of its functions names what its libraries did
    PROGRAM = 6
    #: code without a file that a user typed: `python -c`, a console, a notebook. It ranks below files of the program.
    INTERACTIVE = 7
    OWN = 8


class SourceFile(NamedTuple):
    """A source file of a trace, and which of its code was on the stacks.

    path is its name. only_module: no code object of it but `<module>` was on a stack; only then is a script beside an
    interpreter's folders taken for an ENTRY_SCRIPT. outermost: its `<module>` was the outermost frame of a stack; only
    then is code without a file taken for INTERACTIVE.
    """

    path: str
    only_module: bool = False
    outermost: bool = False


class OwnRule:
    """Decides by its path where the code of a source file comes from.

    A file is the program's own if it lies outside of `lib/pythonX.Y`, `site-packages` and `dist-packages` and is not
    `<frozen ...>`.
    own: files and folders that are the program's own wherever they lie. not_own: files and folders that are not. The
    deepest folder of both lists that holds a file decides.
    """

    def __init__(self, own: Sequence[str] = (), not_own: Sequence[str] = ()) -> None:
        named = [(path, True) for path in own] + [(path, False) for path in not_own]
        self._named = sorted(
            ((folder, is_own) for path, is_own in named for folder in {slashed(path), slashed(os.path.abspath(path))}),
            key=lambda one: -len(one[0]),
        )

    def names(self, path: str) -> bool:
        """Whether `own` or `not_own` names this file or a folder that holds it."""
        path = slashed(path)
        return any(_is_below(path, folder) for folder, _ in self._named)

    def origins(self, files: Iterable[SourceFile]) -> list[tuple[Origin, str]]:
        """For each file its origin, and the package that it belongs to ("" = none)."""
        files = [file._replace(path=_plain(file.path)) for file in files]
        prefixes = {match[1] or "" for file in files if (match := re.match(_LIBRARY, file.path))}
        return [self._origin(file, prefixes) for file in files]

    def _origin(self, file: SourceFile, prefixes: set[str]) -> tuple[Origin, str]:
        """The origin of a file, and its package. prefixes: the folders that hold the `lib` of an interpreter."""
        path = file.path
        if not path:
            return Origin.NONE, ""
        package = package_of(path)
        for folder, is_own in self._named:
            if _is_below(path, folder):
                return (Origin.OWN, package) if is_own else (Origin.PACKAGE, package or base_name(folder))
        if path.startswith("<"):
            if path.startswith("<frozen"):
                return Origin.LIBRARY, ""
            return (Origin.INTERACTIVE if file.outermost or path.startswith(_INTERACTIVE) else Origin.GENERATED), ""
        if package:
            return Origin.PACKAGE, package
        if re.match(_LIBRARY, path) or re.search(_ZIPPED, path):
            return Origin.LIBRARY, ""
        folder, _, name = path.rpartition("/")
        above, _, last = folder.rpartition("/")
        above = re.sub(_RELATIVE, "", f"{above}/")
        beside = above in prefixes or any(prefix.endswith(f"/{above}") for prefix in prefixes)
        if file.only_module and last in _SCRIPTS and beside and "." not in name:
            return Origin.ENTRY_SCRIPT, name
        return Origin.OWN, ""


def short_path(path: str, shared: str = "") -> str:
    """A source file as tables show it: relative to `site-packages`, to the library, or to the folder `shared`."""
    path = slashed(path)
    for known in (_PACKAGES_FOLDER, _LIBRARY):
        if match := re.match(known, path):
            return path[match.end() :]
    return path.removeprefix(shared)


def shared_folder(paths: Iterable[str]) -> str:
    """The deepest folder that holds all these files, with a slash at its end; "" = there is none."""
    folders = [slashed(path).rpartition("/")[0].split("/") for path in paths]
    shared = []
    for together in zip(*folders, strict=False):
        if len(set(together)) > 1:
            break
        shared.append(together[0])
    return "/".join(shared) + "/" if any(shared) else ""


def package_of(path: str) -> str:
    """The package that a file below `site-packages` or `dist-packages` belongs to; "" elsewhere."""
    found = re.findall(_PACKAGES, slashed(path))
    return re.sub(_SUFFIX, "", found[-1]) if found else ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def slashed(path: str) -> str:
    """The path of Windows or Linux with `/` between its parts."""
    return path.replace("\\", "/")


def _plain(path: str) -> str:
    """The path without `/./` and `/../`, which CPython keeps of a script that is started by `../bin/gunicorn`."""
    path = slashed(path)
    return posixpath.normpath(path) if re.search(r"/\.\.?/", path) else path


class JitFunction(NamedTuple):
    """A function that a runtime compiled: its name, its source file ("" = not known), and its origin."""

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


def is_own(path: str, rule: OwnRule, function: str) -> bool:
    """Whether code in the program's own module is the program's: none of the system's headers, nor of Go's library.

    path: its source file; one that is not known ("") is taken for own.
    """
    ((origin, _),) = rule.origins([SourceFile(path)])
    if rule.names(path):
        return origin == Origin.OWN
    if re.match(_GO, function):
        return False
    return not path or (origin == Origin.OWN and not re.match(_SYSTEM, path) and not re.search(_HEADERS, path))


def module_origin(path: str, rule: OwnRule) -> tuple[Origin, str]:
    """The origin of a mapped file, and its package; NONE of a library."""
    if path == "[anon]":
        return Origin.GENERATED, ""
    ((origin, package),) = rule.origins([SourceFile(path)])
    if origin == Origin.PACKAGE or rule.names(path):
        return origin, package
    name, system = base_name(path), re.match(_SYSTEM, path)
    if re.match(_RUNTIME, name):
        return Origin.RUNTIME, ""
    if not path.startswith("/") or origin != Origin.OWN or (system and ".so" in name):
        return Origin.NONE, ""
    return Origin.PROGRAM if system else origin, ""

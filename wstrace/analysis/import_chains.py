"""Which modules were being imported when a stack was read: the chain of the imports within each other.

Every import statement, `__import__` and `importlib.import_module` of a module that is not there yet runs
`_find_and_load` of the frozen `importlib._bootstrap`, in all versions of CPython from 3.3 on. Below it the module's own
`<module>` names it; an extension module has none, but is created by `create_module`. `importlib.reload` and loaders
that a program calls by hand run a `<module>` from within the import system, without `_find_and_load`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.own import short_path
from wstrace.schema import FRAME_CUT

#: The files of the import system, and that of modules in archives.
_SYSTEM = ("<frozen importlib", "<frozen zipimport")
_OTHER, _FIND, _UNLOCKED, _CALL, _LOAD, _MODULE = range(6)
_ROLES = {"_find_and_load": _FIND, "_find_and_load_unlocked": _UNLOCKED, "_call_with_frames_removed": _CALL,
          "exec_module": _LOAD, "create_module": _LOAD}  # fmt: skip
#: Stands in chains for the imports that a stack lacks which was cut.
CUT_SITE = -1
#: Imports within each other that are told apart: Python itself gives up at 1,000 frames, of which each needs five.
DEEPEST = 128


class Import(NamedTuple):
    """An import, as stacks show it.

    outer: the number of the import within which it happens, 0 = none. depth: how many there are with it. site: the call
    site that imports, or the first frame within the import system. file: the code of the file whose `<module>` ran, 0 =
    none yet. running: whether the module's own code runs, its `<module>` or what makes an extension module; else it is
    being found and read. package: whether it is imported as the package that holds the outer one.
    """

    outer: int
    depth: int
    site: int
    file: int = 0
    running: bool = False
    package: bool = False


class ImportChains:
    """The imports of stacks.

    Args:
        tree: the call sites. leaves: innermost call sites of stacks, shape (n,).

    Attributes:
        imports: by number; that at 0 stands for none.
        of: of each leaf the number of its innermost import.
        programs: codes of the files that ran without being imported.
    """

    def __init__(self, tree: CallTree, leaves: NDArray[np.intp]) -> None:
        self._tree, self._role = tree, _roles(tree)
        self.imports: list[Import] = [Import(0, 0, 0)]
        self.programs: set[int] = set()
        self._numbers: dict[Import, int] = {self.imports[0]: 0}
        self._of: dict[int, int] = {0: 0}
        self._parent = tree.column("parent")
        self.of = np.array([self._innermost(leaf) for leaf in leaves.tolist()], np.intp)

    def _innermost(self, leaf: int) -> int:
        way = []
        while leaf not in self._of:
            way.append(leaf)
            leaf = int(self._parent[leaf])
        found = self._of[leaf]
        for site in reversed(way):
            found = self._of[site] = self._entered(site, found)
        return found

    def _entered(self, site: int, number: int) -> int:
        """The innermost import of a call site, of which its caller has that number."""
        parent, role, now = int(self._parent[site]), int(self._role[site]), self.imports[number]
        above = int(self._role[parent])
        if not parent and self._tree.column("flags")[site] & FRAME_CUT:
            number = self._number(Import(0, 1, CUT_SITE, running=True))
            now = self.imports[number]
        if role == _FIND:
            package = above == _CALL and self._role[self._parent[parent]] == _UNLOCKED
            return self._number(Import(number, now.depth + 1, parent, package=bool(package)))
        if role == _MODULE:
            return self._module(site, number, by_system=above == _CALL)
        if role == _CALL and above == _LOAD and now.depth and not now.running:
            return self._number(now._replace(running=True))
        return number

    def _module(self, site: int, number: int, *, by_system: bool) -> int:
        now, file = self.imports[number], int(self._tree.column("file")[site])
        if now.depth and not now.file and now.site != CUT_SITE:
            return self._number(now._replace(file=file, running=True))
        if by_system:
            return self._number(Import(number, now.depth + 1, int(self._parent[site]), file, running=True))
        if not now.depth:
            self.programs.add(file)
        return number

    def _number(self, found: Import) -> int:
        if found.depth > DEEPEST:
            return found.outer
        if found not in self._numbers:
            self._numbers[found] = len(self.imports)
            self.imports.append(found)
        return self._numbers[found]

    def place(self, site: int) -> str:
        """Where it was imported: `pandas/core/api.py:9`, the innermost line outside of the import system."""
        tree = self._tree
        while site > 0 and tree.text(int(tree.column("file")[site])).startswith("<frozen "):
            site = int(self._parent[site])
        if site <= 0:
            return ""
        return f"{short_path(tree.text(int(tree.column('file')[site])))}:{tree.column('line')[site]}"


def _roles(tree: CallTree) -> NDArray[np.uint8]:
    """By id, what a call site does in an import."""
    ids = tree.ids()
    functions, files = tree.column("function"), tree.column("file")
    named = {code: tree.text(code) for code in np.unique(functions[ids]).tolist()}
    role = np.zeros(max(named, default=0) + 1, np.uint8)
    for code, name in named.items():
        role[code] = _ROLES.get(name.rpartition(".")[2], _OTHER)  # up to 3.10 without the class
    system = [code for code in np.unique(files[ids]).tolist() if tree.text(code).startswith(_SYSTEM)]
    module = [code for code, name in named.items() if name == "<module>"]
    found = np.zeros(len(functions), np.uint8)
    found[ids] = np.where(np.isin(files[ids], system), role[functions[ids]], _OTHER)
    found[ids[np.isin(functions[ids], module)]] = _MODULE
    return found

"""A plugin that misbehaves: the module `evil`, and the distribution around it that makes wstrace find it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Enricher, Exporter, Level, Resolver, Source

BASES = {"source": Source, "exporter": Exporter, "enricher": Enricher, "resolver": Resolver}


def misbehave(how: str) -> Any:
    """Raises, exits, hangs, runs out of memory or gives back what nobody wants."""
    if how == "raise":
        raise RuntimeError("boom")
    if how == "exit":
        sys.exit(3)
    if how == "memory":
        raise MemoryError
    if how == "base":
        raise BaseException("boom")
    if how == "generator":
        raise GeneratorExit
    if how == "hang":
        time.sleep(1000)
    return 5


def evil(role: str, method: str, how: str) -> type[Any]:
    """A class of that role, named `bad`, whose method misbehaves and whose others do nothing."""

    def act(*_, **__):
        return misbehave(how)

    namespace = {"name": "bad", "default": False, "streams": () if role == "source" else None}
    base = BASES[role]
    for name in getattr(base, "__abstractmethods__", ()):
        namespace[name] = lambda self, *a, **k: ()
    if role == "enricher":
        namespace["enrich"] = lambda self, batch: [batch]
    if role == "source":
        namespace["probe"] = classmethod(lambda cls: Level("full"))
    wrapped = {"finished": property, "probe": classmethod}.get(method, lambda f: f)
    namespace[method] = wrapped(act)
    return type("Bad", (base,), namespace)


#: $EVIL is role:method:how, what the installed plugin does
ROLE, _, _REST = os.environ.get("EVIL", "").partition(":")
_METHOD, _, _HOW = _REST.partition(":")
if ROLE == "hook":

    def _hook(*_: object, **__: object) -> Any:
        return misbehave(_HOW)

    _hook.__name__ = _METHOD
    globals()[_METHOD] = hookimpl(_hook)
    del _hook
elif ROLE:
    globals()[f"wstrace_{ROLE}s"] = hookimpl(lambda: [evil(ROLE, _METHOD, _HOW)])


def install(folder: Path) -> None:
    """Makes the distribution `evil` in a folder that is then put on PYTHONPATH."""
    about = folder / "evil-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[wstrace]\nevil = evil\n")
    (folder / "evil.py").write_text(Path(__file__).read_text("utf-8"))

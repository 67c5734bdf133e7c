"""Entry points that are not installed: plugins made up by a test."""

import types

from wstrace.hookspecs import hookimpl


class Entry:
    """An entry point as wstrace.entry_points gives it."""

    def __init__(self, name, module, dist="outside"):
        self.name, self.value, self._module = name, name, module
        self.distribution, self.version = dist, "1.0"

    def load(self):
        if isinstance(self._module, Exception):
            raise self._module
        return self._module


def module(**hooks):
    made = types.ModuleType("made")
    for name, function in hooks.items():
        setattr(made, name, hookimpl(function))
    return made

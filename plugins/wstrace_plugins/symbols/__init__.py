"""Image sections and symbols: which section and function of a PE or ELF file an address lies in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Resolver


@hookimpl
def wstrace_resolvers() -> Sequence[type[Resolver]]:
    """The resolver `sections`."""
    from wstrace_plugins.symbols.resolver import ImageResolver

    return [ImageResolver]

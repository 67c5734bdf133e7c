"""Native stacks: unwinds the stacks of sampled page faults, and adds them to the faults' rows.

The source `page_faults` gives registers and stack bytes of sampled faults (`stacks=native`) as the internal stream
`stack_dump`. The enricher `native_stacks` runs behind `mapped_files`, unwinds them, and drops the bytes: only call
sites go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Enricher


@hookimpl
def wstrace_enrichers() -> Sequence[type[Enricher]]:
    """The enricher `native_stacks`."""
    from wstrace_plugins.stacks.enricher import NativeStacks

    return [NativeStacks]

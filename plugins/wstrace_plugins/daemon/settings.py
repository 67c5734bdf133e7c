"""What the file `--config` of the daemon says: its own table, and those of the sources and exporters it names."""

from __future__ import annotations

import ipaddress
from typing import Any

from wstrace.errors import UsageError
from wstrace.interfaces import Exporter, Source
from wstrace.options import Config, Spec, build, options_of, parse_size, parse_spec
from wstrace.plugins import Plugins

#: the keys at the top of the file, with their defaults; the command line's other ones describe a trace that ends
_DEFAULTS: dict[str, list[str]] = {"sources": ["page_faults"], "exporters": []}
_TABLE = "daemon"
#: what options are in a daemon where the file does not set them: nobody waits for the next record
_OF_A_DAEMON: dict[str, Any] = {"resume": True, "poll_ms": 2000}
#: what the daemon takes without any record, and the least that a queue needs: one read of the kernel's buffers
_LEAST_MEMORY, _LEAST_QUEUE = 96 << 20, 4 << 20


class Daemon:
    """The table `[daemon]`: what the daemon may take for itself, and where it answers.

    Args:
        cgroups: which control groups are traced, with all below them: their paths, or globs; [] = every process.
        max_cpu: at most this part of one CPU, on the average of some minutes: past it faults are sampled, and each row
            says for how many it stands; then records wait in the kernel, which drops and counts them.
        max_memory: at most so much resident memory ("160MiB"): past it the session ends, and faults are only counted
            until the daemon has rested.
        health: where it says its state: "127.0.0.1:9465", or "" for nowhere.

    Raises:
        UsageError: a value is out of its range.
    """

    def __init__(
        self,
        *,
        cgroups: list[str] | None = None,
        max_cpu: float = 0.05,
        max_memory: str = "160MiB",
        health: str = "127.0.0.1:9465",
    ) -> None:
        if not 0 < max_cpu <= 64:
            raise UsageError(f"daemon: max_cpu is {max_cpu}", "give a part of one CPU: 0.05 is 5 %")
        try:
            self.max_memory = parse_size(max_memory)
        except ValueError as wrong:
            raise UsageError(f"daemon: max_memory: {wrong}") from None
        if self.max_memory < _LEAST_MEMORY:
            raise UsageError(f"daemon: max_memory is {max_memory}", "the daemon itself needs 96MiB: give more")
        if not all(isinstance(path, str) for path in cgroups or ()):
            raise UsageError(f"daemon: cgroups is {cgroups}", 'give paths or globs: ["/system.slice"]')
        self.cgroups = cgroups or []
        self.max_cpu = float(max_cpu)
        self.health = address(health)


def address(text: str) -> tuple[str, int] | None:
    """Where the daemon says its state: (host, port) on this machine; None = nowhere.

    Raises:
        UsageError: the address is none, or one that other machines reach.
    """
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    try:
        local, number = ipaddress.ip_address(host).is_loopback, int(port)
    except ValueError:
        raise UsageError(f"daemon: health is {text!r}", "write 127.0.0.1:9465") from None
    if not local or not 0 <= number <= 65535:
        raise UsageError(
            f"daemon: health is {text!r}: it tells what runs on this machine",
            "give an address of it, as 127.0.0.1:9465",
        )
    return host, number


class Settings:
    """All that a file says, checked.

    Args:
        config: the values: the table `[daemon]`, and those of the sources and exporters.
        plugins: where names come from.

    Attributes:
        own: the table `[daemon]`.

    Raises:
        UsageError: a key, a table, a name or a value is not known.
    """

    def __init__(self, config: Config, plugins: Plugins) -> None:
        config.check(
            {**plugins.sources, **plugins.enrichers, **plugins.exporters, _TABLE: Daemon}, top=tuple(_DEFAULTS)
        )
        self._config, self._plugins = config, plugins
        self.own: Daemon = build(Daemon, config.options(Daemon, Spec(_TABLE)), _TABLE)
        self._sources, self._exporters = (_specs(key, config) for key in _DEFAULTS)
        self.make()  # so that wrong options are said now

    def make(self) -> tuple[list[Source], list[Exporter]]:
        """New sources and exporters for one session; nothing of them is open yet. Raises UsageError."""
        return [self._made("source", spec) for spec in self._sources], [
            self._made("exporter", spec) for spec in self._exporters
        ]

    def _made(self, role: str, spec: Spec) -> Any:
        """The source or exporter, with the options of its table; an output that is there already is continued."""
        cls = self._plugins.class_of(role, spec.name)
        of_a_daemon = {name: value for name, value in _OF_A_DAEMON.items() if name in options_of(cls)}
        return build(cls, {**of_a_daemon, **self._config.options(cls, spec)}, spec.name)

    @property
    def queue_bytes(self) -> int:
        """The bytes that each queue may hold: what the daemon may hold beyond its own need, divided among them."""
        queues = 1 + len(self._exporters)
        return max(_LEAST_QUEUE, (self.own.max_memory - _LEAST_MEMORY) // (2 * queues))


def _specs(key: str, config: Config) -> list[Spec]:
    named: Any = config.get(key, _DEFAULTS[key])
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UsageError(f"{key} is {named!r}", f'write {key} = ["NAME", "NAME:option=value"]')
    if not named and key == "sources":
        raise UsageError("sources is []: nothing would be traced", 'write sources = ["page_faults"]')
    return [parse_spec(name) for name in named]

"""Resources: one per traced process, one for the tracer itself. A command's arguments are left out by default.

The SDK's `process` detector is not used: it stamps the pid of the tracer on what the target did.
"""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import Process, clean

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource


def of_process(process: Process, realtime_ns: int, command: list[str], *, arguments: bool) -> Resource:
    """The resource of a traced process, or of all past the bound.

    realtime_ns: wall time of its start, ns since the epoch; 0 = not known. command: of the launched target; its base
    name is the service's where OTEL_SERVICE_NAME names none. arguments: whether the command's arguments are sent: they
    may hold secrets.
    """
    service = command[0] if command else process.name
    found: dict[str, Any] = {names.SERVICE_NAME: clean(base_name(service)) or "unknown_service", names.ROLE: "target"}
    if not process.pid:
        found[names.ROLE] = names.OTHER
    else:
        found[names.PROCESS_PID] = process.pid
        if process.parent:
            found[names.PROCESS_PARENT_PID] = process.parent
        if process.name:
            found[names.PROCESS_NAME] = clean(base_name(process.name))
        if realtime_ns:
            start = datetime.datetime.fromtimestamp(realtime_ns / 1e9, datetime.UTC)
            found[names.PROCESS_CREATION] = start.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if arguments and command:
            found[names.PROCESS_ARGUMENTS] = [clean(word) for word in command]
    return _create(found)


def of_container(container: str, pod: str, path: str) -> Resource:
    """The resource of a container, of a pod, of another cgroup, or of all that found no room.

    It names no service: that is for the Collector, which knows more of a container than its cgroup tells.
    container: its id. pod: its uid. path: of the cgroup. Each is "" where there is none.
    """
    found = {names.CONTAINER_ID: container, names.POD_UID: pod, names.CGROUP: clean(path)}
    attributes: dict[str, Any] = {key: text for key, text in found.items() if text}
    return _create({**attributes, names.ROLE: "target" if attributes else names.OTHER})


def of_tracer() -> Resource:
    """The resource of wstrace's own process."""
    return _create({names.SERVICE_NAME: "wstrace", names.ROLE: "tracer", names.PROCESS_PID: os.getpid()})


def _create(attributes: dict[str, Any]) -> Resource:
    """The resource of these attributes and the environment's; of two, ours count, but for the service's name."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    known = dict(found.attributes)
    service = str(known.pop(names.SERVICE_NAME, "unknown_service"))
    known |= attributes
    if not service.startswith("unknown_service"):  # which is the SDK's own word
        known[names.SERVICE_NAME] = service
    return Resource(known, found.schema_url)

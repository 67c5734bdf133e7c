"""What the path of a cgroup tells: the container, the pod, the unit of systemd. Names are never guessed from elsewhere.

Docker, containerd, CRI-O and Podman name a container's cgroup by its id of 64 hex digits; with systemd as the manager
`docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`, `libpod-ID.scope`, else the bare id. Kubernetes names a
pod's cgroup `pod` and its uid, in which systemd's form has `_` for `-`.

Source: opencontainers/runc libcontainer/cgroups/systemd getUnitName(); kubernetes pkg/kubelet/cm
cgroup_manager_linux.go; containers/podman libpod/container_internal_linux.go; systemd src/basic/cgroup-util.c
cg_escape().
"""

from __future__ import annotations

import re

#: The last part of a name before the id: of conmon, which supervises a container and is not in it, there is none.
_CONTAINER = re.compile(r"(?:^|(?<!conmon)[-:])([0-9a-f]{64})(?:\.scope)?$")
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?::[^/]*)?$")
UNITS = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")


def container_id(path: str) -> str:
    """The id (64 hex digits) of the innermost container that a cgroup's path names; "" = none."""
    return next((found[1] for name in _innermost_first(path) if (found := _CONTAINER.search(name))), "")


def own_container_id(path: str) -> str:
    """The id of the container whose own cgroup this is: that of its last name alone; "" = none."""
    found = _CONTAINER.search(path.rpartition("/")[2])
    return found[1] if found else ""


def pod_uid(path: str) -> str:
    """The uid of the innermost pod of Kubernetes that the path names, with `-`; "" = none."""
    found = next((found[1] for name in _innermost_first(path) if (found := _POD.search(name))), "")
    return found.replace("_", "-")


def unit(path: str) -> str:
    """The innermost unit of systemd that the path names: `nginx.service`; "" = none, or only slices."""
    names = [own_unit(name) for name in _innermost_first(path)]
    return next((name for name in names if name and not name.endswith(".slice")), "")


def own_unit(path: str) -> str:
    """The unit whose own cgroup this is, a slice too; "" = none. systemd puts `_` before a name that would mislead."""
    name = path.rpartition("/")[2].removeprefix("_")
    return name if name.endswith(UNITS) else ""


def _innermost_first(path: str) -> list[str]:
    return path.split("/")[::-1]

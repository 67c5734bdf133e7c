"""A Python of the user nobody that imports wstrace, wherever the checkout and this environment lie.

CI may build both below folders that only root may enter. Each folder of sys.path that is closed to other users is
therefore mounted at an open place for as long as it is needed.
"""

import contextlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BECOME = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
#: setpriv itself still has the rights of root when it executes its program: what that executes counts
_AGAIN = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import wstrace, numpy, click'])"


@dataclass(frozen=True)
class Nobody:
    """`[*command, "-m", "wstrace"]` with this environment runs wstrace as the user nobody."""

    command: list[str]
    environment: dict[str, str]


def _entered_by_all(folder: Path) -> bool:
    return folder.stat().st_mode & 0o005 == 0o005 and all(one.stat().st_mode & 0o001 for one in folder.parents)


@contextlib.contextmanager
def _open_to_all(folders: list[Path]) -> Iterator[list[Path]]:
    """The same folders, the closed ones at places that everybody may enter."""
    with contextlib.ExitStack() as stack:
        mounted = {}
        for folder in sorted(folders):  # a folder stands before what is in it
            if _entered_by_all(folder) or any(folder.is_relative_to(above) for above in mounted):
                continue
            place = Path(tempfile.mkdtemp(prefix="wstrace-nobody-"))
            stack.callback(place.rmdir)
            subprocess.run(["mount", "--bind", folder, place], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", place], check=True)
            mounted[folder] = place
        places = []
        for folder in folders:
            above = next((one for one in mounted if folder.is_relative_to(one)), None)
            places.append(mounted[above] / folder.relative_to(above) if above else folder)
        yield places


@contextlib.contextmanager
def nobody() -> Iterator[Nobody]:
    """Skips the test where the user nobody can execute no Python of this version."""
    version = "{}.{}".format(*sys.version_info)
    stdlib = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
    own = [Path(part) for part in sys.path if part.endswith("-packages") or not part.startswith(stdlib)]
    with _open_to_all([folder for folder in own if folder.is_dir()]) as folders:
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(map(str, folders)), "COLUMNS": "200"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        answers = []
        for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
            command = [*BECOME, python]
            try:
                done = subprocess.run(
                    [*command, "-c", _AGAIN], env=environment, cwd="/", capture_output=True, text=True
                )
            except OSError as error:
                pytest.skip(f"setpriv: {error}")
            if done.returncode == 0:
                yield Nobody(command, environment)
                return
            answers.append(f"{python}: {done.stderr[-200:]}")
        pytest.skip(f"the user nobody can execute no Python {version} that finds wstrace: {'; '.join(answers)}")

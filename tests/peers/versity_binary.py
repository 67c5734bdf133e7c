"""The program of the S3 server of the tests, versitygw: built once with Go into the user's cache.

    python tests/peers/versity_binary.py       # builds it where that has not been done, and prints its path

The binary stands in ~/.cache/wstrace/versitygw-VERSION (WSTRACE_CACHE moves it). From a cold cache of modules its build
took 140 to 190 s on two busy processors, of which 46 s were work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from built_with_go import built_once, go

VERSION = "v1.8.0"


def binary() -> Path:
    """The path of the built server, building it first where that has not been done. Raises NoGo."""
    return built_once(f"versitygw-{VERSION}", _build)


def _build(built: Path) -> None:
    program = go("versitygw")
    with tempfile.TemporaryDirectory() as work:  # its modules and objects are of no use to anything else
        folders = {"GOBIN": work, "GOPATH": f"{work}/modules", "GOCACHE": f"{work}/objects", "GOFLAGS": "-modcacherw"}
        words = ["install", "-trimpath", "-ldflags=-s -w", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"]
        subprocess.run(["nice", program, *words], check=True, env={**os.environ, **folders, "CGO_ENABLED": "0"})
        shutil.move(f"{work}/versitygw", built)


if __name__ == "__main__":
    print(binary())

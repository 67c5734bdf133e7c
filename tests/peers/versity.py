"""The real S3 server of the tests, versitygw, started over a folder."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from kit.object_stores import BUCKET, KEY, SECRET, free_port, listens


class Versity:
    """A versitygw over a folder whose folders are its buckets. Started again, it has the same port."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self.folder, self._port = program, folder, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        (folder / "objects" / BUCKET).mkdir(parents=True)
        (folder / "attributes").mkdir()

    def __enter__(self) -> Versity:
        words = [str(self._program), "--port", f"127.0.0.1:{self._port}", "--quiet", "posix", "--sidecar"]
        self._server = subprocess.Popen(
            [*words, str(self.folder / "attributes"), str(self.folder / "objects")],
            env={"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET, "PATH": os.environ["PATH"]},
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while not listens(self._port):
            assert self._server.poll() is None, "versitygw has ended"
            assert time.monotonic() < until, "versitygw does not open its port"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(20)

    def keys(self) -> list[str]:
        """The keys in the bucket."""
        bucket = self.folder / "objects" / BUCKET
        return sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())

"""Debian's prometheus for tests: an instance of our own on a free port, scraping one place every half second.

python tests/peers/prometheus.py HOST:PORT DIRECTORY   # scrapes HOST:PORT, answers on 9090; Ctrl-C ends it
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

from collector import free_port, wait_http


def binary() -> str | None:
    """The path of prometheus, or None."""
    return shutil.which("prometheus")


class Prometheus:
    """A running prometheus.

    Args:
        directory: for its configuration, database and log.
        scraped: HOST:PORT that it reads.
        port: that it answers on; 0 = a free one.
    """

    def __init__(self, directory: Path, scraped: str, port: int = 0) -> None:
        self.directory, self.scraped, self.port = directory, scraped, port or free_port()
        self._process = None

    def __enter__(self) -> Prometheus:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
            f"scrape_configs:\n  - job_name: wstrace\n    static_configs: [{{targets: ['{self.scraped}']}}]\n"
        )
        program = binary()
        assert program is not None
        with (self.directory / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [program, f"--config.file={config}", f"--storage.tsdb.path={self.directory / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
                stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "1"},
            )  # fmt: skip
        wait_http(f"http://127.0.0.1:{self.port}/-/ready")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            finally:
                self._process.kill()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of every series that the expression gives now, by its HTTP API."""
        quoted = urllib.parse.quote(expression)
        answer = json.loads(wait_http(f"http://127.0.0.1:{self.port}/api/v1/query?query={quoted}"))
        return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]

    def wait_for(self, expression: str, seconds: float = 20.0) -> list[tuple[dict[str, str], float]]:
        """The same, as soon as there is a series."""
        until = time.monotonic() + seconds
        while not (found := self.query(expression)) and time.monotonic() < until:
            time.sleep(0.2)
        return found


if __name__ == "__main__":
    with Prometheus(Path(sys.argv[2]).absolute(), sys.argv[1], 9090) as running, contextlib.suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{running.port} scrapes {running.scraped}; Ctrl-C ends it", flush=True)
        signal.pause()

"""The command line as a user runs it: in a process of its own."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wstrace import cli

#: the words before those of a command
WSTRACE = [sys.executable, "-m", "wstrace"]


def wstrace(
    *words: object, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m wstrace WORDS` for at most 100 s; its output is text in UTF-8.

    Args:
        words: the arguments, as anything that str() takes.
        environment: variables beside those of this process.
        options: of subprocess.run; without `input` or `stdin` its standard input is empty.
    """
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [*WSTRACE, *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200", **(environment or {})},
        **options,
    )


def answer(*words: object, **options: Any) -> str:
    """What `wstrace WORDS` writes to standard output, once it has ended well."""
    done = wstrace(*words, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def begun(*words: object, **options: Any) -> subprocess.Popen[str]:
    """`wstrace WORDS` while it runs; its standard error is a pipe of text."""
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*WSTRACE, *map(str, words)], **{**pipes, **options})


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits until that is so; fails where it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)


def in_process(*words: object) -> tuple[int, str, str]:
    """Runs `wstrace WORDS` in this process: its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def peak_bytes(process: subprocess.Popen[Any]) -> int:
    """The most resident bytes of a process until it ends: what wait4 says begins at those of this process."""
    most = 0
    while process.poll() is None:
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        most = max(most, int(found[1]) << 10 if found else 0)
        time.sleep(0.02)
    return most

"""Uploads: the finished parts in a local folder are the queue of what an object store is to get.

A part is uploaded, compared with what the store then tells of it, and removed. A store that is slow, refuses or is down
leaves the parts where they are, up to a limit; `wstrace upload FOLDER` sends them under the same keys later.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import threading
import time
from typing import NamedTuple

from wstrace.errors import OutputError, UsageError
from wstrace.output_file import open_own, own_folder, remove, whole_file
from wstrace.output_rights import callers_rights
from wstrace.text import plural, size
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.part_names import name_and_number, numbered, part_path, part_url, parts_prefix
from wstrace_exporters.msgpack.storage.errors import StoreError
from wstrace_exporters.msgpack.storage.store import Store, store_of
from wstrace_exporters.msgpack.storage.urls import can_list, is_pattern, is_url, scheme_of, shown

#: The file in the folder that tells where its parts belong.
NOTE = "upload.json"
#: The longest part: it is in memory while it is sent.
PART_BYTES = 128 << 20
_TAIL_BYTES = 4096
_PAUSES = (0.5, 30.0)  # seconds before the first and before later tries
_START_SECONDS = 5.0


class _Part(NamedTuple):
    path: str
    rows: int
    size: int


class Uploads:
    """The queue of one trace. add() and finish() belong to one thread; another one sends.

    Args:
        url: the object of part 0.
        folder: the local folder of the parts.
        limit: the most bytes of finished parts that wait; beyond, the oldest is removed and its rows are counted;
            the newest part stays however long it is.

    Attributes:
        path: the local path of part 0.
        dropped: rows of parts that were removed without having been sent.
        error: why the last try failed; "" when it did not.
    """

    def __init__(self, url: str, folder: str, limit: int) -> None:
        self.url, self.folder, self._limit = url, folder, limit
        self.path = os.path.join(folder, url.rpartition("/")[2])
        self.dropped, self.error = 0, ""
        self._store = Store(scheme_of(url))
        self._waiting: collections.deque[_Part] = collections.deque()
        self._sending: _Part | None = None
        self._changed = threading.Condition()
        self._ending = self._given_up = False
        self._thread = threading.Thread(target=self._run, name="wstrace-upload", daemon=True)

    def begin(self, *, force: bool) -> None:
        """Makes the folder, and looks whether the key is free; a store that does not answer is asked later.

        Raises:
            OutputError: the key or the folder is taken and `force` is false; there is no such bucket; or the folder
                cannot be made.
        """
        name = name_and_number(self.url)[0]
        try:
            there = self._store.listing(
                parts_prefix(name), lambda other: name_and_number(other)[0] == name, _START_SECONDS
            )
            if there and not force:
                raise OutputError(f"{there[0].shown} exists", "choose another name, or overwrite all parts with -f")
            for one in there:
                self._store.remove(one.url)
        except StoreError as error:
            if error.kind == "missing":
                raise OutputError(error.why, "create the bucket, or choose another one") from None
            self.error = str(error)
        own_folder(self.folder)
        left = parts_in(self.folder, self.path)
        if left and not force:
            raise OutputError(
                f"{self.folder} holds {plural(len(left), 'part')} of an earlier trace",
                f"wstrace upload {self.folder} sends them; -f removes them",
            )
        for path in left:
            remove(path)
        with whole_file(os.path.join(self.folder, NOTE), force=True) as note:
            note.write(json.dumps({"url": self.url}).encode())
        self._thread.start()

    def add(self, path: str, rows: int) -> None:
        """Queues a finished part with its number of rows; removes the oldest ones past the limit."""
        with self._changed:
            self._waiting.append(_Part(path, rows, _size(path)))
            waiting = sum(part.size for part in self._waiting)
            while waiting > self._limit:
                older = list(self._waiting)[:-1]
                oldest = next((part for part in older if part is not self._sending), None)
                if oldest is None:
                    break
                self._waiting.remove(oldest)
                waiting -= oldest.size
                self.dropped += oldest.rows
                with contextlib.suppress(OSError):
                    remove(oldest.path)
            self._changed.notify_all()

    @property
    def why_dropped(self) -> str:
        """Why parts were dropped; "" when none were."""
        more = f": {self.error}" if self.error else ""
        return f"{shown(self.url)} took parts more slowly than they came{more}" if self.dropped else ""

    def finish(self, seconds: float) -> None:
        """Waits for the parts that are left, and removes the folder.

        Raises:
            OutputError: some parts are still in the folder; it tells which, why, and how to send them.
        """
        until = time.monotonic() + seconds
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            while self._waiting and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._waiting:
                self._given_up = True  # what is told to be in the folder stays there
                self._store.cancel()
                self._changed.notify_all()
                n, there = len(self._waiting), size(sum(part.size for part in self._waiting))
                raise OutputError(
                    f"{plural(n, 'part')} of {shown(self.url)} ({there}) {'is' if n == 1 else 'are'} still in "
                    f"{self.folder}: {self.error or f'not sent within {seconds:g} s'}",
                    f"wstrace upload {self.folder} sends {'it' if n == 1 else 'them'}",
                )
        self._thread.join(seconds)
        clear(self.folder)

    def cancel(self) -> None:
        """Ends the thread and removes an empty folder, after a start that failed."""
        with self._changed:
            self._ending = True
            self._waiting.clear()
            self._changed.notify_all()
        clear(self.folder)

    def _run(self) -> None:
        pause = _PAUSES[0]
        while True:
            with self._changed:
                while not (self._waiting or self._ending):
                    self._changed.wait()
                if self._given_up or not self._waiting:
                    return
                part = self._sending = self._waiting[0]
            try:
                send(self._store, part.path, part_url(self.url, name_and_number(part.path)[1]))
            except Exception as error:  # whatever it is, the part stays and is tried again
                with self._changed:
                    self.error, self._sending = str(error), None
                    self._changed.wait(min(pause, 1.0) if self._ending else pause)
                pause = min(2 * pause, _PAUSES[1])
                continue
            with self._changed:
                self.error, self._sending = "", None
                if self._waiting and self._waiting[0] is part:
                    self._waiting.popleft()
                self._changed.notify_all()
            pause = _PAUSES[0]


def send(store: Store, path: str, url: str) -> None:
    """Uploads a part, compares the object with it, and removes the part.

    Raises:
        StoreError: the store refuses, or then holds something else.
        OutputError: the part cannot be read safely.
    """
    with os.fdopen(open_own(path), "rb") as file:
        data = file.read(PART_BYTES + 1)
    if len(data) > PART_BYTES:
        raise OutputError(f"{path} is longer than {PART_BYTES >> 20} MiB", f"copy it to {shown(url)} with another tool")
    store.put(url, data)
    there = store.stat(url)
    same = there.size == len(data)
    if same and there.version != hashlib.md5(data, usedforsecurity=False).hexdigest():  # an ETag need not be the MD5
        start = max(0, len(data) - _TAIL_BYTES)
        same = not data or store.fetch(there, start, len(data)).result() == data[start:]
    if not same:
        raise StoreError(f"{shown(url)} holds {there.size:,} bytes that differ from the {len(data):,} that were sent")
    remove(path)


def send_folder(folder: str) -> tuple[int, str]:
    """Sends the parts that a trace left in a folder, and removes it; returns (their number, the URL).

    Raises:
        UsageError: it is no such folder, or a trace is being written there.
        OutputError: a part cannot be sent; those before it are.
    """
    url = _noted_url(folder)
    parts = parts_in(folder, os.path.join(folder, url.rpartition("/")[2]))
    for path in parts:
        if osfile.is_being_written(path):
            raise UsageError(f"{path} is being written by a trace", "it sends its parts itself")
    store = store_of(scheme_of(url))
    for n, path in enumerate(parts):
        try:
            send(store, path, part_url(url, name_and_number(path)[1]))
        except StoreError as error:
            left = f"{plural(len(parts) - n, 'part')} still in {folder}"
            raise OutputError(f"{error.why}; {left}", error.remedy) from None
    clear(folder)
    return len(parts), shown(url)


def check_url(url: str) -> None:
    """Raises UsageError for a URL that no trace can be written to."""
    if not can_list(url):
        raise UsageError(f"-o {shown(url)}: a web server takes no trace", "write to s3://, gs:// or az://")
    if shown(url) != url:
        raise UsageError(f"-o {shown(url)}: the URL holds credentials", "set them in the environment")
    if is_pattern(url) or url.count("/") < 3 or url.endswith("/"):
        raise UsageError(f"-o {shown(url)} names no object", f"write {scheme_of(url)}://BUCKET/NAME.wst")
    name = url.rpartition("/")[2]
    numbers = name_and_number(url), name_and_number(part_url(url, 1)), name_and_number(part_path(name, 1))
    if numbers != ((url, 0), (url, 1), (name, 1)):  # else parts would replace one another, or not be found again
        why = f"-o {shown(url)}: the parts of a trace of that name could not be told apart"
        raise UsageError(why, f"write {scheme_of(url)}://BUCKET/NAME.wst, NAME without a number at its end")


def parts_in(folder: str, path: str) -> list[str]:
    """The paths of the parts in a folder, in order."""
    first = [path] if os.path.lexists(path) else []
    return [*first, *(part for _, part in numbered(path))]


def clear(folder: str) -> None:
    """Removes a folder without parts."""
    with contextlib.suppress(OSError), callers_rights():
        if os.listdir(folder) == [NOTE]:  # noqa: PTH208
            os.unlink(os.path.join(folder, NOTE))  # noqa: PTH108
            os.rmdir(folder)  # noqa: PTH106


def _noted_url(folder: str) -> str:
    try:
        with os.fdopen(open_own(os.path.join(folder, NOTE)), "rb") as file:
            url = json.loads(file.read(1 << 16))["url"]
    except (OutputError, OSError, ValueError, TypeError, KeyError):
        url = ""
    if not isinstance(url, str) or not is_url(url):
        raise UsageError(f"{folder} is no folder of parts that wait for an upload", f"its {NOTE} names the URL")
    check_url(url)
    return url


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0

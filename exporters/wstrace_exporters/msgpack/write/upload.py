"""Uploads: each finished part of a trace to an object store is put there, and removed from the local folder.

A part that the store does not take stays in the folder; `wstrace convert FOLDER -o URL` sends it later.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from wstrace.errors import OutputError, UsageError
from wstrace.output_file import callers_rights, open_own, own_folder, remove
from wstrace.text import plural, size
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.layout import name_and_number, part_path, parts_prefix, parts_there
from wstrace_exporters.msgpack.storage.store import Store, StoreError, store_of
from wstrace_exporters.msgpack.storage.urls import is_pattern, is_url, shown


class Uploads:
    """The parts of one trace on their way. All methods belong to one thread; another one sends.

    url: the object of part 0. folder: the local folder of the parts. force: whether parts at that key and in the folder
    are removed. path: the local path of part 0. error: why the last try failed; "" when it did not. Raises OutputError:
    the key or the folder is taken and `force` is false; there is no such bucket; or the folder cannot be made. A store
    that does not answer is tried again later.
    """

    def __init__(self, url: str, folder: str, *, force: bool) -> None:
        self._url, self._folder, self.error = url, folder, ""
        self.path = os.path.join(folder, url.rpartition("/")[2])
        self._bucket = store_of(url)
        self._sender = ThreadPoolExecutor(1, "wstrace-upload")
        self._sent: list[Future[None]] = []
        name = name_and_number(url)[0]
        try:
            there = self._bucket.listing(parts_prefix(name), lambda other: name_and_number(other)[0] == name)
            if there and not force:
                raise OutputError(f"{there[0].shown} exists", "choose another name, or overwrite all parts with -f")
            for one in there:
                self._bucket.remove(one.url)
        except StoreError as error:
            if error.kind == "missing":
                raise OutputError(error.why, "create the bucket, or choose another one") from None
            self.error = str(error)
        own_folder(folder)
        left = parts_there(self.path)
        if left and not force:
            raise OutputError(f"{folder} holds {plural(len(left), 'part')} of an earlier trace",
                              f"wstrace convert {folder} -o {shown(url)} sends them; -f removes them")  # fmt: skip
        for path in left:
            remove(path)

    def add(self, path: str) -> None:
        """Sends a finished part when those before it are sent."""
        self._sent = [one for one in self._sent if not one.done()]
        self._sent.append(self._sender.submit(self._send, path))

    def _send(self, path: str) -> None:
        try:
            send(self._bucket, path, self._url)
            self.error = ""
        except Exception as error:  # whatever it is, the part stays
            self.error = str(error)

    def finish(self, seconds: float) -> None:
        """Waits for the parts that are left, tries once more what failed, and removes the folder.

        Raises OutputError: some parts are still in the folder; it says which, why, and how to send them.
        """
        until = time.monotonic() + seconds
        wait(self._sent, seconds)
        again = [self._sender.submit(self._send, path) for path in parts_there(self.path)]
        wait(again, max(until - time.monotonic(), 0))
        left = parts_there(self.path)
        self.cancel()
        if left:
            there = size(sum(os.stat(path).st_size for path in left))  # noqa: PTH116
            raise OutputError(
                f"{plural(len(left), 'part')} of {shown(self._url)} ({there}) {'is' if len(left) == 1 else 'are'} "
                f"still in {self._folder}: {self.error or f'not sent within {seconds:g} s'}",
                f"wstrace convert {self._folder} -o {shown(self._url)} sends them",
            )

    def cancel(self) -> None:
        """Ends the thread, and removes the folder if it is empty."""
        self._sender.shutdown(wait=False, cancel_futures=True)
        _clear(self._folder)


def send(bucket: Store, path: str, url: str) -> None:
    """Uploads a part of the trace of a URL and removes it.

    Raises StoreError: the store does not take it. OutputError: the part cannot be read safely.
    """
    with os.fdopen(open_own(path), "rb") as file:
        bucket.put(part_path(url, name_and_number(path)[1]), file)
    remove(path)


def send_folder(folder: str, url: str) -> int:
    """Sends the parts that a trace left in a folder, and removes it; returns how many were sent.

    Raises UsageError: it holds no part of that trace, or one is being written. OutputError: a part cannot be sent;
    those before it are.
    """
    check_url(url)
    name = url.rpartition("/")[2]
    parts = parts_there(os.path.join(folder, name))
    if not parts:
        raise UsageError(f"{folder} holds no part of {name}", "name the trace as its parts are named")
    if any(map(osfile.is_being_written, parts)):
        raise UsageError(f"{folder} is being written by a trace", "it sends its parts itself")
    for n, path in enumerate(parts):
        try:
            send(store_of(url), path, url)
        except StoreError as error:
            left = f"{plural(len(parts) - n, 'part')} still in {folder}"
            raise OutputError(f"{error.why}; {left}", error.remedy) from None
    _clear(folder)
    return len(parts)


def check_url(url: str) -> None:
    """Raises UsageError for a URL that no trace can be written to."""
    if shown(url) != url:
        raise UsageError(f"-o {shown(url)}: the URL holds credentials", "set them in the environment")
    name = url.rpartition("/")[2]
    numbers = name_and_number(url), name_and_number(part_path(url, 1)), name_and_number(part_path(name, 1))
    apart = numbers == ((url, 0), (url, 1), (name, 1))  # else parts would replace one another, or not be found again
    if not is_url(url) or is_pattern(url) or url.count("/") < 3 or not name or not apart:
        raise UsageError(f"-o {url}: no trace can be written there",
                         "write s3://BUCKET/NAME.wst, gs:// or az://, NAME without a number at its end")  # fmt: skip


def _clear(folder: str) -> None:
    """Removes an empty folder."""
    with contextlib.suppress(OSError), callers_rights():
        os.rmdir(folder)  # noqa: PTH106

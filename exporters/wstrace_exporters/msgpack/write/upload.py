"""Uploads: each finished part of a trace to an object store is put there, and removed from the local folder.

A part that the store does not take stays in the folder; `wstrace convert FOLDER -o URL` sends it later.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from wstrace.errors import OutputError, UsageError
from wstrace.output_file import open_own, own_folder, remove
from wstrace.output_rights import callers_rights
from wstrace.text import plural, size
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.part_names import name_and_number, numbered, part_path, part_url, parts_prefix
from wstrace_exporters.msgpack.storage.store import Store, StoreError, store_of
from wstrace_exporters.msgpack.storage.urls import can_list, is_pattern, scheme_of, shown


class Uploads:
    """The parts of one trace on their way. All methods belong to one thread; another one sends.

    Args:
        url: the object of part 0.
        folder: the local folder of the parts.

    Attributes:
        path: the local path of part 0.
        error: why the last try failed; "" when it did not.
    """

    def __init__(self, url: str, folder: str) -> None:
        self.url, self.folder, self.error = url, folder, ""
        self.path = os.path.join(folder, url.rpartition("/")[2])
        self._bucket = store_of(url)
        self._sender = ThreadPoolExecutor(1, "wstrace-upload")
        self._sent: list[Future[None]] = []

    def begin(self, *, force: bool) -> None:
        """Makes the folder, and checks that the key is free; a store that does not answer is tried again later.

        Raises:
            OutputError: the key or the folder is taken and `force` is false; there is no such bucket; or the folder
                cannot be made.
        """
        name = name_and_number(self.url)[0]
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
        own_folder(self.folder)
        left = parts_in(self.folder, self.path)
        if left and not force:
            raise OutputError(
                f"{self.folder} holds {plural(len(left), 'part')} of an earlier trace",
                f"wstrace convert {self.folder} -o {shown(self.url)} sends them; -f removes them",
            )
        for path in left:
            remove(path)

    def add(self, path: str, rows: int) -> None:
        """Sends a finished part when those before it are sent."""
        self._sent = [one for one in self._sent if not one.done()]
        self._sent.append(self._sender.submit(self._send, path))

    def _send(self, path: str) -> None:
        try:
            send(self._bucket, path, part_url(self.url, name_and_number(path)[1]))
            self.error = ""
        except Exception as error:  # whatever it is, the part stays
            self.error = str(error)

    def finish(self, seconds: float) -> None:
        """Waits for the parts that are left, tries once more what failed, and removes the folder.

        Raises:
            OutputError: some parts are still in the folder; it says which, why, and how to send them.
        """
        until = time.monotonic() + seconds
        wait(self._sent, seconds)
        again = [self._sender.submit(self._send, path) for path in parts_in(self.folder, self.path)]
        wait(again, max(until - time.monotonic(), 0))
        self._sender.shutdown(wait=False, cancel_futures=True)
        if left := parts_in(self.folder, self.path):
            n, there = len(left), size(sum(os.stat(path).st_size for path in left))  # noqa: PTH116
            raise OutputError(
                f"{plural(n, 'part')} of {shown(self.url)} ({there}) {'is' if n == 1 else 'are'} still in "
                f"{self.folder}: {self.error or f'not sent within {seconds:g} s'}",
                f"wstrace convert {self.folder} -o {shown(self.url)} sends {'it' if n == 1 else 'them'}",
            )
        clear(self.folder)

    def cancel(self) -> None:
        """Ends the thread and removes an empty folder, after a start that failed."""
        self._sender.shutdown(wait=False, cancel_futures=True)
        clear(self.folder)


def send(bucket: Store, path: str, url: str) -> None:
    """Uploads a part and removes it. Raises StoreError, or OutputError when the part cannot be read safely."""
    with os.fdopen(open_own(path), "rb") as file:
        bucket.put(url, file)
    remove(path)


def send_folder(folder: str, url: str) -> int:
    """Sends the parts that a trace left in a folder, and removes it; returns how many were sent.

    Raises:
        UsageError: it holds no part of that trace, or one is being written.
        OutputError: a part cannot be sent; those before it are.
    """
    check_url(url)
    parts = parts_in(folder, os.path.join(folder, url.rpartition("/")[2]))
    if not parts:
        raise UsageError(f"{folder} holds no part of {url.rpartition('/')[2]}", "name the trace as its parts are named")
    for path in parts:
        if osfile.is_being_written(path):
            raise UsageError(f"{path} is being written by a trace", "it sends its parts itself")
    bucket = store_of(url)
    for n, path in enumerate(parts):
        try:
            send(bucket, path, part_url(url, name_and_number(path)[1]))
        except StoreError as error:
            left = f"{plural(len(parts) - n, 'part')} still in {folder}"
            raise OutputError(f"{error.why}; {left}", error.remedy) from None
    clear(folder)
    return len(parts)


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
        why = f"-o {shown(url)}: the parts of a trace of that name could not be distinguished"
        raise UsageError(why, f"write {scheme_of(url)}://BUCKET/NAME.wst, NAME without a number at its end")


def parts_in(folder: str, path: str) -> list[str]:
    """The paths of the parts in a folder, in order."""
    first = [path] if os.path.lexists(path) else []
    return [*first, *(part for _, part in numbered(path))]


def clear(folder: str) -> None:
    """Removes an empty folder."""
    with contextlib.suppress(OSError), callers_rights():
        os.rmdir(folder)  # noqa: PTH106

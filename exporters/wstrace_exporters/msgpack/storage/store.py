"""Object stores by obstore (s3://, gs://, az://), and web servers by urllib; what they refuse is a StoreError."""

from __future__ import annotations

import base64
import functools
import os
import queue
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from wstrace.errors import TraceFileError, missing
from wstrace_exporters.msgpack.storage.urls import StoredObject, can_list, shown, without_secrets

#: Seconds after which a connection, and a request with its repetitions, have failed.
CONNECT_SECONDS, REQUEST_SECONDS = 10, 60
#: Keys that one listing reads.
MOST_KEYS = 250_000
#: The longest object that is read from a server that sends no parts of it, in bytes.
WHOLE_BYTES = 64 << 20
#: The longest object that is read from a web server at all, in bytes: 16 TiB.
MOST_BYTES = 1 << 44
_RIGHTS = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and that they may list, get and put objects of the bucket",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and that they may list, get and create objects of the bucket",
    "az": "check AZURE_STORAGE_*, and that they may list, read and create blobs of the container",
}


class StoreError(TraceFileError):
    """A store refused a request.

    Attributes:
        kind: `missing`, `denied`, `replaced` or `other`.
    """

    def __init__(self, why: str, remedy: str = "", kind: str = "other") -> None:
        super().__init__(why, remedy)
        self.kind = kind


class Store(Protocol):
    """One bucket, or the web. All methods may be called by several threads, and raise StoreError."""

    def stat(self, url: str) -> StoredObject:
        """The object of a URL."""

    def fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Exactly the bytes start:end of an object that was not replaced since."""


def store_of(url: str) -> Store:
    """The bucket of a URL, or the web. Raises Unavailable when obstore is not installed."""
    return bucket_of(url) if can_list(url) else Web()


def bucket_of(url: str) -> Bucket:
    """The bucket of a URL. Raises Unavailable when obstore is not installed."""
    return bucket_named(*url.split("/")[:3:2])


@functools.cache
def bucket_named(scheme: str, name: str) -> Bucket:
    """The bucket of a scheme with its colon and a name; see bucket_of()."""
    return Bucket(scheme.removesuffix(":"), name)


class Bucket:
    """A bucket of S3, Google Cloud Storage or Azure; credentials and endpoints are those of the environment."""

    def __init__(self, scheme: str, name: str) -> None:
        try:
            import obstore
            from obstore import store as stores
        except ImportError as error:
            raise missing("obstore", error, "pip install 'wstrace[store]'", f"{scheme}://") from None
        self._obstore, self._root, self._scheme = obstore, f"{scheme}://{name}/", scheme
        http = any(value.startswith("http://") for key, value in os.environ.items() if "ENDPOINT" in key)
        options: Any = {
            "client_options": {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{REQUEST_SECONDS}s",
                               "allow_http": http},
            "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)},
        }  # fmt: skip
        makers: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
        self._store = self._asked(lambda: makers[scheme](name, **options), self._root, "open")

    def _key(self, url: str) -> str:
        return url.removeprefix(self._root)

    def _asked(self, work: Callable[[], Any], url: str, doing: str) -> Any:
        """The result of a request. Raises StoreError."""
        errors = self._obstore.exceptions
        where = f"cannot {doing} {shown(url)}"
        try:
            return work()
        except errors.PreconditionError:
            raise StoreError(f"{shown(url)} was replaced while it was read", "open it again", "replaced") from None
        except (errors.BaseError, ValueError, OSError) as error:
            found = re.search(r"status code: (\d+)", str(error))  # a listing has no exceptions of its own for these
            status = found[1] if found else ""
            if isinstance(error, errors.NotFoundError | FileNotFoundError) or status == "404":
                raise StoreError(f"{where}: there is no such object or bucket", "", "missing") from None
            if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or status in (
                "401",
                "403",
            ):
                raise StoreError(f"{where}: access is denied", _RIGHTS[self._scheme], "denied") from None
            said = without_secrets(str(error).partition("\n")[0])[:300]
            raise StoreError(f"{where}: {said}", "check the network, the credentials and the endpoint") from None

    def _object(self, info: Any) -> StoredObject:
        return StoredObject(f"{self._root}{info['path']}", info["size"], info.get("e_tag") or "")

    def stat(self, url: str) -> StoredObject:
        """The object of a URL."""
        return self._object(self._asked(lambda: self._obstore.head(self._store, self._key(url)), url, "read"))

    def listing(self, prefix: str, wanted: Callable[[str], bool]) -> list[StoredObject]:
        """The objects whose URL begins with `prefix` and is wanted, in the order of their names.

        Raises:
            StoreError: the bucket cannot be listed, or the listing is longer than MOST_KEYS.
        """
        key = self._key(prefix)
        folder, slash, name = key.rpartition("/")
        # obstore lists folders: the keys before the prefix are passed over, those behind it end the listing
        pages = iter(self._asked(
            lambda: self._obstore.list(self._store, prefix=folder + slash, offset=key[:-1] if name else None), prefix,
            "list"))  # fmt: skip
        found: list[StoredObject] = []
        seen = 0
        while page := self._asked(lambda: next(pages, None), prefix, "list"):
            seen += len(page)
            if seen > MOST_KEYS:
                why = f"cannot list {shown(prefix)}*: there are more than {MOST_KEYS:,} objects"
                raise StoreError(why, "name a longer prefix")
            objects = [self._object(info) for info in page]
            found += [one for one in objects if one.url.startswith(prefix) and wanted(one.url)]
            if name and objects[-1].url > prefix and not objects[-1].url.startswith(prefix):
                break
        return found

    def fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Exactly the bytes start:end of an object that was not replaced since."""
        options = {"range": (start, end), **({"if_match": stored.etag} if stored.etag else {})}
        key = self._key(stored.url)
        answer = self._asked(lambda: self._obstore.get(self._store, key, options=options), stored.url, "read")
        _refuse_another(stored, answer.meta.get("e_tag") or "")  # a server may pass over what it must match
        return _exact(bytes(self._asked(answer.bytes, stored.url, "read")), stored, start, end)

    def put(self, url: str, file: IO[bytes]) -> None:
        """Writes an object from a file, in pieces where it is long, or replaces it."""
        self._asked(lambda: self._obstore.put(self._store, self._key(url), file), url, "write")

    def remove(self, url: str) -> None:
        """Removes an object."""
        self._asked(lambda: self._obstore.delete(self._store, self._key(url)), url, "remove")


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one host: those of another could be anyone's, with our credentials."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request that follows. Raises StoreError for another host."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            fp.close()
            why = f"cannot read {shown(req.full_url)}: it redirects to another host, {after.hostname}"
            raise StoreError(why, "name the address that it redirects to")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Web:
    """Web servers, for reading alone: an answer that takes longer than REQUEST_SECONDS to come is refused."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(_SameHost)

    def _answer(self, url: str, method: str, headers: dict[str, str], limit: int) -> tuple[Any, int, bytes]:
        """(headers, status, up to `limit` + 1 bytes) of an answer."""
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        if at:
            headers = {**headers, "Authorization": "Basic " + base64.b64encode(unquote(user).encode()).decode()}
        plain = urlunsplit(parts._replace(netloc=host))
        headers = {"Accept-Encoding": "identity", **headers}
        request = urllib.request.Request(plain, headers=headers, method=method)  # noqa: S310  is_url() has its scheme
        where = f"cannot read {shown(url)}"
        try:
            return self._whole(request, limit)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise StoreError(f"{where}: access is denied", "check the URL", "denied") from None
            if error.code in (404, 410):
                raise StoreError(f"{where}: there is no such object", "", "missing") from None
            raise StoreError(f"{where}: HTTP status {error.code}") from None
        except (OSError, ValueError, urllib.error.URLError) as error:
            said = without_secrets(str(getattr(error, "reason", error)))[:300]
            raise StoreError(f"{where}: {said}", "check the network and the address") from None

    def _whole(self, request: urllib.request.Request, limit: int) -> tuple[Any, int, bytes]:
        """(headers, status, bytes). Raises TimeoutError after REQUEST_SECONDS, however often a byte comes."""
        came: queue.SimpleQueue[tuple[Any, int, bytes] | Exception] = queue.SimpleQueue()

        def read() -> None:
            try:
                with self._opener.open(request, timeout=REQUEST_SECONDS) as answer:
                    came.put((answer.headers, answer.status, answer.read(limit + 1) if limit else b""))
            except Exception as error:
                came.put(error)

        # A socket's time limit starts again at each byte, also within a header: only a wait from outside bounds both.
        threading.Thread(target=read, name="web answer", daemon=True).start()
        try:
            found = came.get(timeout=REQUEST_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"the answer was not whole after {REQUEST_SECONDS} s") from None
        if isinstance(found, Exception):
            raise found
        return found

    def stat(self, url: str) -> StoredObject:
        """The object of a URL; a server has to tell its size."""
        headers, _, _ = self._answer(url, "HEAD", {}, 0)
        size = headers.get("Content-Length", "")
        if not size.isdecimal():
            raise StoreError(f"cannot read {shown(url)}: the server does not tell its size", "download it first")
        if len(size) > len(str(MOST_BYTES)) or int(size) > MOST_BYTES:
            raise StoreError(f"cannot read {shown(url)}: the server says that it is longer than {MOST_BYTES >> 40} TiB")
        ranged = headers.get("Accept-Ranges", "none").lower() == "bytes"
        return StoredObject(url, int(size), _etag(headers), ranged)

    def fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Exactly the bytes start:end of an object that was not replaced since; all of one that is sent whole."""
        headers = {"Range": f"bytes={start}-{end - 1}"} if stored.ranged else {}
        answered, status, data = self._answer(stored.url, "GET", headers, end - start)
        if status != 206 and end - start != stored.size:
            why = f"cannot read {stored.shown}: the server sends no parts of it (no HTTP ranges)"
            raise StoreError(why, "download it first", "missing")
        _refuse_another(stored, _etag(answered))
        return _exact(data, stored, start, end)


def _refuse_another(stored: StoredObject, etag: str) -> None:
    """Raises StoreError when the ETag of an answer is not that of the object that was opened."""
    if stored.etag and etag and etag != stored.etag:
        raise StoreError(f"{stored.shown} was replaced while it was read", "open it again", "replaced")


def _exact(data: bytes, stored: StoredObject, start: int, end: int) -> bytes:
    if len(data) != end - start:
        why = f"the server sent {len(data):,} bytes for the {end - start:,} at {start:,}"
        raise StoreError(f"cannot read {stored.shown}: {why}", "download it, or try again")
    return data


def _etag(headers: Any) -> str:
    return str(headers.get("ETag") or "").removeprefix("W/").strip('"')

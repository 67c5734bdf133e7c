"""Objects in stores, by obstore; what they refuse is a StoreError."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any

from wstrace.errors import TraceFileError, missing
from wstrace_exporters.msgpack.storage.urls import StoredObject, scheme_of, shown, without_secrets

#: Seconds after which a connection, and a request with its repetitions, have failed.
CONNECT_SECONDS, REQUEST_SECONDS = 10, 60
#: Keys that one listing reads.
MOST_KEYS = 250_000
#: The beginning of the variables with credentials.
_CREDENTIALS = {"s3": "AWS_*", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_*"}


class StoreError(TraceFileError):
    """A store refused a request. kind: `missing`, `denied` or `other`."""

    def __init__(self, why: str, remedy: str = "", kind: str = "other") -> None:
        super().__init__(why, remedy)
        self.kind = kind


def store_of(url: str) -> Store:
    """The bucket of a URL. Raises Unavailable when obstore is not installed."""
    return store_at("/".join([*url.split("/")[:3], ""]))


@functools.cache
def store_at(root: str) -> Store:
    """The bucket s3://NAME/, gs:// or az://."""
    return Store(root)


class Store:
    """A bucket of S3, Google Cloud Storage or Azure, with credentials of the environment.

    All methods may be called by several threads, and raise StoreError.
    """

    def __init__(self, root: str) -> None:
        self._root, scheme = root, scheme_of(root)
        try:
            import obstore
            from obstore import store as stores
        except ImportError as error:
            raise missing("obstore", error, "pip install 'wstrace[store]'", f"{scheme}://") from None
        self._obstore = obstore
        self._rights = f"check {_CREDENTIALS[scheme]}, and the rights to list, get and put"
        plain = any(value.startswith("http://") for key, value in os.environ.items() if "ENDPOINT" in key)
        options: Any = {
            "client_options": {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{REQUEST_SECONDS}s",
                               "allow_http": plain},
            "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)},
        }  # fmt: skip
        makers: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
        self._store = self._requested(lambda: makers[scheme](root.split("/")[2], **options), root, "open")

    def _key(self, url: str) -> str:
        return url.removeprefix(self._root)

    def _requested(self, work: Callable[[], Any], url: str, doing: str) -> Any:
        """The result of a request. Raises StoreError."""
        errors = self._obstore.exceptions
        where = f"cannot {doing} {shown(url)}"
        try:
            return work()
        except (errors.BaseError, ValueError, OSError) as error:
            found = re.search(r"status code: (\d+)", str(error))  # a listing has no exceptions of its own for these
            status = found[1] if found else ""
            if isinstance(error, errors.NotFoundError | FileNotFoundError) or status == "404":
                raise StoreError(f"{where}: there is no such object or bucket", "", "missing") from None
            denied = isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError)
            if denied or status in ("401", "403"):
                raise StoreError(f"{where}: access is denied", self._rights, "denied") from None
            said = without_secrets(str(error).partition("\n")[0])[:300]
            raise StoreError(f"{where}: {said}", "check the network, the credentials and the address") from None

    def _object(self, url: str, info: Any) -> StoredObject:
        return StoredObject(url, info["size"], info.get("e_tag") or "")

    def stat(self, url: str) -> StoredObject:
        """The object of a URL."""
        return self._object(url, self._requested(lambda: self._obstore.head(self._store, self._key(url)), url, "read"))

    def listing(self, prefix: str, wanted: Callable[[str], bool]) -> list[StoredObject]:
        """The objects of a bucket of which the URL begins with `prefix` and is wanted, in the order of their names.

        Raises StoreError: the bucket cannot be listed, or the listing is longer than MOST_KEYS.
        """
        key = self._key(prefix)
        folder, slash, name = key.rpartition("/")
        # obstore lists folders: the keys before the prefix are passed over, those behind it end the listing
        pages = iter(self._requested(
            lambda: self._obstore.list(self._store, prefix=folder + slash, offset=key[:-1] if name else None), prefix,
            "list"))  # fmt: skip
        found: list[StoredObject] = []
        seen = 0
        while page := self._requested(lambda: next(pages, None), prefix, "list"):
            seen += len(page)
            if seen > MOST_KEYS:
                why = f"cannot list {shown(prefix)}*: there are more than {MOST_KEYS:,} objects"
                raise StoreError(why, "name a longer prefix")
            objects = [self._object(self._root + info["path"], info) for info in page]
            found += [one for one in objects if one.url.startswith(prefix) and wanted(one.url)]
            if name and objects[-1].url > prefix and not objects[-1].url.startswith(prefix):
                break
        return found

    def fetch(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Exactly the bytes start:end of an object that was not replaced since."""
        return self._requested(lambda: self._fetched(stored, start, end), stored.url, "read")  # type: ignore[no-any-return]

    def _fetched(self, stored: StoredObject, start: int, end: int) -> bytes:
        answer = self._obstore.get(self._store, self._key(stored.url), options={"range": (start, end)})
        etag = answer.meta.get("e_tag") or ""
        if stored.etag and etag and etag != stored.etag:
            raise StoreError(f"{stored.shown} was replaced while it was read", "open it again")
        data = b""
        for piece in answer.stream(min_chunk_size=end - start + 1):  # a server may send without an end
            data += bytes(piece)
            if len(data) > end - start:
                break
        if len(data) != end - start:
            why = f"the server sent other bytes than the {end - start:,} at {start:,}"
            raise StoreError(f"cannot read {stored.shown}: {why}", "download it, or try again")
        return data

    def put(self, url: str, file: IO[bytes]) -> None:
        """Writes an object from a file, in pieces where it is long, or replaces it."""
        self._requested(lambda: self._obstore.put(self._store, self._key(url), file), url, "write")

    def remove(self, url: str) -> None:
        """Removes an object."""
        self._requested(lambda: self._obstore.delete(self._store, self._key(url)), url, "remove")

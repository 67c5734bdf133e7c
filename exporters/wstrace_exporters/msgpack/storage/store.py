"""Store: requests to one kind of object store by fsspec, each with a time limit, whose failures are StoreErrors."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from wstrace.errors import missing
from wstrace_exporters.msgpack.storage.errors import StoreError, refusal
from wstrace_exporters.msgpack.storage.urls import StoredObject, scheme_of, shown

#: Seconds after which a request has failed, except a listing of many pages.
REQUEST_SECONDS = 60.0
LIST_SECONDS = 300.0
#: Keys that one listing looks at.
MOST_KEYS = 250_000
#: The longest object that is read whole from a server that sends no parts of it, in bytes.
WHOLE_BYTES = 64 << 20
_CONNECT_SECONDS = 10.0
#: Seconds between the tries of a request that fails for a reason that may pass.
_PAUSES = (0.2, 1.0)
_EXTRA = {"s3": "s3", "gs": "gcs", "az": "azure", "http": "http", "https": "http"}
_PACKAGE = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp"}


def _options(scheme: str) -> dict[str, Any]:
    """What fsspec's implementation is made with; credentials and endpoints are those of the environment."""
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "s3":
        retries = {"max_attempts": 2}
        options |= {"config_kwargs": {"connect_timeout": _CONNECT_SECONDS, "read_timeout": 30.0, "retries": retries}}
    elif scheme == "gs" and os.environ.get("STORAGE_EMULATOR_HOST"):
        options |= {"token": "anon"}  # an emulator knows no credentials, and looking for them takes seconds
    elif scheme == "az":
        options |= {"anon": False}
    return options


@functools.cache
def store_of(scheme: str) -> Store:
    """The store of a scheme. Raises Unavailable when the extra that it needs is not installed."""
    return Store(scheme)


class Store:
    """One kind of object store: s3, gs, az, https or http. All methods may be called by several threads.

    Raises:
        Unavailable: the package that it needs is not installed, or cannot be loaded.
    """

    def __init__(self, scheme: str) -> None:
        try:
            import fsspec

            self._fs: Any = fsspec.filesystem(scheme, **_options(scheme))
        except ImportError as error:
            # fsspec names the package to install, whatever its import raised.
            cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            remedy = f"pip install 'wstrace[{_EXTRA[scheme]}]'"
            raise missing(_PACKAGE[scheme], cause, remedy, f"{scheme}://") from None
        except Exception as error:
            raise refusal(error, f"{scheme}://", "open") from None
        self._http = scheme.startswith("http")
        self._running: set[Future[Any]] = set()

    def _key(self, url: str) -> str:
        return url if self._http else str(self._fs._strip_protocol(url))

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._fs.loop)

    def _run(self, work: Coroutine[Any, Any, Any], url: str, doing: str, seconds: float = REQUEST_SECONDS) -> Any:
        future = self._submit(work)
        self._running.add(future)
        try:
            return future.result(seconds)
        except Exception as error:
            raise refusal(error, url, doing) from None
        finally:
            future.cancel()
            self._running.discard(future)

    def cancel(self) -> None:
        """Ends the requests that are waited for now, except those of fetch(); they fail."""
        for future in list(self._running):
            future.cancel()

    # -- reading ---------------------------------------------------------------------------------------------------

    def stat(self, url: str) -> StoredObject:
        """The object of a URL. Raises StoreError when there is none, or the server does not tell its size."""
        info = self._run(self._fs._info(self._key(url)), url, "read")
        if info.get("type") == "directory":
            raise StoreError(f"{shown(url)} is a folder", f"name its objects: '{shown(url).rstrip('/')}/*.wst'")
        size = info.get("size")
        if not isinstance(size, int) or size < 0:
            raise StoreError(f"cannot read {shown(url)}: the server does not tell its size", "download it first")
        return StoredObject(url, size, _version(info), info.get("partial", True) is not False, _etag(info))

    def listing(self, prefix: str, wanted: Callable[[str], bool], seconds: float = LIST_SECONDS) -> list[StoredObject]:
        """The objects whose URL begins with `prefix` and is wanted, in the order of the listing.

        Raises:
            StoreError: the bucket cannot be listed, or the listing is longer than MOST_KEYS.
        """
        return list(self._run(self._listed(prefix, wanted), prefix, "list", seconds))

    async def _listed(self, prefix: str, wanted: Callable[[str], bool]) -> list[StoredObject]:
        scheme, found, seen = scheme_of(prefix), [], 0
        async for info in self._infos(prefix):
            seen += 1
            if seen > MOST_KEYS:
                why = f"cannot list {shown(prefix)}*: there are more than {MOST_KEYS:,} objects"
                raise StoreError(why, "name a longer prefix")
            url = f"{scheme}://{info['name']}"
            if info.get("type") == "file" and wanted(url):
                found.append(StoredObject(url, int(info["size"]), _version(info), etag=_etag(info)))
        return found

    async def _infos(self, prefix: str) -> AsyncIterator[dict[str, Any]]:
        key = self._key(prefix) if not prefix.endswith("/") else self._key(prefix) + "/"
        folder, _, name = key.rpartition("/")
        if hasattr(self._fs, "_iterdir"):  # S3's pages come one by one, so that an endless listing ends
            bucket, _, inner = key.partition("/")
            async for info in self._fs._iterdir(bucket, delimiter="", prefix=inner):
                yield info
            return
        found = await self._fs._find(folder, prefix=name, detail=True)
        for info in found.values():
            yield info

    def fetch(self, stored: StoredObject, start: int, end: int) -> Future[bytes]:
        """Begins to read the bytes start:end of an object; the result has exactly these, or raises StoreError."""
        return self._submit(self._fetched(stored, start, end))

    async def _fetched(self, stored: StoredObject, start: int, end: int) -> bytes:
        for pause in (*_PAUSES, None):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    data = await self._ranged(stored, start, end)
            except Exception as error:
                refused = refusal(error, stored.url)
                if pause is None or refused.kind in ("missing", "denied", "replaced"):
                    raise refused from None
            else:
                if len(data) == end - start:
                    return data
                if pause is None:
                    asked = f"{len(data):,} bytes for the {end - start:,} at {start:,}"
                    raise StoreError(
                        f"cannot read {stored.shown}: the server sent {asked}", "download it, or try again"
                    )
            await asyncio.sleep(pause)
        raise AssertionError

    async def _ranged(self, stored: StoredObject, start: int, end: int) -> bytes:
        if hasattr(self._fs, "_call_s3"):  # not by _cat_file(), which keeps the ETag of the answer to itself
            bucket, _, key = self._key(stored.url).partition("/")
            told = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            async with told["Body"] as body:
                _refuse_another(stored, _etag(told))
                return bytes(await body.read())
        if not self._http:
            return bytes(await self._fs._cat_file(self._key(stored.url), start=start, end=end))
        # fsspec would read the whole object when the server ignores the range, however long it is
        session = await self._fs.set_session()
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"} if stored.ranged else {}
        async with session.get(self._fs.encode_url(stored.url), headers=headers) as answer:
            answer.raise_for_status()
            if answer.status != 206 and end - start != stored.size:
                why = f"cannot read {stored.shown}: the server sends no parts of it (no HTTP ranges)"
                raise StoreError(why, "download it first", "missing")
            _refuse_another(stored, _etag(answer.headers))
            data = bytearray()
            while len(data) <= end - start and (more := await answer.content.read(1 << 20)):
                data += more
            return bytes(data)

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, url: str, data: bytes, seconds: float = REQUEST_SECONDS) -> None:
        """Writes an object, or replaces it. Raises StoreError."""
        self._run(self._fs._pipe_file(self._key(url), data), url, "write", seconds)

    def remove(self, url: str) -> None:
        """Removes an object. Raises StoreError."""
        self._run(self._fs._rm_file(self._key(url)), url, "remove")


def _etag(info: Mapping[str, Any]) -> str:
    return str(info.get("ETag") or "").removeprefix("W/").strip('"')


def _refuse_another(stored: StoredObject, etag: str) -> None:
    """Raises StoreError when the ETag of an answer is not that of the object that was opened."""
    if stored.etag and etag and etag != stored.etag:
        raise StoreError(f"{stored.shown} was replaced while it was read", "open it again", "replaced")


def _version(info: dict[str, Any]) -> str:
    names = ("ETag", "etag", "generation", "Last-Modified", "LastModified", "last_modified", "updated")
    return next((str(info[name]).strip('"') for name in names if info.get(name)), "")

"""What a store refuses, in one line without credentials."""

from __future__ import annotations

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.storage.urls import scheme_of, shown, without_secrets

_RIGHTS = {
    "s3": "check the credentials of AWS_* or ~/.aws, and that they may list, get and put objects of the bucket",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and that they may list, get and create objects of the bucket",
    "az": "check AZURE_STORAGE_*, and that they may list, read and create blobs of the container",
}
_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_CONNECTION_STRING"}
#: Names of the libraries' exceptions: importing them all to compare classes would import all libraries.
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "DefaultCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
}
_DENIED = {"ClientAuthenticationError", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_UNREACHABLE = {
    "EndpointConnectionError", "ClientConnectorError", "ClientConnectorDNSError", "ServiceRequestError",
    "ConnectTimeoutError", "ServerDisconnectedError", "ConnectionClosedError", "ClientOSError",
}  # fmt: skip
_SHORT = {"ClientPayloadError", "IncompleteRead", "ResponseStreamingError", "IncompleteReadError"}


class StoreError(TraceFileError):
    """A store refused a request.

    Attributes:
        kind: `missing`, `denied`, `unreachable`, `replaced` or `other`.
    """

    def __init__(self, why: str, remedy: str = "", kind: str = "other") -> None:
        super().__init__(why, remedy)
        self.kind = kind


def refusal(error: BaseException, url: str, doing: str = "read") -> StoreError:
    """What a library raised for a URL, as an error in one line.

    Args:
        error: the exception.
        url: the object or bucket.
        doing: what was tried: `read`, `list` or `write`.
    """
    if isinstance(error, StoreError):
        return error
    name, status = _names(error), _status(error)
    scheme = scheme_of(url)
    where = f"cannot {doing} {shown(url)}"
    if name & _NO_CREDENTIALS:
        return StoreError(f"{where}: no credentials were found", _RIGHTS.get(scheme, ""), "denied")
    if isinstance(error, PermissionError) or name & _DENIED or status in (401, 403):
        return StoreError(f"{where}: access is denied", _RIGHTS.get(scheme, "check the URL"), "denied")
    if name & _SHORT:
        return StoreError(f"{where}: the server ended its answer too early", "try again")
    if (isinstance(error, FileNotFoundError) and status is None) or status in (404, 410):
        return StoreError(f"{where}: there is no such object or bucket", "", "missing")
    if isinstance(error, TimeoutError) or "FSTimeoutError" in name:
        return StoreError(f"{where}: the server does not answer", "check the network and the endpoint", "unreachable")
    if isinstance(error, ConnectionError) or name & _UNREACHABLE:
        variable = _ENDPOINT.get(scheme)
        return StoreError(
            f"{where}: the server cannot be reached",
            "check the network" + (f", and {variable} if it is set" if variable else ""),
            "unreachable",
        )
    told = f"HTTP status {status}" if status is not None else f"{type(error).__name__}: {error}"
    return StoreError(f"{where}: {without_secrets(told)[:300]}")


def _names(error: BaseException) -> set[str]:
    """The names of the classes of an exception and of what caused it."""
    found: set[str] = set()
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            break
        found |= {one.__name__ for one in type(seen).__mro__}
        seen = seen.__cause__
    return found


def _status(error: BaseException) -> int | None:
    """The HTTP status that an exception or its cause tells; None when none does."""
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            break
        for name in ("status", "status_code", "code"):
            status = getattr(seen, name, None)
            if isinstance(status, int) and 400 <= status < 600:
                return status
        seen = seen.__cause__
    return None

"""URLs of objects, and texts about them that are free of credentials. Imports nothing heavy: every session loads it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_URL = r"(s3|gs|az)://"
_GLOB = r"[*?\[]"
#: What precedes the last `@` of a URL's host, and what follows `?`: a user with a password, a signature.
_USER, _QUERY = r"(?<=://)[^/\s]*@", r"(?<=\S)\?[^\s'\"]+"
_CREDENTIAL = r"KEY|SECRET|TOKEN|PASSWORD|CONNECTION_STRING|SIGNATURE"
#: A shorter value of a variable is no secret, and would be replaced within words.
_SECRET_CHARS = 6


class StoredObject(NamedTuple):
    """An object as a listing or a HEAD request describes it.

    url: its URL, which may hold credentials: it is never printed. size: bytes. etag: its ETag, which differs once it is
    overwritten; "" = not known.
    """

    url: str
    size: int
    etag: str = ""

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return shown(self.url)


#: Where a part of a trace is: the path of a file, or an object.
Place = str | StoredObject


def is_url(path: str) -> bool:
    """Whether a path names an object: it begins with s3://, gs:// or az://."""
    return re.match(_URL, path) is not None


def scheme_of(url: str) -> str:
    """The scheme of a URL, such as `s3`."""
    return url.partition("://")[0]


def is_pattern(url: str) -> bool:
    """Whether a URL stands for several objects."""
    return re.search(_GLOB, url) is not None


def fixed_prefix(url: str) -> str:
    """What precedes the first wildcard of a URL."""
    found = re.search(_GLOB, url)
    return url if found is None else url[: found.start()]


def shown(url: str) -> str:
    """A URL without what may be a credential: a user with a password."""
    return re.sub(_USER, "", url)


def without_secrets(text: str) -> str:
    """A text of a library, in one line, without credentials in URLs and without the values of secret variables."""
    text = re.sub(_QUERY, "", re.sub(_USER, "", " ".join(text.split())))
    secrets = (value for name, value in os.environ.items() if re.search(_CREDENTIAL, name.upper()))
    for secret in sorted((value for value in secrets if len(value) >= _SECRET_CHARS), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text

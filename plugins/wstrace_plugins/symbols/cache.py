"""ImageCache: the most recently used images, by build-id and by file, within a bound."""

from __future__ import annotations

from collections import OrderedDict

from wstrace_plugins.symbols.image import Image

#: device, inode, size, time of the last change
Identity = tuple[int, int, int, int]


class ImageCache:
    """Images by the identity of their file; a build-id finds the same image without opening a file.

    A file that is no image is kept as None, so that it is not read again. The least recently used image is dropped
    first.
    """

    MAX_IMAGES = 4096

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._images: OrderedDict[Identity, Image | None] = OrderedDict()
        self._builds: dict[str, Identity] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._images)

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._images

    def __getitem__(self, identity: Identity) -> Image | None:
        self._images.move_to_end(identity)
        return self._images[identity]

    def build(self, build_id: str) -> Image | None:
        """The image with that build-id, if one is held."""
        identity = self._builds.get(build_id)
        return self[identity] if identity is not None else None

    def add(self, identity: Identity, image: Image | None) -> None:
        """Adds an image, and drops others when they are too many or too large together. The newest one always stays."""
        self._images[identity] = image
        if image is not None:
            self.nbytes += image.nbytes
            if image.build_id:
                self._builds[image.build_id] = identity
        while len(self._images) > 1 and (self.nbytes > self._max_bytes or len(self._images) > self.MAX_IMAGES):
            oldest, gone = self._images.popitem(last=False)
            if gone is not None:
                self.nbytes -= gone.nbytes
                if self._builds.get(gone.build_id) == oldest:
                    del self._builds[gone.build_id]

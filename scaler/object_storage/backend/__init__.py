"""Large objects in a bucket or shared directory. The object storage writes and deletes objects (`run`); stores read
chunks and write objects that no other store has (`client`). Content is authenticated with a key kept elsewhere
(`sealed`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from scaler.errors import UsageError


class ObjectFolder(Protocol):
    """A folder of a bucket or filesystem. Blocking and thread-safe. Raises UnreachableError with advice."""

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        """Write an object atomically."""

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        """Return bytes [start, end) of an object; end None: to its end. Raises ObjectLostError if it does not exist."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Ignores missing ones."""

    def folders(self) -> list[str]:
        """Return the names of subfolders."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects in a folder, each prefixed with the folder's name."""


def open_backend(url: str) -> ObjectFolder:
    """Return the folder at a URL (s3:// or any fsspec scheme) without connecting. Raises UsageError."""
    scheme, _, path = url.partition("://")
    if not scheme or not path:
        raise UsageError(f"backend = {url!r} is not a URL such as s3://bucket/prefix or file:///shared/directory")
    if scheme == "s3":
        from scaler.object_storage.backend.s3 import S3Folder  # noqa: PLC0415 (boto3 takes half a second)

        return S3Folder(url)
    from scaler.object_storage.backend.filesystem import FilesystemFolder  # noqa: PLC0415 (needs an extra)

    return FilesystemFolder(url)

"""Large objects in a bucket or a shared directory, where the stores of all hosts read and write them.

The object storage writes them and deletes them (`run`); stores read chunks of them, and write what only they have, with
the same `client`. What is stored is verified with a key that the bucket does not have (`sealed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from scaler.errors import UsageError


class ObjectFolder(Protocol):
    """A folder of a bucket or filesystem. Calls block; threads share it. Raises UnreachableError with advice."""

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        """Write an object, which is there when all of it is."""

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        """Return a range of an object; end None: to its end. Raises ObjectLostError when there is no such object."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as far as they are there."""

    def folders(self) -> list[str]:
        """Return the names of the folders in this one."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects in a folder, which begin with that of the folder."""


def open_backend(url: str) -> ObjectFolder:
    """Return the folder at a URL, s3:// or any of fsspec, without connecting. Raises UsageError."""
    scheme, _, path = url.partition("://")
    if not scheme or not path:
        raise UsageError(f"backend = {url!r} is not a URL such as s3://bucket/prefix or file:///shared/directory")
    if scheme == "s3":
        from scaler.object_storage.backend.s3 import S3Folder  # noqa: PLC0415 (boto3 takes half a second)

        return S3Folder(url)
    from scaler.object_storage.backend.filesystem import FilesystemFolder  # noqa: PLC0415 (needs an extra)

    return FilesystemFolder(url)

"""A folder of a bucket or of any fsspec filesystem. boto3 and fsspec are imported where they are used."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from scaler.errors import ObjectLostError, ScalerError, UnreachableError, UsageError
from scaler.extras import require

_OWN_MEMORY = {"memory"}
"""Filesystems private to one process, which no other store could read."""
_LOCAL = {"file", "local"}

PART_BYTES = 16 * 1024 * 1024
"""Size of a part. At most 10,000 parts per upload limit an object to 160 GB."""
THREADS_OF_UPLOAD = 4
CONNECTIONS = 32
CONNECT_SECONDS = 5
READ_SECONDS = 30
ATTEMPTS = 4
NAMES_PER_DELETE = 1000
_MISSING = {"NoSuchKey", "404"}


class ObjectFolder(Protocol):
    """A folder of a bucket or filesystem. Blocking and thread-safe. Raises UnreachableError with advice."""

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        """Write an object atomically."""

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        """Return bytes [start, end) of an object; end None: to the end. Raises ObjectLostError if it does not exist."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Ignores missing objects."""

    def folders(self) -> list[str]:
        """Return the names of subfolders."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects in a folder, each prefixed with the folder's name."""


def open_backend(url: str) -> ObjectFolder:
    """Return the folder at a URL (s3:// or any fsspec scheme) without connecting. Raises UsageError."""
    scheme, _, path = url.partition("://")
    if not scheme or not path:
        raise UsageError(f"backend = {url!r} is not a URL such as s3://bucket/prefix or file:///shared/directory")
    return S3Folder(url) if scheme == "s3" else FilesystemFolder(url)


class S3Folder:
    """A folder of an S3 bucket or compatible service. Credentials come from boto3's default chain."""

    def __init__(self, url: str) -> None:
        require("boto3", f"backend = {url!r}")
        import boto3  # noqa: PLC0415 (only where there is such a backend: it takes half a second)
        from botocore.config import Config  # noqa: PLC0415 (as boto3)

        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/".removeprefix("/")
        self._url = url
        timeouts = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
        config = Config(**timeouts, retries=retries, max_pool_connections=CONNECTIONS)
        with self._telling("use"):
            try:
                self._client = boto3.session.Session().client("s3", config=config)
            except ValueError as error:  # a malformed endpoint in the environment
                raise UsageError(f"backend = {url!r}: {error}") from None

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 (as boto3)

        parts = {"multipart_threshold": PART_BYTES, "multipart_chunksize": PART_BYTES}
        how = TransferConfig(**parts, max_concurrency=THREADS_OF_UPLOAD)
        with self._telling("s3:PutObject"):
            # Buffered, so that only the last read is shorter than requested, because S3 rejects small parts.
            self._client.upload_fileobj(
                io.BufferedReader(_Content(content)), self._bucket, self._prefix + name, Config=how
            )

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        wanted = f"bytes={start}-{'' if end is None else end - 1}"
        with self._telling("s3:GetObject"):
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, Range=wanted)
            return bytes(found["Body"].read())

    def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), NAMES_PER_DELETE):
            keys = [{"Key": self._prefix + name} for name in names[start : start + NAMES_PER_DELETE]]
            with self._telling("s3:DeleteObject"):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
            for error in answer.get("Errors", []):
                raise UnreachableError(f"s3:DeleteObject at {self._url}: {error['Code']}: {error['Message']}")

    def folders(self) -> list[str]:
        found = self._pages(self._prefix, Delimiter="/")
        return [each["Prefix"][len(self._prefix) : -1] for page in found for each in page.get("CommonPrefixes", [])]

    def names(self, folder: str) -> list[str]:
        found = self._pages(f"{self._prefix}{folder}/")
        return [each["Key"][len(self._prefix) :] for page in found for each in page.get("Contents", [])]

    def _pages(self, prefix: str, **parameters: str) -> list[Any]:
        with self._telling("s3:ListBucket"):
            pages = self._client.get_paginator("list_objects_v2")
            return list(pages.paginate(Bucket=self._bucket, Prefix=prefix, **parameters))

    @contextmanager
    def _telling(self, action: str) -> Iterator[None]:
        """Translate boto3 errors. action: the required permission."""
        from boto3.exceptions import Boto3Error  # noqa: PLC0415 (as boto3)
        from botocore import exceptions as e  # noqa: PLC0415 (as boto3)

        try:
            yield
        except e.ClientError as error:
            code, message = str(error.response["Error"]["Code"]), error.response["Error"].get("Message", "")
            if code in _MISSING and action == "s3:GetObject":
                raise ObjectLostError(f"it is not at {self._url}") from None
            advice = {
                "NoSuchBucket": f"create the bucket {self._bucket}, or choose another",
                "AccessDenied": f"allow {action} for these credentials",
                "403": f"allow {action} for these credentials",
            }.get(code, "look up this code in the S3 documentation")
            raise UnreachableError(f"{action} at {self._url}: {code}: {message}: {advice}") from None
        except (e.NoCredentialsError, e.ProfileNotFound, e.PartialCredentialsError, e.TokenRetrievalError) as error:
            advice = "give this host a role, a profile (AWS_PROFILE), or AWS keys"
            raise UnreachableError(f"{action} at {self._url}: {error}: {advice}") from None
        except (e.BotoCoreError, Boto3Error) as error:
            raise UnreachableError(f"{action} at {self._url}: {error}") from None


class _Content(io.RawIOBase):
    def __init__(self, content: Iterable[memoryview]) -> None:
        self._content = iter(content)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._content, self._rest)
        size = min(self._rest.nbytes, len(buffer))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class FilesystemFolder:
    """A folder of any fsspec filesystem, such as a shared directory or another cloud's object store. fsspec reads
    credentials from the environment and its own configuration."""

    def __init__(self, url: str) -> None:
        require("fsspec", f"backend = {url!r}")
        from fsspec.core import url_to_fs  # noqa: PLC0415 (only where there is such a backend)

        self._url = url
        scheme = url.partition("://")[0]
        if scheme in _OWN_MEMORY:
            raise UsageError(f"backend = {url!r}: other processes cannot read it: use a filesystem that hosts share")
        try:
            self._files, self._root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            text = f"backend = {url!r}: {error}: install the fsspec driver for {scheme}, or use another URL"
            raise UsageError(text) from None
        except Exception as error:  # noqa: BLE001 (each filesystem raises its own errors)
            raise UnreachableError(f"{url}: {error}") from None
        self._is_local = scheme in _LOCAL

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        path = f"{self._root}/{name}"
        with self._telling("write"):
            folder = path.rpartition("/")[0]
            self._files.makedirs(folder, exist_ok=True)
            if self._is_local:
                Path(folder).chmod(0o700)
            # On disk, a file is visible before it is complete, unlike objects elsewhere.
            first = f"{path}.part" if self._is_local else path
            try:
                with self._files.open(first, "wb") as file:
                    for each in content:
                        file.write(each)
                if self._is_local:
                    Path(first).replace(path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(first)
                raise

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        with self._telling("read"):
            return bytes(self._files.cat_file(f"{self._root}/{name}", start=start, end=end))

    def delete(self, names: Sequence[str]) -> None:
        with self._telling("delete"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")
            for folder in {name.rpartition("/")[0] for name in names}:
                with suppress(Exception):  # a folder that is not empty, or a filesystem without folders
                    self._files.rmdir(f"{self._root}/{folder}".rstrip("/"))

    def folders(self) -> list[str]:
        with self._telling("list"):
            if not self._files.exists(self._root):
                return []
            found = self._files.ls(self._root, detail=True)
            return [each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory"]

    def names(self, folder: str) -> list[str]:
        with self._telling("list"):
            found = self._files.find(f"{self._root}/{folder}")
            return [f"{folder}/{each.rpartition('/')[2]}" for each in found]

    @contextmanager
    def _telling(self, action: str) -> Iterator[None]:
        try:
            yield
        except ScalerError:
            raise
        except FileNotFoundError:
            if action == "read":
                raise ObjectLostError(f"it is not at {self._url}") from None
            raise UnreachableError(f"cannot {action} at {self._url}: no such folder") from None
        except Exception as error:  # noqa: BLE001 (each filesystem raises its own errors)
            raise UnreachableError(f"cannot {action} at {self._url}: {error}") from None

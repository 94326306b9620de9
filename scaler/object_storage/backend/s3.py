"""A folder of an S3 bucket or compatible service. Credentials come from boto3's default chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scaler.errors import ObjectLostError, UnreachableError, UsageError
from scaler.extras import require

PART_BYTES = 16 * 1024 * 1024
"""Size of a part. At most 10,000 parts per upload limit an object to 160 GB."""
THREADS_OF_UPLOAD = 4
CONNECTIONS = 32
CONNECT_SECONDS = 5
READ_SECONDS = 30
ATTEMPTS = 4
NAMES_PER_DELETE = 1000
_MISSING = {"NoSuchKey", "404"}


class S3Folder:
    def __init__(self, url: str) -> None:
        require("aws", "boto3", f"backend = {url!r}")
        import boto3  # noqa: PLC0415 (only where there is such a backend: it takes half a second)
        from botocore.config import Config  # noqa: PLC0415 (as boto3)

        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/".removeprefix("/")
        self._url = url
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=CONNECTIONS,
        )
        with self._telling("use"):
            try:
                self._client = boto3.session.Session().client("s3", config=config)
            except ValueError as error:  # a malformed endpoint in the environment
                raise UsageError(f"backend = {url!r}: {error}") from None

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 (as boto3)

        how = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=THREADS_OF_UPLOAD
        )
        with self._telling("s3:PutObject"):
            self._client.upload_fileobj(_Stream(content), self._bucket, self._prefix + name, Config=how)

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
                raise ObjectLostError(f"{self._url} does not have it") from None
            advice = {
                "NoSuchBucket": f"create the bucket {self._bucket}, or name another one",
                "AccessDenied": f"allow {action} for these credentials",
                "403": f"allow {action} for these credentials",
            }.get(code, "see the documentation of S3 for this code")
            raise UnreachableError(f"{action} at {self._url}: {code}: {message}: {advice}") from None
        except (e.NoCredentialsError, e.ProfileNotFound, e.PartialCredentialsError, e.TokenRetrievalError) as error:
            advice = "give this host a role, a profile (AWS_PROFILE), or keys of AWS"
            raise UnreachableError(f"{action} at {self._url}: {error}: {advice}") from None
        except (e.BotoCoreError, Boto3Error) as error:
            raise UnreachableError(f"{action} at {self._url}: {error}") from None


class _Stream:
    def __init__(self, content: Iterable[memoryview]) -> None:
        self._content = iter(content)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """Return exactly `size` bytes, fewer only at the end: S3 rejects small parts."""
        pieces: list[memoryview] = []
        while size:
            self._rest = self._rest or next(self._content, self._rest)
            if not self._rest:
                break
            piece = self._rest[:size] if size > 0 else self._rest
            self._rest = self._rest[piece.nbytes :]
            size -= piece.nbytes if size > 0 else 0
            pieces.append(piece)
        return b"".join(pieces)

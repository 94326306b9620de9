"""A lease in an object on S3, changed only by conditional writes (compare and set)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Self

from scaler.errors import UsageError
from scaler.extensions.standby.term import own_id
from scaler.extras import require
from scaler.net.address import own_address

TIMEOUT_SECONDS = 3.0
_CHANGED = ("PreconditionFailed", "ConditionalRequestConflict")
_ABSENT = ("NoSuchKey", "404")


class LeaseRecord(NamedTuple):
    """holder: the scheduler's address. owner: id of its state directory. standby: address of a standby that has every
    acknowledged record, or empty. version: unique."""

    epoch: int
    holder: str
    owner: str
    standby: str
    version: str


class Lease:
    """tag: ETag of the last version read or written. The next write must replace that version."""

    def __init__(self, url: str, holder: str, owner: str) -> None:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        if not (url.startswith("s3://") and bucket and key):
            raise UsageError(f"standby_lease {url!r}: write s3://bucket/key")
        require("boto3", "standby_lease")
        self.holder, self.owner = holder, owner
        self.tag = ""
        self.is_lost = False
        self._object = {"Bucket": bucket, "Key": key}
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, config: Any) -> Self | None:
        if not config.standby_lease:
            return None
        return cls(config.standby_lease, own_address(config.bind_address), own_id(config))

    @cached_property
    def _s3(self) -> Any:
        import boto3  # noqa: PLC0415 (optional)
        from botocore.config import Config  # noqa: PLC0415

        options = Config(connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"max_attempts": 1})
        return boto3.session.Session().client("s3", config=options)

    def close(self) -> None:
        if "_s3" in vars(self):  # only if it was used
            self._s3.close()

    async def _call(self, name: str, **arguments: Any) -> Any:
        """Return the answer, or the code of an expected error. Raises OSError for other errors."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        def call() -> Any:
            answer = getattr(self._s3, name)(**self._object, **arguments)
            return answer["ETag"], answer["Body"].read() if "Body" in answer else b""

        try:
            return await asyncio.get_running_loop().run_in_executor(None, call)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in (*_CHANGED, *_ABSENT):
                return code
            raise OSError(str(error)) from error
        except (BotoCoreError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
            raise OSError(str(error)) from error

    async def read(self) -> LeaseRecord | None:
        """Raises OSError."""
        answer = await self._call("get_object")
        if isinstance(answer, str):
            self.tag = ""
            return None
        tag, body = answer
        try:
            found = LeaseRecord(**json.loads(body))
        except (TypeError, ValueError):
            raise OSError("the object is not a lease: name another object in standby_lease") from None
        self.tag = tag
        return found

    async def write(self, epoch: int, standby: str) -> bool:
        """Replace the version `tag`. Returns False if the object has another version. Raises OSError."""
        record = LeaseRecord(epoch, self.holder, self.owner, standby, os.urandom(8).hex())
        condition = {"IfMatch": self.tag} if self.tag else {"IfNoneMatch": "*"}
        answer = await self._call("put_object", Body=json.dumps(record._asdict()).encode(), **condition)
        if isinstance(answer, str):  # a repetition of this write may have found its own version
            return await self.read() == record
        self.tag, _ = answer
        return True

    async def renew(self, epoch: int, standby: Callable[[], str] = lambda: "") -> str | None:
        """Renew the lease. Returns None, or the reason for a failure, which is permanent if `is_lost`. standby: returns
        the standby to record; called after all earlier calls of `renew` have ended."""
        try:
            async with self._lock:
                if self.tag and await self.write(epoch, standby()):
                    return None
                found = await self.read()
                if found is not None and (found.epoch, found.owner) != (epoch, self.owner) and found.epoch >= epoch:
                    self.is_lost = True
                    return f"{found.holder} has the lease"
                return None if await self.write(epoch, standby()) else "the lease changed during the renewal"
        except OSError as error:
            return f"the lease cannot be renewed: {error}"

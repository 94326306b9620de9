"""The objects of one session in S3: calls on their way to jobs, and results on their way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaler.worker_manager.aws.calls import AwsClient, AwsError, steady
from scaler.worker_manager.aws_hpc.context import SETUP, BatchContext

DELETED_AT_ONCE = 1000
"""Most keys of one DeleteObjects."""


@dataclass(frozen=True, slots=True)
class ResultKey:
    """The key of the result of one call."""

    number: int
    """Of the submission that the call was part of."""
    index: int
    key: str


class SessionObjects:
    """Its methods may be called from any thread. All raise AwsError."""

    def __init__(self, context: BatchContext, session: str, s3: AwsClient) -> None:
        self._s3 = s3
        self._context = context
        self._bucket = context.s3_bucket
        self._prefix = context.session_keys(session)

    def check(self) -> None:
        """Check that the bucket exists and may be used."""
        try:
            self._s3.call("HeadBucket", Bucket=self._bucket)
        except AwsError as error:
            if error.code in ("404", "NoSuchBucket", "NotFound"):
                text = f"there is no bucket {self._bucket!r}: {SETUP} makes it, or change s3_bucket"
                raise AwsError(text, "refused", error.code) from error
            raise

    def call_key(self, number: int) -> str:
        """Return the key of the calls of a submission."""
        return f"{self._prefix}calls/{number}"

    def result_prefix(self, number: int) -> str:
        """Return the prefix of the keys of a submission's results; the index follows."""
        return f"{self._prefix}results/{number}/"

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._s3.call("PutObject", Bucket=self._bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        """Return an object."""
        answer = self._s3.call("GetObject", Bucket=self._bucket, Key=key)
        with self._s3.errors("GetObject"):
            data: bytes = answer["Body"].read()
        return data

    def results(self) -> list[ResultKey]:
        """Return all results that exist, of all submissions."""
        prefix = f"{self._prefix}results/"
        found = []
        for key in self._keys(prefix):
            number, _, index = key.removeprefix(prefix).partition("/")
            if number.isdecimal() and index.isdecimal():
                found.append(ResultKey(int(number), int(index), key))
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. Those that do not exist are no error."""
        for at in range(0, len(keys), DELETED_AT_ONCE):
            batch = [{"Key": key} for key in keys[at : at + DELETED_AT_ONCE]]
            answer = self._s3.call("DeleteObjects", Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in answer.get("Errors", [])[:1]:
                raise AwsError(f"S3 DeleteObjects refused ({error['Code']}): {steady(error['Message'])}", "refused")

    def clear(self) -> int:
        """Remove all objects of this session. Returns how many."""
        left = list(self._keys(self._prefix))
        self.delete(left)
        return len(left)

    def clear_others(self) -> int:
        """Remove the objects of earlier sessions of this manager. Returns how many."""
        left = [key for key in self._keys(self._context.keys) if not key.startswith(self._prefix)]
        self.delete(left)
        return len(left)

    def close(self) -> None:
        """Close the connections."""
        self._s3.close()

    def _keys(self, prefix: str) -> Iterator[str]:
        pages: Iterable[dict[str, list[dict[str, str]]]] = self._s3.pages(
            "ListObjectsV2", Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield entry["Key"]

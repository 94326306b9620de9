"""Buckets that `setup` makes, found by their tags."""

from __future__ import annotations

from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import AwsError, Fields
from scaler.worker_manager.aws.setup import MANAGED_PAIRS, Resource

NO_BUCKET = ("404", "NoSuchBucket", "NotFound")
OLDEST_REGION = "us-east-1"
"""S3 refuses this one as a location constraint."""


class BucketResource(Resource):
    """A bucket. S3 encrypts new ones and closes them to the public by itself."""

    service, kind = "s3", "bucket"

    def describe(self) -> Fields | None:
        try:
            found = self.find("HeadBucket", *NO_BUCKET, Bucket=self.name)
        except AwsError as error:
            if error.code != "403":
                raise
            raise UsageError(
                f"the bucket {self.name!r} belongs to another account, or you may not look at it: names of buckets are "
                "unique in the whole world; choose another s3_bucket"
            ) from error
        return None if found is None else self.find("GetBucketTagging", "NoSuchTagSet", Bucket=self.name) or {}

    def create(self) -> None:
        region = self.account.region
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != OLDEST_REGION else {}
        self.call("CreateBucket", Bucket=self.name, **where)
        # The tag comes first: what fails after it is corrected by the next setup, or removed by teardown.
        self.call("PutBucketTagging", Bucket=self.name, Tagging={"TagSet": MANAGED_PAIRS})

    def delete(self, _: Fields) -> None:
        self.call("DeleteBucket", Bucket=self.name)

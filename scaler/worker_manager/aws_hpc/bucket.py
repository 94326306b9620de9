"""The bucket that calls and results pass through: made, shown and removed."""

from __future__ import annotations

from scaler.errors import UsageError
from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws.setup_tools import MANAGED_TAG, NOT_OURS, Steps, is_ours
from scaler.worker_manager.aws_hpc.requests import Fields
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.wanted import ENCRYPTION, EXPIRY_DAYS, NO_PUBLIC_ACCESS, RULE_ID, lifecycle

OLDEST_REGION = "us-east-1"
"""S3 takes no place for buckets there."""
DELETED_AT_ONCE = 1000


class Bucket:
    """The bucket of a configuration. All methods raise AwsError."""

    def __init__(self, config: AwsHpcConfig, s3: AwsCalls, steps: Steps) -> None:
        self._s3 = s3
        self._steps = steps
        self._name = config.s3_bucket
        self._prefix = config.s3_prefix
        self._region = config.aws_region

    def ensure(self) -> None:
        """Make it, encrypted and closed to the public, with objects that expire. Raises UsageError too."""
        what = f"bucket {self._name}"
        if not self._is_there():
            self._steps.create(f"{what}, whose objects expire after {EXPIRY_DAYS} days", self._create)
        elif not self._is_ours():
            self._steps.exists(what, NOT_OURS)
            if not self._expires():
                self._steps.note(
                    f"no rule of the bucket {self._name} removes old objects below {self._prefix}/: give it one, "
                    "for what a manager that was killed has left"
                )
        else:
            self._steps.exists(what)
            if not self._expires():
                self._steps.change(f"expiry of the {what}: {EXPIRY_DAYS} days below {self._prefix}/", self._furnish)

    def show(self) -> None:
        """Say whether it is there."""
        what = f"bucket {self._name}"
        if not self._is_there():
            self._steps.missing(what)
        else:
            self._steps.exists(what, "" if self._is_ours() else NOT_OURS)

    def remove(self) -> bool:
        """Remove it with its objects, if it is ours. Returns False when it is kept for objects of others."""
        what = f"bucket {self._name}"
        if not self._is_there():
            self._steps.missing(what)
            return True
        if not self._is_ours():
            self._steps.keep(what, NOT_OURS)
            return True
        foreign = next((key for key in self._keys("") if not key.startswith(f"{self._prefix}/")), None)
        if foreign is not None:
            self._steps.keep(what, f"{foreign} is in it, and not below {self._prefix}/")
            return False
        self._steps.remove(f"{what} with its objects", self._delete)
        return True

    def _is_there(self) -> bool:
        try:
            self._s3.call("HeadBucket", Bucket=self._name)
        except AwsError as error:
            if error.code == "403":
                raise UsageError(
                    f"the bucket {self._name!r} is somebody else's, or you may not look at it: names of buckets are "
                    "unique in the whole world; choose another s3_bucket"
                ) from error
            if error.code not in ("404", "NoSuchBucket", "NotFound"):
                raise
            return False
        return True

    def _is_ours(self) -> bool:
        return is_ours(self._asked("GetBucketTagging", "NoSuchTagSet").get("TagSet", []))

    def _expires(self) -> bool:
        rules = self._asked("GetBucketLifecycleConfiguration", "NoSuchLifecycleConfiguration").get("Rules", [])
        return any(rule.get("Status") == "Enabled" and self._covers(rule) for rule in rules)

    def _covers(self, rule: Fields) -> bool:
        prefix = (rule.get("Filter") or {}).get("Prefix", rule.get("Prefix"))
        return "Expiration" in rule and prefix is not None and f"{self._prefix}/".startswith(prefix)

    def _asked(self, operation: str, absent: str) -> Fields:
        try:
            return self._s3.call(operation, Bucket=self._name)
        except AwsError as error:
            if error.code != absent:
                raise
            return {}

    def _create(self) -> None:
        name = self._name
        place = {} if self._region == OLDEST_REGION else {"LocationConstraint": self._region}
        self._s3.call("CreateBucket", Bucket=name, **({"CreateBucketConfiguration": place} if place else {}))
        # The tag comes first: what fails after it is mended by the next setup, or removed by teardown.
        tags = {"TagSet": [{"Key": MANAGED_TAG, "Value": "true"}]}
        self._s3.call("PutBucketTagging", Bucket=name, Tagging=tags)
        self._furnish()

    def _furnish(self) -> None:
        """Give it all that it should have; the rules, whose lack is noticed, come last."""
        name = self._name
        self._s3.call("PutPublicAccessBlock", Bucket=name, PublicAccessBlockConfiguration=NO_PUBLIC_ACCESS)
        self._s3.call("PutBucketEncryption", Bucket=name, ServerSideEncryptionConfiguration=ENCRYPTION)
        rules = self._asked("GetBucketLifecycleConfiguration", "NoSuchLifecycleConfiguration").get("Rules", [])
        others = [rule for rule in rules if rule.get("ID") != RULE_ID]
        wanted = {"Rules": [*others, *lifecycle(self._prefix)["Rules"]]}
        self._s3.call("PutBucketLifecycleConfiguration", Bucket=name, LifecycleConfiguration=wanted)

    def _delete(self) -> None:
        keys = list(self._keys(""))
        for at in range(0, len(keys), DELETED_AT_ONCE):
            batch = [{"Key": key} for key in keys[at : at + DELETED_AT_ONCE]]
            self._s3.call("DeleteObjects", Bucket=self._name, Delete={"Objects": batch, "Quiet": True})
        self._s3.call("DeleteBucket", Bucket=self._name)

    def _keys(self, prefix: str) -> list[str]:
        pages = self._s3.pages("ListObjectsV2", Bucket=self._name, Prefix=prefix)
        return [str(entry["Key"]) for page in pages for entry in page.get("Contents", [])]

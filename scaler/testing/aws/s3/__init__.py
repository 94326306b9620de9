"""S3 on loopback: an object store in memory, in path style."""

from __future__ import annotations

from scaler.testing.aws.s3.core import S3Core
from scaler.testing.aws.s3.shell import S3

__all__ = ["S3", "S3Core"]

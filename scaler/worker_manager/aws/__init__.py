"""Common settings of the worker managers on AWS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Name, Names, matching
from scaler.extras import require

Url = Annotated[str, matching(r"https?://[^\s/]+(/\S*)?", "must be a URL such as http://127.0.0.1:5000")]
_BACKEND = matching(r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s*?$]*)?", "must be a URL such as s3://bucket/prefix")
BUCKET_NAME = matching(
    r"|[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "must be the name of a bucket: 3 to 63 lowercase letters, digits, dots, and hyphens",
)


@dataclass(frozen=True, kw_only=True)
class AwsSettings(SettingsModel):
    """AWS. Credentials follow the standard chain: environment, profile, instance."""

    aws_region: Annotated[str, Setting(default_text="from the environment, profile, or instance", metavar="REGION")] = (
        ""
    )
    """Region of the service."""
    aws_endpoint_url: Annotated[Url | None, Setting(default_text="the public endpoint", metavar="URL")] = None
    """Endpoint for AWS services, such as an emulator or a private endpoint."""
    aws_profile: Annotated[Name | None, Setting(default_text="the default chain", metavar="NAME")] = None
    """Profile in the AWS configuration files."""

    def check(self) -> None:
        super().check()
        require("boto3", "a worker manager on AWS")


@dataclass(frozen=True, kw_only=True)
class InstallingSettings(AwsSettings):
    """AWS packages and buckets. Units without an image install scaler from a bucket."""

    worker_requirements: Annotated[Names, Setting(metavar="REQUIREMENT")] = ()
    """Packages to install with scaler in units without an image, in pip syntax: numpy or numpy==2.1.3."""
    object_storage_backend: Annotated[str, _BACKEND, Setting(default_text="none", metavar="URL")] = ""
    """S3 URL from `backend` in [object_storage_server]. `setup` grants the units read and write access to it."""

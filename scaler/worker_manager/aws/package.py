"""Installs this version of scaler from a bucket in units without a custom image. `setup` uploads a wheel and pinned
requirements. A unit installs both with uv, into an environment that later units on the host reuse."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.pins import locked
from scaler.worker.credential import CREDENTIAL_VARIABLE
from scaler.worker_manager.aws import InstallingSettings
from scaler.worker_manager.aws.calls import AwsClient, Fields, steady
from scaler.worker_manager.aws.resources import NO_BUCKET, BucketResource, delete_objects, object_keys
from scaler.worker_manager.aws.setup import MANAGED, Account, Resource
from scaler.worker_manager.backend import exit_text, making_an_image
from scaler.worker_manager.wheel import build_wheel, requirements_of


def platform_of(architecture: str) -> dict[str, str]:
    return {"cpuArchitecture": architecture, "operatingSystemFamily": "LINUX"}


def check_source(image: str | None, bucket: str, image_key: str, bucket_key: str) -> None:
    if image is None and not bucket:
        raise UsageError(
            f"{bucket_key} and {image_key} are missing: set {bucket_key} to a bucket from which workers "
            f"install this version of scaler, or build an image that contains it {making_an_image(image_key)}"
        )


def end_text(reason: str, containers: Iterable[Mapping[str, Any]], *, shown: bool = True) -> str:
    """Return why containers ended: the given reason, and each container's exit code or signal and reason."""
    parts = [reason] if shown else []
    for container in containers:
        if (code := container.get("exitCode")) is not None:
            parts.append(exit_text(code))
        if (own := steady(container.get("reason") or "")) not in reason:
            parts.append(own)
    return "; ".join(part.rstrip(".") for part in parts if part)


PREFIX = "scaler-packages"  # key prefix of all packages
REQUIREMENTS = "requirements.txt"
CACHE = "/var/cache/scaler"  # directory for environments, used if the host has it
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE_IMAGE = f"public.ecr.aws/docker/library/python:{PYTHON}-slim"  # Docker's official image, unthrottled on AWS
ABSENT = (*NO_BUCKET, "NoSuchKey")


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel and its requirements. digest: hash of the contents and base image."""

    wheel: str
    data: bytes
    requirements: Sequence[str]
    digest: str


def package_of(settings: InstallingSettings, event_loop: str) -> Package:
    """Return the package for units with these settings. Raises UsageError if scaler is not properly installed."""
    extras = ("worker", "aws", *(("uvloop",) if event_loop == "uvloop" else ()))
    return _package(extras, tuple(settings.worker_requirements))


@cache
def _package(extras: Sequence[str], own: Sequence[str]) -> Package:
    try:
        requirements = locked(requirements_of(*extras), own)
    except LookupError as error:
        raise UsageError(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        path = build_wheel(Path(folder))
        with zipfile.ZipFile(path) as archive:
            # Hash the contents, which do not depend on the compression library.
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            contents = archive.read(record)
        digest = hashlib.sha256(contents + "\n".join([BASE_IMAGE, *requirements]).encode()).hexdigest()[:16]
        return Package(path.name, path.read_bytes(), requirements, digest)


def install_command(package: Package, region: str, bucket: str, base: str, module: str) -> list[str]:
    """Return a command that installs a package and runs a module. base: name of the definition or launch template.
    boot.sh runs one installation per host at a time and hides the units' credential from the installers. If the machine
    image lacks pip or this minor version of Python, uv's own installer runs, and uv fetches Python."""
    boto3 = next(each for each in package.requirements if each.startswith("boto3"))
    values = {
        "cache": CACHE,
        "digest": package.digest,
        "credential": CREDENTIAL_VARIABLE,
        "python": PYTHON,
        "boto3": boto3,
        "region": region,
        "wheel": package.wheel,
        "requirements": REQUIREMENTS,
        "bucket": bucket,
        "key": _folder(base, package),
    }
    script = resources.files(__package__).joinpath("boot.sh").read_text()
    for name, value in values.items():
        script = script.replace(f"@{name.upper()}@", value)
    return ["sh", "-c", script, module]


def installs_other(command: Sequence[str], package: Callable[[], Package]) -> bool:
    script = " ".join(command)
    return f"{PREFIX}/" in script and package().digest not in script


def package_statements(bucket: str, base: str, partition: str) -> list[Fields]:
    if not bucket:
        return []
    resource = f"arn:{partition}:s3:::{bucket}/{PREFIX}/{base}/*"
    return [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": resource}]


def is_in_bucket(s3: AwsClient, bucket: str, base: str, package: Package) -> bool:
    keys = [f"{_folder(base, package)}{name}" for name in (package.wheel, REQUIREMENTS)]
    return all(s3.find("HeadObject", *ABSENT, Bucket=bucket, Key=key) is not None for key in keys)


def _folder(base: str, package: Package) -> str:
    return f"{PREFIX}/{base}/{package.digest}/"


class PackageResource(Resource):
    """The packages of one definition or template. Earlier versions remain until teardown, for running units."""

    service, kind = "s3", "package"

    def __init__(self, account: Account, bucket: str, base: str, package: Package | None) -> None:
        note = "" if package is None else f": scaler {__version__} and {len(package.requirements)} requirements"
        super().__init__(account, f"s3://{bucket}/{PREFIX}/{base}", note)
        self._bucket, self._base, self._package = bucket, base, package

    def describe(self) -> Fields | None:
        s3 = self.account.client(self.service)
        if self._package is None or not is_in_bucket(s3, self._bucket, self._base, self._package):
            return None
        return {"tags": MANAGED}

    def ensure(self) -> None:
        if self._package is not None:
            super().ensure()

    def describe_all(self) -> Sequence[Fields]:
        if self.find("HeadBucket", *ABSENT, Bucket=self._bucket) is None:
            return []
        keys = list(object_keys(self.account.client("s3"), self._bucket, f"{PREFIX}/{self._base}/"))
        return [{"tags": MANAGED, "keys": keys}] if keys else []

    def create(self) -> None:
        assert self._package is not None, "create() needs a package"
        files = {self._package.wheel: self._package.data, REQUIREMENTS: "\n".join(self._package.requirements).encode()}
        for name, data in files.items():
            self.call("PutObject", Bucket=self._bucket, Key=f"{_folder(self._base, self._package)}{name}", Body=data)

    def delete(self, found: Fields) -> None:
        delete_objects(self.account.client("s3"), self._bucket, found["keys"])


def package_resources(
    account: Account, settings: InstallingSettings, event_loop: str, bucket: str, base: str, *, is_installed: bool
) -> list[Resource]:
    """Return the bucket and its package, or nothing if no bucket is set."""
    package = package_of(settings, event_loop) if is_installed and account.verb != "teardown" else None
    return [PackageBucket(account, bucket), PackageResource(account, bucket, base, package)] if bucket else []


class PackageBucket(BucketResource):
    def in_use(self, _: Fields) -> str:
        # In a dry run, the packages are still in the bucket.
        foreign = self.foreign_key((f"{PREFIX}/",) if self.account.dry_run else ())
        return foreign and f"{foreign} is in it"

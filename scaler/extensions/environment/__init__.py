"""The environment of tasks: uploaded modules, required packages, and different package versions.

client.upload -> upload.py: an archive -> uploaded.py: modules that a processor imports from it
requirements of a worker -> requirements.py: installed packages
packages.py: packages that a function imports -> Spec -> packages.py in a processor -> agent.py -> PackagesDiffer ->
core.py: a notice for the client, and an incident
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaler.plugins import Extension

if TYPE_CHECKING:
    from scaler.extensions.environment.packages import Packages
    from scaler.extensions.environment.uploaded import UploadedModules

EXTENSION = Extension(
    "environment",
    scheduler="scaler.extensions.environment.core:Packages",
    agent="scaler.extensions.environment.agent:report_packages",
    environment="scaler.extensions.environment:Environment",
)


class Environment:
    """What clients and workers use, imported when it is used: few need it."""

    @staticmethod
    def with_upload(before: bytes, path: str | Path) -> bytes:
        from scaler.extensions.environment.upload import with_upload  # noqa: PLC0415 (see the class)

        return with_upload(before, path)

    @staticmethod
    def modules() -> UploadedModules:
        from scaler.extensions.environment.uploaded import UploadedModules  # noqa: PLC0415

        return UploadedModules()

    @staticmethod
    def provide(requirements: Sequence[str], say: Callable[[str], None]) -> Path:
        from scaler.extensions.environment.requirements import provide  # noqa: PLC0415

        return provide(requirements, say)

    @staticmethod
    def packages_of(function: Callable[..., Any]) -> Packages:
        from scaler.extensions.environment.packages import packages_of  # noqa: PLC0415

        return packages_of(function)

    @staticmethod
    def differences(packages: Packages) -> str:
        from scaler.extensions.environment.packages import differences  # noqa: PLC0415

        return differences(packages)

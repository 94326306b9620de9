"""The start command of a container that may have to install with pip first. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from scaler.errors import UsageError


def requirements_of(setting: str, text: str, pinned: Mapping[str, str]) -> list[str]:
    """Return what is to be installed: what the setting says, and what it does not name of the pinned.

    pinned: versions by name. Raises UsageError when the text cannot be read.
    """
    try:
        requirements = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{setting} = {text!r}: {error}; requirements are separated by blanks, and one that has blanks itself "
            "stands in quotes"
        ) from None
    named = {package_of(requirement) for requirement in requirements}
    return [*(f"{name}=={version}" for name, version in pinned.items() if name not in named), *requirements]


def package_of(requirement: str) -> str:
    """Return the name of what a requirement installs: `scaler[x]>=1`, `scaler @ URL`, or a URL or path by its end."""
    named = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*($|[\[@<>=!~;])", requirement)
    if named and not requirement.endswith((".whl", ".tar.gz", ".zip")):
        name = named.group(1)
    else:
        name = re.split("[-@#]", requirement.rpartition("/")[2])[0].removesuffix(".git")
    return re.sub(r"[-_.]+", "-", name).lower()


def pip_install(requirements: Sequence[str]) -> str:
    """Return the words that install these, for a shell."""
    words = ["pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--quiet", *requirements]
    return shlex.join(words)

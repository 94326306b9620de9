"""Requirements pinned to the versions that are installed here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution

EXTRA = re.compile(r"""(?:\s*;\s*|\s+and\s+)extra\s*==\s*['"]([^'"]+)['"]""")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def locked(requirements: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Return requirements pinned to the versions that are installed here, with all that these need in turn.

    own: a user's, which stay as they are; one that is a name alone is pinned too, if it is installed here. What is
    needed on other platforms only is left to the installer.
    """
    found = {_name_of(each): each for each in own}
    pending = [*requirements, *(each for name, each in found.items() if _NAME.fullmatch(each))]
    done = {name for name, each in found.items() if not _NAME.fullmatch(each)}
    while pending:
        name = _name_of(pending.pop())
        if name in done:
            continue
        done.add(name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = f"{name}=={installed.version}"
        pending += [each for each in installed.requires or () if not EXTRA.search(each)]
    return [found[name] for name in sorted(found)]


def _name_of(requirement: str) -> str:
    """Return the normalized name of the package of a requirement; the text itself when it begins with none."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement

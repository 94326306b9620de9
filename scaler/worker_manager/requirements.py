"""What workers need, and no other part of the package: the extra `worker`, in the versions that are installed here.

`python -m scaler.worker_manager.requirements EXTRA...` prints the requirements of extras, as the image of workers does
when it is built: an installation of the package itself would bring the web server and more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution

from scaler.worker_manager.wheel import installation

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXTRA = re.compile(r"""(?:\s*;\s*|\s+and\s+)extra\s*==\s*['"]([^'"]+)['"]""")


def requirements_of(*extras: str) -> list[str]:
    """Return the requirements of these extras, without what the package needs in any case.

    Raises LookupError for an extra that the installation does not have: it is older than the source.
    """
    declared = [(_EXTRA.search(each), each) for each in installation().requires or ()]
    found = {
        extra: [_EXTRA.sub("", each) for match, each in declared if match and match[1] == extra] for extra in extras
    }
    if missing := [extra for extra, names in found.items() if not names]:
        raise LookupError(
            f"the installation of scaler has no extra {missing[0]!r}: install it again, with pip install -e ."
        )
    return [each for names in found.values() for each in names]


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
        pending += [each for each in installed.requires or () if not _EXTRA.search(each)]
    return [found[name] for name in sorted(found)]


def _name_of(requirement: str) -> str:
    """Return the normalized name of the package of a requirement; the text itself when it begins with none."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in requirements_of(*sys.argv[1:])))

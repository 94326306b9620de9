"""Optional parts of the package, whose libraries are installed on request."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from scaler.errors import UsageError

DISTRIBUTION = "scaler-compute"
"""Distribution name of this package. Not on any index yet, where `scaler` is another project. On publication, change
the first section of docs/guide.md, to which all other pages refer."""


def require(extra: str, library: str, what: str) -> None:
    if find_spec(library) is None:
        raise UsageError(f"{what} needs {library}, which is not installed: {advice(extra, library)}")


def advice(extra: str, library: str) -> str:
    """Return the command that installs an extra, regardless of how this package was installed."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 (50 modules that only an error needs)

    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        declared = []
    return f"pip install {shlex.join([*_libraries(declared, extra)] or [library])}"


def _libraries(declared: Iterable[str], extra: str) -> Iterator[str]:
    from scaler.pins import of_extra  # noqa: PLC0415 (an import that only an error needs)

    for each in of_extra(declared, extra):
        if each.name != DISTRIBUTION:
            yield str(each)
        for included in each.extras if each.name == DISTRIBUTION else ():
            yield from _libraries(declared, included)

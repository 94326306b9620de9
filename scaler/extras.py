"""Optional libraries, which are installed on request."""

from __future__ import annotations

from importlib.util import find_spec

from scaler.errors import UsageError

DISTRIBUTION = "scaler-compute"
"""Distribution name of this package. Not on any index yet, where `scaler` is another project. On publication, change
the first section of docs/guide.md, to which all other pages refer."""


def require(library: str, what: str, distribution: str = "") -> None:
    """Raise UsageError with the command that installs a missing library."""
    try:
        is_missing = find_spec(library) is None
    except ModuleNotFoundError:  # the parent package is missing too
        is_missing = True
    if is_missing:
        raise UsageError(f"{what} needs {library}, which is not installed: pip install {distribution or library}")

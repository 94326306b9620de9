"""The optional parts of the package, whose libraries are installed on request: `pip install 'scaler-compute[top]'`."""

from __future__ import annotations

from importlib.util import find_spec

from scaler.errors import UsageError

DISTRIBUTION = "scaler-compute"
"""The name of this package on the index, where `scaler` is another project."""


def require(extra: str, library: str, what: str) -> None:
    """Raise UsageError unless the library is there. what: the part that needs it."""
    if find_spec(library) is None:
        raise UsageError(
            f"{what} needs {library}, which is not installed: "
            f"pip install '{DISTRIBUTION}[{extra}]', or '.[{extra}]' in a checkout"
        )

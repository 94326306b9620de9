"""`python -m scaler.cluster KIND`: one component of a supervisor, its configuration in the environment."""

from __future__ import annotations

import os
import signal
import sys

from scaler.cluster.inside import component_from
from scaler.component import note_bug, report
from scaler.errors import ScalerError


def main(kind: str) -> int:
    """Run the component until it ends, and return its exit code."""
    # A program that ignores its children hands that on to them, and components must hear of the ends of theirs.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return component_from(os.environ, kind)()
    except ScalerError as error:
        return report(kind, error)
    except BaseException as error:
        note_bug(error)
        raise


sys.exit(main(sys.argv[1]))

"""`python -m scaler.cluster KIND`: one component of a supervisor, its configuration in the environment."""

from __future__ import annotations

import os
import sys

from scaler.cluster.components import component_from
from scaler.component import note_bug, report
from scaler.errors import ScalerError


def main(kind: str) -> int:
    """Run the component until it ends, and return its exit code."""
    try:
        run, config = component_from(os.environ, kind)
        return run(config)
    except ScalerError as error:
        return report(kind, error)
    except BaseException as error:
        note_bug(error)
        raise


sys.exit(main(sys.argv[1]))

"""`scaler run-again`: runs a failed task again, and prints what becomes of it."""

from __future__ import annotations

import sys
import traceback

from scaler.client.client import Client
from scaler.config.commands import RunAgainRequest
from scaler.logs import escaped_lines


def run(request: RunAgainRequest) -> int:
    """Print the result of a failed task that runs again, or its traceback; return the exit code."""
    with Client(request.address) as client:
        future = client.run_again(request.task)
        error = future.exception()
        if error is None:
            sys.stdout.write(f"{escaped_lines(repr(future.result()))}\n")
            return 0
        sys.stderr.write(escaped_lines("".join(traceback.format_exception(error.with_traceback(None)))))
        return 1

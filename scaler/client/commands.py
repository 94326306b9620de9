"""`scaler run-again`: runs a failed task again, and prints what becomes of it."""

from __future__ import annotations

import sys

from scaler.client.client import Client
from scaler.config.commands import RunAgainRequest
from scaler.serialization import describe
from scaler.serialization.exceptions import remote_traceback
from scaler.texts import escaped_lines


def run(request: RunAgainRequest) -> int:
    """Print the result of a failed task that runs again, or its traceback; return the exit code."""
    with Client(request.address) as client:
        future = client.run_again(request.task)
        error = future.exception()
        if error is None:
            sys.stdout.write(f"{escaped_lines(repr(future.result()))}\n")
            return 0
        trace = remote_traceback(error)
        sys.stderr.write(escaped_lines(f"{describe(error) if trace is None else trace.text.strip()}\n"))
        return 1

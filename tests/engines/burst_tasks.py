"""Tasks for workers in emulated containers. Imports nothing that would slow down startup."""

from __future__ import annotations

import time

from tests.waiting import wait_for_file


def nap(number: int, seconds: float = 0.05) -> int:
    time.sleep(seconds)  # policies size the cluster by durations
    return number


def wait_at_gate(number: int, gate: str) -> int:
    """Run until a file exists."""
    wait_for_file(gate)
    return number

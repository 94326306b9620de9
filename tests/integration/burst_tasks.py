"""What workers in emulated containers run; it imports nothing that would slow their start down."""

from __future__ import annotations

import time


def nap(number: int, seconds: float = 0.05) -> int:
    time.sleep(seconds)
    return number

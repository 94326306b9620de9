"""Polls conditions that have no event. Used by tests and by their tasks, so it imports little."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.05


def within(seconds: float, condition: Callable[[], Any], pause_seconds: float = POLL_SECONDS) -> Any:
    """Poll a condition. Returns its first true value, or its last false value after the time limit.

    pause_seconds: the first pause. Pauses grow with the time waited, because many conditions cost a message.
    """
    began = time.monotonic()
    while not (found := condition()) and (waited := time.monotonic() - began) < seconds:
        time.sleep(max(pause_seconds, min(LONGEST_PAUSE_SECONDS, waited / 20)))  # the condition has no event
    return found


def until(condition: Callable[[], Any], seconds: float = 20.0, pause_seconds: float = POLL_SECONDS) -> Any:
    """Poll a condition, and return its first true value. Raises AssertionError after the time limit."""
    found = within(seconds, condition, pause_seconds)
    assert found, f"the condition did not become true in {seconds} s"
    return found


async def soon(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll a condition while the loop runs, and return its first true value. Raises TimeoutError after the limit.

    condition: returns a value or an awaitable.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(POLL_SECONDS)  # other threads and processes send no event to this loop


def wait_for_file(path: Path | str) -> None:
    """Wait until another process has created the file. For tasks: cancelling the task ends the wait."""
    within(math.inf, Path(path).exists)

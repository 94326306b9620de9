"""Waits of tests, and of the tasks that they start: for a condition that has no event. Imports little, for workers."""

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
    """Poll a condition; return its first true value, or its last false one when the time is over.

    pause_seconds: the first pause. Pauses grow with the time waited, because many conditions cost a message.
    """
    began = time.monotonic()
    while not (found := condition()) and (waited := time.monotonic() - began) < seconds:
        time.sleep(max(pause_seconds, min(LONGEST_PAUSE_SECONDS, waited / 20)))  # it has no event to await
    return found


def until(condition: Callable[[], Any], seconds: float = 20.0, pause_seconds: float = POLL_SECONDS) -> Any:
    """Poll a condition; return its first true value. Raises AssertionError when there is none in time."""
    found = within(seconds, condition, pause_seconds)
    assert found, f"it did not come true in {seconds} s"
    return found


async def soon(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll a condition while the loop runs; return its first true value. Raises TimeoutError when there is none.

    condition: returns a value, or an awaitable of one.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(POLL_SECONDS)  # what other threads and processes do announces nothing here


def wait_for_file(path: Path | str) -> None:
    """Return once another process has made the file. A task calls it: whoever cancels the task ends the wait."""
    within(math.inf, Path(path).exists)

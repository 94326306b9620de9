"""Observations of the scheduler's process and its environment, and its garbage collection."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import platform
import time
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable

from scaler.net.keys import ServerKeys
from scaler.processes import Load, LoadMeter, give_memory_back
from scaler.scheduler.core.changes import KeysRead, Observed, ProcessMeasured
from scaler.scheduler.core.commands import ClockRead, Input
from scaler.security.keys import Entry

YOUNG_OBJECTS = 10_000
"""New objects that trigger a collection of the youngest generation, which takes about 2 ms."""
YOUNG_COLLECTIONS = 10
"""Young collections that trigger a collection of the middle generation, which takes about 20 ms."""
NEVER = 1_000_000_000
FULL_COLLECTION_SECONDS = 30.0
"""Seconds between full collections, while few tasks are live."""
MAX_LIVING_TASKS = 50_000
"""Number of live tasks above which a full collection would delay a step too long."""
COUNTS_REFERENCES = platform.python_implementation() != "PyPy"
"""PyPy collects incrementally instead."""


def configure_collector() -> None:
    """Configure garbage collection. Call once, after all imports."""
    if not COUNTS_REFERENCES:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)


def collect_when_small(living_tasks: int) -> None:
    """Collect all garbage, unless live tasks would make that slow.

    Also returns memory to the system. Freed payloads leave fragments that the C library would otherwise keep.
    """
    if COUNTS_REFERENCES and living_tasks <= MAX_LIVING_TASKS:
        gc.collect()
        give_memory_back()


async def collect_garbage(living_tasks: Callable[[], int]) -> None:
    """Collect cyclic garbage periodically, instead of whenever many tasks arrive.

    Reference counting frees tasks, groups, and messages. Only departed peers and errors leave cycles, of a few
    kilobytes each. By default, Python would visit all live tasks each time their number grows by a quarter. With a
    million queued tasks, that blocks the loop for most of a second.
    """
    configure_collector()
    while True:
        await asyncio.sleep(FULL_COLLECTION_SECONDS)
        collect_when_small(living_tasks())


MEASURE_SECONDS = 1.0
CLOCK_TOLERANCE_SECONDS = 1e-4


class Vitals:
    """incarnation: identifies this run of the scheduler. sent, received: numbers of messages by type.

    longest_step_seconds, longest_lag_seconds: since the last report to monitors.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.incarnation = time.time_ns()
        self.began_at = loop.time()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.longest_step_seconds = self.longest_lag_seconds = self._measured_lag_seconds = 0.0
        self._measured_at = -math.inf
        self._loop = loop
        self._meter = LoadMeter()
        self._unix_at_zero = 0.0
        self._keys: dict[str, Entry] = {}

    def was_late(self, seconds: float) -> None:
        self.longest_lag_seconds = max(self.longest_lag_seconds, seconds)
        self._measured_lag_seconds = max(self._measured_lag_seconds, seconds)

    def measure(self) -> list[Observed]:
        """Return a measurement of this process, if one is due."""
        now = self._loop.time()
        if now - self._measured_at < MEASURE_SECONDS:
            return []
        self._measured_at = now
        lag_seconds, self._measured_lag_seconds = self._measured_lag_seconds, 0.0
        return [ProcessMeasured(lag_seconds, self._meter.measure().get(os.getpid(), Load()).rss_bytes)]

    def read_clock(self) -> list[Input]:
        """Return the wall clock, if it was adjusted."""
        zero = time.time() - time.monotonic()
        if abs(zero - self._unix_at_zero) <= CLOCK_TOLERANCE_SECONDS:
            return []
        self._unix_at_zero = zero
        return [ClockRead(zero)]

    def read_keys(self, keys: ServerKeys | None) -> list[Observed]:
        """Return the accepted keys, if they have changed."""
        if keys is None or (entries := keys.entries()) == self._keys:
            return []
        self._keys = dict(entries)
        return [KeysRead(self._keys)]

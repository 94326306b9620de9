"""Observations of the scheduler's process and of its surroundings."""

from __future__ import annotations

import math
import os
import time
from asyncio import AbstractEventLoop
from collections import Counter

from scaler.net.keys import ServerKeys
from scaler.processes import Load, LoadMeter
from scaler.scheduler.core.changes import KeysRead, Observed, ProcessMeasured
from scaler.scheduler.core.commands import ClockRead, Input

MEASURE_SECONDS = 1.0
CLOCK_TOLERANCE_SECONDS = 1e-3


class Vitals:
    """incarnation: identifies this start of the scheduler. sent, received: numbers of messages by type.

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
        self._keys: dict[str, tuple[str, str, str]] = {}

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
        """Return the wall clock, if it was set."""
        zero = time.time() - time.monotonic()
        if abs(zero - self._unix_at_zero) <= CLOCK_TOLERANCE_SECONDS:
            return []
        self._unix_at_zero = zero
        return [ClockRead(zero)]

    def read_keys(self, keys: ServerKeys | None) -> list[Observed]:
        """Return the admitted keys, if they have changed."""
        if keys is None or (entries := keys.entries()) == self._keys:
            return []
        self._keys = dict(entries)
        return [KeysRead(self._keys)]

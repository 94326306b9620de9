"""Numbers a client's calls (`map`, `get`, ...) and reports their progress to the scheduler once a second. A new call is
reported immediately if none began in the last second."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from scaler.protocol.messages import CallReport

MAX_REPORTS = 1_000
"""Maximum number of calls in one report. The rest follow a second later."""
REPORT_SECONDS = 1.0


class ClientCalls:
    def __init__(self, first: int, report_soon: Callable[[], object] = lambda: None) -> None:
        """first: number of the first call. Must differ between clients of a durable session, which share an id.
        report_soon: makes the client's thread send `reports`."""
        self._report_soon = report_soon
        self._next_report_at = -math.inf
        self._lock = threading.Lock()
        self._next = first
        self._calls: dict[int, CallReport] = {}

    def begin(self, verb: str, name: str, items: int, *, has_chunks: bool) -> CallReport:
        """Return a new call, whose counts the client's thread updates. items: number of items; 0 if unknown.

        A call without chunks submits everything at once, and the scheduler counts its tasks.
        """
        with self._lock:
            call = CallReport(self._next, verb, name, items, has_chunks, is_over=not has_chunks)
            self._calls[self._next] = call
            self._next += 1
        now = time.monotonic()
        if now >= self._next_report_at:
            self._next_report_at = now + REPORT_SECONDS
            self._report_soon()
        return call

    def reports(self) -> list[CallReport]:
        """Return reports about the current calls, and drop calls that are over."""
        found: list[CallReport] = []
        with self._lock:
            for number in list(self._calls)[:MAX_REPORTS]:
                call = self._calls.pop(number)
                found.append(replace(call, items=max(call.items, call.sent)))
                if not call.is_over:
                    self._calls[number] = call  # after all unreported calls
        return found

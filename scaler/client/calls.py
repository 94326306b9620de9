"""Numbers the calls of a client (`map`, `get`, ...), and reports their progress to the scheduler once a second."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from operator import length_hint

from scaler.protocol.messages import CallReport

MAX_REPORTS = 1_000
"""Maximum number of calls in one message; further ones follow a second later."""


@dataclass(slots=True, eq=False)
class CallProgress:
    """One call of a client, counted by the client's thread. items: 0 while their number is unknown."""

    number: int
    verb: str
    name: str
    items: int
    has_chunks: bool
    sent: int = 0
    ended: int = 0
    failed: int = 0
    is_over: bool = False

    def count(self, ended: int, failed: int) -> None:
        self.ended += ended
        self.failed += failed

    def report(self) -> CallReport:
        items = max(self.items, self.sent)
        counts = self.sent, self.ended, self.failed, self.is_over
        return CallReport(self.number, self.verb, self.name, items, self.has_chunks, *counts)


class ClientCalls:
    def __init__(self, first: int) -> None:
        """first: number of the first call. Must differ between clients of a durable session, which share an id."""
        self._lock = threading.Lock()
        self._next = first
        self._told: dict[CallProgress, CallReport | None] = {}

    def begin(self, verb: str, name: str, items: int, *, has_chunks: bool) -> CallProgress:
        """Return a new call. A call without chunks submits everything at once, and the scheduler counts its tasks."""
        with self._lock:
            call = CallProgress(self._next, verb, name, items, has_chunks, is_over=not has_chunks)
            self._next += 1
            self._told[call] = None
        return call

    def changed(self) -> list[CallReport]:
        """Return reports of calls that changed since the last report. Drops finished calls."""
        reports: list[CallReport] = []
        with self._lock:
            for call, told in list(self._told.items()):
                report = call.report()
                if report.is_over:
                    del self._told[call]
                if report != told:
                    reports.append(report)
                    if not report.is_over:
                        self._told[call] = report
                if len(reports) >= MAX_REPORTS:
                    break
        return reports

    def tell_again(self) -> None:
        with self._lock:
            self._told = dict.fromkeys(self._told)


def count_of(iterables: Sequence[object]) -> int:
    try:
        return max(0, min((length_hint(each, 0) for each in iterables), default=0))
    except Exception:  # noqa: BLE001 (a user's __len__ may raise; iterating raises it again)
        return 0

"""What a processor does for its memory between tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

from scaler.processes import give_memory_back

CHECK_NS = 100_000_000
"""Resident memory is looked at this often, at most."""
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Upkeep:
    """Collects garbage now and then, and gives memory back to the system when there is much."""

    __slots__ = ("_checked_ns", "_collected_ns", "_free", "_interval_ns", "_is_due", "_threshold_bytes", "_trim_above")

    def __init__(self, interval_seconds: float, threshold_bytes: int, free: Callable[[], None], now_ns: int) -> None:
        """interval_seconds: between two collections, 0 for none of them. threshold_bytes: resident memory above which
        it is trimmed. free: called before that, to drop what can be had again."""
        self._interval_ns = int(interval_seconds * 1e9)
        self._threshold_bytes = threshold_bytes
        self._free = free
        self._collected_ns = now_ns
        self._checked_ns = now_ns
        self._trim_above = 0
        self._is_due = False

    def after_task(self, now_ns: int) -> None:
        """Do what is due. Cheap when nothing is."""
        self._is_due = True
        if now_ns - self._checked_ns >= CHECK_NS:
            self._look(now_ns)

    def pause_ms(self, now_ns: int) -> int | None:
        """Return how long an idle processor should wait before it calls `idle`; None: until there is a task."""
        if not self._is_due:
            return None
        return max(0, CHECK_NS - (now_ns - self._checked_ns)) // 1_000_000 + 1

    def idle(self, now_ns: int) -> None:
        """Look once more after the last task."""
        self._look(now_ns)
        self._is_due = False

    def _look(self, now_ns: int) -> None:
        self._checked_ns = now_ns
        if self._interval_ns and now_ns - self._collected_ns >= self._interval_ns:
            self._collected_ns = now_ns
            gc.collect()
        resident = resident_bytes()
        # What is in use for good would be trimmed again and again in vain: only growth since the last time counts.
        if resident > max(self._threshold_bytes, self._trim_above):
            self._free()
            gc.collect()
            give_memory_back()
            self._trim_above = resident_bytes() + self._threshold_bytes // 8
        elif resident < self._threshold_bytes:
            self._trim_above = 0


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES

"""What a processor does for its memory between tasks, and what a task costs."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from scaler.processes import give_memory_back

CHECK_NS = 100_000_000
"""Resident memory is checked at most this often, and once this long after the last task."""
_STATM = Path("/proc/self/statm")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class GarbagePolicy:
    """Collects garbage periodically, and gives memory back to the system when there is much."""

    def __init__(self, interval_seconds: float, threshold_bytes: int, free: Callable[[], None], now_ns: int) -> None:
        """interval_seconds: between two collections; 0 for none. threshold_bytes: resident memory above which it is
        trimmed. free: called before that, to drop caches."""
        self._interval_ns = int(interval_seconds * 1e9)
        self._threshold_bytes = threshold_bytes
        self._free = free
        self._collected_ns = now_ns
        self._checked_ns = now_ns
        self._trim_above = 0
        self.is_due = False
        """A task has run since the last check of an idle processor."""

    def after_task(self, now_ns: int) -> None:
        """Do what is due. Cheap when nothing is."""
        self.is_due = True
        if now_ns - self._checked_ns >= CHECK_NS:
            self._check(now_ns)

    def idle(self, now_ns: int) -> None:
        """Check once more after the last task."""
        self._check(now_ns)
        self.is_due = False

    def _check(self, now_ns: int) -> None:
        self._checked_ns = now_ns
        if self._interval_ns and now_ns - self._collected_ns >= self._interval_ns:
            self._collected_ns = now_ns
            gc.collect()
        resident = resident_bytes()
        # Memory that stays in use would be trimmed again and again in vain: only growth since the last time counts.
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


class Meter:
    """While in this context, measures CPU time and the peak of resident memory of this process."""

    cpu_us = 0
    peak_bytes = 0

    def __enter__(self) -> None:
        with contextlib.suppress(OSError):  # not allowed here: then the peak is that of the process so far
            _CLEAR_REFS.write_text(_RESET_PEAK, "ascii")  # the kernel measures the peak from now on
        self._cpu_ns = time.process_time_ns()

    def __exit__(self, *_: object) -> None:
        self.cpu_us = (time.process_time_ns() - self._cpu_ns) // 1000
        lines = _STATUS.read_text("ascii", "replace").splitlines()
        peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
        self.peak_bytes = 1024 * (peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

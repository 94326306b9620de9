"""The journal of a running server: accepts records and reports when they are on disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scaler.component import report
from scaler.errors import ScalerError, UsageError
from scaler.grammar import counted
from scaler.journal.directory import JournalDirectory, Segments

SEGMENT_BYTES = 64 * 1024 * 1024
RETRY_SECONDS = 0.5
COMPACT_BYTES = 64 * 1024 * 1024
"""Minimum total size of the segments that triggers compaction. The last snapshot's size, if larger, is the minimum."""
BATCH_BYTES = 4 * 1024 * 1024
FLUSH_SECONDS = 5.0
NICENESS = 10

_log = logging.getLogger(__name__)


class _Disk(NamedTuple):
    durable: int = 0
    failure: str = ""
    is_stuck: bool = False
    size_bytes: int = 0


class Journal:
    """A journal on the running loop. Never waits for the disk. A thread writes and syncs records in batches. While the
    disk fails, records stay in memory.

    written: number of the last record. durable: number of the last record that, like all earlier records, survives a
    power loss. failure: why new work should be refused; empty if the journal is healthy. is_stuck: whether no records
    can be written, because even the reserve is used up. size_bytes: total file size, including reserved space, when a
    file was last created or removed.
    """

    durable: int
    failure: str
    is_stuck: bool
    size_bytes: int

    def __init__(
        self,
        path: Path,
        compactor: str,
        on_change: Callable[[], None],
        *,
        content: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        compact_bytes: int = COMPACT_BYTES,
    ) -> None:
        """Lock the directory. Raises UsageError if that is impossible. compactor: module that writes a snapshot, run
        with the directory and a segment number. on_change: called when `durable` or `failure` changes. content: version
        of the bodies; other versions are refused."""
        self._directory = JournalDirectory(path, content)
        self._segments = Segments(self._directory, segment_bytes)
        self._compactor = compactor
        self._on_change = on_change
        self._compact_bytes = compact_bytes
        self._loop = asyncio.get_running_loop()
        self.written = 0
        self._waits_since = 0.0
        """Time of the last sync, or of the first record appended after it."""
        self._reported = self._set(_Disk())
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._compaction: tuple[subprocess.Popen[str], threading.Thread] | None = None
        self._actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._act, name="journal", daemon=True)

    def recover(self) -> Iterator[bytes]:
        """Yield the bodies of all records, then start a new segment. Exhaust the iterator before `append`. A full disk
        sets `failure`. Raises JournalError for damage, and UsageError for other disk errors."""
        try:
            yield from self._directory.bodies()
            self._directory.repair()
            self.written = self._directory.replay.last
            self._directory.confirm(self.written)
            self._segments.begin(self.written)
        except OSError as error:
            raise UsageError(f"state_directory: cannot use {self._directory.path}: {error.strerror}") from error
        self._reported = self._set(self._state())
        if self.failure:
            self._loop.call_soon(self._learn, self._reported)  # not inside the caller's `recover`
        self._thread.start()

    @property
    def waiting_seconds(self) -> float:
        """Time since the last successful sync while records are waiting."""
        return self._loop.time() - self._waits_since if self.durable < self.written else 0.0

    def append(self, body: bytes) -> None:
        """Add a record. Never blocks and never fails: see `failure`."""
        if self.durable == self.written:
            self._waits_since = self._loop.time()
        self.written += 1
        self._arrived.append((self.written, body))
        if len(self._arrived) == 1:  # otherwise, the thread writes this record together with an earlier one
            self._actions.put(self._write)

    def _set(self, disk: _Disk) -> _Disk:
        self.durable, self.failure, self.is_stuck, self.size_bytes = disk
        return disk

    def _learn(self, disk: _Disk) -> None:
        if self._is_closed:
            return
        if disk.durable > self.durable:
            self._waits_since = self._loop.time()
        self._set(disk)
        if disk.failure and self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry)
        self._on_change()

    def _retry(self) -> None:
        self._timer = None
        self._actions.put(self._segments.retry)

    # -- in the thread

    def _act(self) -> None:
        segment = self._segments.number
        while (action := self._actions.get()) is not None:
            action()
            if self._segments.number != segment:
                segment = self._segments.number
                self._compact_when_due()
            state = self._state()
            if state != self._reported or state.failure:
                self._reported = state
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._learn, state)

    def _state(self) -> _Disk:
        segments = self._segments
        return _Disk(segments.durable, segments.failure, segments.is_broken, segments.size_bytes)

    def _write(self) -> None:
        records: list[tuple[int, bytes]] = []
        size = 0
        for _ in range(len(self._arrived)):
            records.append(self._arrived.popleft())
            size += len(records[-1][1])
            if size > BATCH_BYTES:
                break
        self._segments.add(records)
        if self._arrived:
            self._actions.put(self._write)

    # -- compaction, in the thread

    def _compact_when_due(self) -> None:
        if self._compaction is not None or self._is_closed:
            return
        directory, present = self._directory, self._segments.number
        try:
            first = directory.snapshot()
            size = sum(directory.segment(each).stat().st_size for each in directory.segments() if each < present)
            if size >= max(self._compact_bytes, directory.snapshot_path(first).stat().st_size if first else 0):
                # A process, so that neither the loop nor the thread waits.
                command = [sys.executable, "-m", self._compactor, str(directory.path), str(present)]
                process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
                waiter = threading.Thread(target=self._wait, args=(process,), name="compaction", daemon=True)
                self._compaction = process, waiter
                waiter.start()
        except OSError as error:  # no descriptor is free; the next segment tries again
            self._not_compacted(str(error))

    def _wait(self, process: subprocess.Popen[str]) -> None:
        _, text = process.communicate()
        self._actions.put(partial(self._compacted, process.returncode, text))

    def _compacted(self, code: int, text: str) -> None:
        self._compaction = None
        if code == 0:
            with contextlib.suppress(OSError):
                self._directory.remove_replaced()
            self._segments.measure()
        else:
            self._not_compacted((text.strip().splitlines() or [f"its process ended with code {code}"])[-1])

    def _not_compacted(self, reason: str) -> None:
        _log.error("state_directory: %s cannot be compacted and grows: %s", self._directory.path, reason)

    # -- the end

    def close(self) -> None:
        """Sync everything within `FLUSH_SECONDS`, and release the directory. Idempotent. If the disk hangs, the
        directory stays locked until the process exits, because late writes are possible."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._actions.put(None)
        self._thread.join(FLUSH_SECONDS)
        has_ended = not self._thread.is_alive()
        if self._compaction is not None:
            process, waiter = self._compaction
            process.kill()
            waiter.join()
        if has_ended:
            try:
                self._segments.close()
            except OSError as error:
                _log.error("state_directory: cannot write to %s: %s", self._directory.path, error.strerror)
        self._set(self._state())
        if (lost := self.written - self._segments.durable) > 0:
            count = counted(lost, "record")
            _log.error("state_directory: %s could not be written to disk; none was confirmed to a peer", count)
        if has_ended:
            self._directory.close()


def run_compaction(compact: Callable[[Path, int], None]) -> None:
    """Main function of a compactor. compact: writes a snapshot of a directory's segments before a number."""
    os.nice(NICENESS)
    try:
        compact(Path(sys.argv[1]), int(sys.argv[2]))
    except ScalerError as error:
        sys.exit(report("compaction", error))

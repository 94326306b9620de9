"""The journal of a running server: appends records, and says when the disk has them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.journal.directory import JournalDirectory
from scaler.journal.records import HEAD_BYTES, HEADER_BYTES, Replay, pack

SEGMENT_BYTES = 64 * 1024 * 1024
RESERVED_SHARE = 4
"""The last quarter of a segment is for when no further one can be made: new work is refused, results still come in."""
RETRY_SECONDS = 0.5
"""How often a disk that failed is tried again."""
DISK_IS_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
COMPACT_BYTES = 64 * 1024 * 1024
"""Segments are compacted when together they have this much, and as much as the last snapshot."""
FLUSH_SECONDS = 5.0
LONE_BYTES = 1024
QUICK_SECONDS = 0.001
"""A lone record of LONE_BYTES at most is confirmed without the thread, while the disk takes no longer than this: a user
waits for a task that travels alone, and each change of threads takes longer than the disk."""

_log = logging.getLogger(__name__)


class Journal:
    """One journal on the running loop.

    `append` writes at once, so that what was appended survives the end of the process; then a thread has the disk
    confirm all that has come meanwhile, so that it survives a power loss. While the disk fails, records are kept
    in memory, and `failure` says why.
    """

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
        """Lock the directory. Raises UsageError when that is not possible.

        compactor: module that is run with the directory and a segment's number, and writes the snapshot that replaces
        the segments before. on_change: called when `durable` has grown or `failure` has changed. content: version of
        what the bodies are: a journal of another one is refused.
        """
        self.failure = ""
        """Why no new work should be taken in; empty while all is well."""
        self.size_bytes = 0
        """What its files took on the disk when one came or went last, with the room that is reserved."""
        self._directory = JournalDirectory(path, content)
        self._compactor = compactor
        self._on_change = on_change
        self._segment_bytes = segment_bytes
        self._compact_bytes = compact_bytes
        self._loop = asyncio.get_running_loop()
        self._replay = Replay(content)
        self._written = 0
        """The number of the last record."""
        self._durable = 0
        self._pending: deque[tuple[int, bytes]] = deque()
        """Records that the disk has not confirmed, with their numbers."""
        self._number = 0
        self._descriptor = -1
        self._mark = b""
        self._offset = 0
        self._is_broken = self._is_closed = False
        """broken: nothing can be written to the present segment. Everything in `_pending` goes to the next one."""
        self._retired: dict[int, int] = {}
        """Descriptors of earlier segments that the disk has not confirmed, with their last records."""
        self._is_syncing = False
        self._sync_seconds = math.inf
        """How long the disk took the last time."""
        self._timer: asyncio.TimerHandle | None = None
        self._compaction: subprocess.Popen[str] | None = None
        self._requests: queue.SimpleQueue[tuple[list[int], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._sync_in_thread, name="journal", daemon=True)

    def recover(self) -> Iterator[bytes]:
        """Yield the bodies of all records, then begin a new segment. To be used up before the first `append`.

        A full disk is a `failure` from the start. Raises JournalError when the journal is damaged, and UsageError when
        the disk fails in another way.
        """
        try:
            yield from self._directory.bodies(self._replay)
            self._directory.repair(self._replay)
            self._written = self._durable = self._replay.last
            self._directory.confirm(self._durable)
            self._number = max(0, self._directory.snapshot() - 1, *self._directory.segments())
            self._directory.remove_replaced()
            try:
                self._begin_segment()
            except OSError as error:
                if error.errno not in DISK_IS_FULL:
                    raise
                self._fail(error, is_broken=True)
        except OSError as error:
            raise UsageError(f"state_directory: cannot use {self._directory.path}: {error.strerror}") from error
        self._measure()
        self._thread.start()

    @property
    def written(self) -> int:
        """The number of the last record."""
        return self._written

    @property
    def durable(self) -> int:
        """The number of the last record that survives a power loss, and all before it do."""
        return self._durable

    @property
    def is_stuck(self) -> bool:
        """Tell whether the disk takes no record at all: the reserve is used up, too."""
        return self._is_broken

    def append(self, body: bytes) -> None:
        """Add a record. Never fails: see `failure`."""
        self._written += 1
        record = pack(self._mark, self._written, self._durable, body)
        self._pending.append((self._written, body))
        if not self._is_broken:
            self._write(record)
            if self._offset > self._segment_bytes * (RESERVED_SHARE - 1) // RESERVED_SHARE and not self.failure:
                self._advance()
        self._sync()

    def _write(self, record: bytes) -> None:
        try:
            written = os.pwrite(self._descriptor, record, self._offset)
            if written < len(record):
                written += os.pwrite(self._descriptor, record[written:], self._offset + written)
            if written < len(record):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            self._fail(error, is_broken=True)
        else:
            self._offset += len(record)

    # -- segments

    def _next_bytes(self) -> int:
        """Return the size of the next segment: what is written again to it takes nothing of the usual size."""
        again = self._pending if self._is_broken else ()
        return self._segment_bytes + sum(HEAD_BYTES + len(body) for _, body in again)

    def _begin_segment(self) -> None:
        descriptor, self._mark = self._directory.create_segment(self._number + 1, self._next_bytes())
        self._number += 1
        self._descriptor, self._offset = descriptor, HEADER_BYTES

    def _advance(self) -> None:
        """Go on in a new segment; write what the disk has not confirmed of a broken one again."""
        earlier, end = self._descriptor, self._offset
        try:
            self._begin_segment()
        except OSError as error:
            self._fail(error, is_broken=self._is_broken)
            return
        if earlier >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(earlier, end)
            if self._is_broken:
                os.close(earlier)
            else:
                self._retired[earlier] = self._written
        was_broken, self._is_broken = self._is_broken, False
        for number, body in list(self._pending) if was_broken else ():
            self._write(pack(self._mark, number, self._durable, body))
            if self._is_broken:
                return
        if self.failure:
            _log.warning("state_directory: %s can be written again", self._directory.path)
            self.failure = ""
            self._loop.call_soon(self._on_change)
        self._sync()
        self._measure()
        try:
            self._compact_when_due()
        except OSError as error:  # no descriptor is free; the next segment tries again
            self._not_compacted(str(error))

    def _measure(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor is free
            self.size_bytes = self._directory.size_bytes()

    def _fail(self, error: OSError, *, is_broken: bool) -> None:
        self._is_broken = is_broken
        refused = "new work is refused, and all other work waits," if is_broken else "new work is refused"
        text = why_refused(self._directory.path, error, refused, self._next_bytes())
        if self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry)
        if self.failure != text:
            _log.error("%s", text)
            self.failure = text
            self._loop.call_soon(self._on_change)  # not inside of the caller's `append`

    def _retry(self) -> None:
        self._timer = None
        if self._is_syncing and self._is_broken:  # the thread still uses the descriptor
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry)
        else:
            self._advance()

    # -- the disk's confirmation

    def _sync(self) -> None:
        if self._is_syncing or self._is_broken or self._durable >= self._written:
            return
        descriptors = [*self._retired, self._descriptor]
        is_lone = len(self._pending) == 1 and len(self._pending[0][1]) <= LONE_BYTES
        if is_lone and self._sync_seconds < QUICK_SECONDS:
            self._confirmed(self._written, *self._have_confirmed(descriptors, self._written))
            self._loop.call_soon(self._on_change)
        else:
            self._is_syncing = True
            self._requests.put((descriptors, self._written))

    def _sync_in_thread(self) -> None:
        while (request := self._requests.get()) is not None:
            descriptors, number = request
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_synced, number, *self._have_confirmed(descriptors, number))

    def _have_confirmed(self, descriptors: list[int], number: int) -> tuple[float, OSError | None]:
        """Have the disk confirm these files; return how long it took, and why it has not."""
        began = time.perf_counter()
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)
        except OSError as error:
            return math.inf, error
        seconds = time.perf_counter() - began
        self._directory.confirm(number)
        return seconds, None

    def _on_synced(self, number: int, seconds: float, failure: OSError | None) -> None:
        if self._is_closed:
            return
        self._is_syncing = False
        self._confirmed(number, seconds, failure)
        self._sync()
        self._on_change()

    def _confirmed(self, number: int, seconds: float, failure: OSError | None) -> None:
        self._sync_seconds = seconds
        if failure is not None:
            # The kernel may have dropped the bytes, and would confirm the next time: they are written again elsewhere.
            for descriptor in self._retired:
                os.close(descriptor)
            self._retired.clear()
            self._fail(failure, is_broken=True)
            return
        for descriptor, last in list(self._retired.items()):
            if last <= number:
                del self._retired[descriptor]
                os.close(descriptor)
        self._durable = number
        while self._pending and self._pending[0][0] <= number:
            self._pending.popleft()

    # -- compaction

    def _compact_when_due(self) -> None:
        if self._compaction is not None:
            return
        directory = self._directory
        first = directory.snapshot()
        size = sum(directory.segment(number).stat().st_size for number in directory.segments() if number < self._number)
        snapshot = directory.path / f"snapshot-{first:08d}.journal"
        if size >= max(self._compact_bytes, snapshot.stat().st_size if first else 0):
            # A process, so that the loop goes on meanwhile.
            command = [sys.executable, "-m", self._compactor, str(directory.path), str(self._number)]
            self._compaction = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._wait, args=(self._compaction,), name="compaction", daemon=True).start()

    def _wait(self, process: subprocess.Popen[str]) -> None:
        _, text = process.communicate()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._compacted, process.returncode, text)

    def _compacted(self, code: int, text: str) -> None:
        self._compaction = None
        if self._is_closed:
            return
        if code == 0:
            with contextlib.suppress(OSError):
                self._directory.remove_replaced()
            self._measure()
        else:
            self._not_compacted((text.strip().splitlines() or [f"its process ended with code {code}"])[-1])

    def _not_compacted(self, reason: str) -> None:
        _log.error("state_directory: %s is not compacted, and grows: %s", self._directory.path, reason)

    # -- the end

    def close(self) -> None:
        """Have the disk confirm everything, and give the directory up. Again: does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._compaction is not None:
            self._compaction.kill()
            self._compaction.wait()
        self._requests.put(None)
        self._thread.join(FLUSH_SECONDS)
        try:
            present = [self._descriptor] if self._descriptor >= 0 else []
            for descriptor in present:
                os.ftruncate(descriptor, self._offset)
            for descriptor in (*self._retired, *present):
                os.fdatasync(descriptor)
                os.close(descriptor)
        except OSError as error:
            _log.error("state_directory: cannot write to %s: %s", self._directory.path, error.strerror)
        else:
            if not self._is_broken:
                self._durable = self._written
                self._directory.confirm(self._durable)
        if self._durable < self._written:
            count = counted(self._written - self._durable, "record")
            _log.error("state_directory: %s did not reach the disk; no peer was told what they say", count)
        self._directory.close()


def why_refused(path: Path, error: OSError, refused: str, wanted_bytes: int) -> str:
    """Return what a failing disk means, and what to do. refused: what it does not take. wanted_bytes: what it needs."""
    room = f"{math.ceil(wanted_bytes / 2**20)} MiB are free there"
    until = room if error.errno in DISK_IS_FULL else "it can be written again"
    return f"state_directory: cannot write to {path}: {error.strerror}; {refused} until {until}"

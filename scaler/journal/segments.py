"""The segments that a journal's thread writes. Calls may wait for the disk, and none raises OSError."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from scaler.journal.directory import JournalDirectory
from scaler.journal.records import HEAD_BYTES, HEADER_BYTES, pack

RESERVED_SHARE = 4
"""The last 1/4 of a segment is reserved for results: while no new segment can be created, new work is refused."""
DISK_IS_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG

_log = logging.getLogger(__name__)


class Segments:
    """Writes and syncs records. Records that the disk rejected are written to the next segment."""

    def __init__(self, directory: JournalDirectory, segment_bytes: int) -> None:
        self.failure = ""
        """Why new work should be refused; empty if the journal is healthy."""
        self.is_broken = False
        """The current segment is not writable: all unconfirmed records are written to the next one."""
        self.durable = 0
        self.size_bytes = 0
        self.number = 0
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._descriptor = -1
        self._mark = b""
        self._offset = 0

    def begin(self, durable: int) -> None:
        self.durable = durable
        self.number = max(0, self._directory.snapshot() - 1, *self._directory.segments())
        self._directory.remove_replaced()
        try:
            self._make()
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            self._fail(error, is_broken=True)
        self.measure()

    def add(self, records: Iterable[tuple[int, bytes]]) -> None:
        limit = self._segment_bytes * (RESERVED_SHARE - 1) // RESERVED_SHARE
        parts: list[bytes] = []
        end = self._offset
        for number, body in records:
            self._unconfirmed.append((number, body))
            if self.is_broken:
                continue
            parts.append(pack(self._mark, number, self.durable, body))
            end += len(parts[-1])
            if end > limit and not self.failure:
                self._put(parts)
                if not self.is_broken:
                    self._advance()
                parts, end = [], self._offset
        self._put(parts)
        self._confirm()

    def retry(self) -> None:
        if self.failure:
            self._advance()
            self._confirm()

    def measure(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor is free
            self.size_bytes = self._directory.size_bytes()

    def close(self) -> None:
        """Truncate the last segment to its content and sync. Raises OSError."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._offset)
            os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _next_bytes(self) -> int:
        again = self._unconfirmed if self.is_broken else ()
        return self._segment_bytes + sum(HEAD_BYTES + len(body) for _, body in again)

    def _make(self) -> None:
        self._descriptor, self._mark = self._directory.create_segment(self.number + 1, self._next_bytes())
        self.number += 1
        self._offset = HEADER_BYTES

    def _advance(self) -> None:
        self._confirm()
        was_broken, earlier, end = self.is_broken, self._descriptor, self._offset
        try:
            self._make()
        except OSError as error:
            self._fail(error, is_broken=was_broken)
            return
        if earlier >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(earlier, end)
            with contextlib.suppress(OSError):
                os.close(earlier)
        self.is_broken = False
        self._put([pack(self._mark, number, self.durable, body) for number, body in self._unconfirmed])
        if self.is_broken:
            return
        if self.failure:
            _log.warning("state_directory: %s is writable again", self._directory.path)
            self.failure = ""
        self.measure()

    def _put(self, parts: list[bytes]) -> None:
        data = memoryview(b"".join(parts))
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._offset + written)
        except OSError as error:
            self._fail(error, is_broken=True)
        else:
            self._offset += written

    def _confirm(self) -> None:
        if self.is_broken or not self._unconfirmed:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # After a failed sync, the kernel may drop the bytes and report success next time, so they are rewritten
            # elsewhere.
            self._fail(error, is_broken=True)
        else:
            self.durable = self._unconfirmed[-1][0]
            self._unconfirmed.clear()
            self._directory.confirm(self.durable)

    def _fail(self, error: OSError, *, is_broken: bool) -> None:
        self.is_broken = is_broken
        refused = "new work is refused and other work waits" if is_broken else "new work is refused"
        text = why_refused(self._directory.path, error, refused, self._next_bytes())
        if self.failure != text:
            _log.error("%s", text)
            self.failure = text


def why_refused(path: Path, error: OSError, refused: str, wanted_bytes: int) -> str:
    """Describe a disk failure and the remedy. refused: work that is refused. wanted_bytes: free space needed."""
    room = f"{math.ceil(wanted_bytes / 2**20)} MiB are free there"
    until = room if error.errno in DISK_IS_FULL else "it is writable again"
    return f"state_directory: cannot write to {path}: {error.strerror}; {refused} until {until}"

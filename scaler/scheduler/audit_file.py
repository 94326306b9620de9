"""Writes the audit log in a thread of its own, so that a slow, full or missing disk never delays the scheduler."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from scaler.grammar import counted
from scaler.protocol.monitor_rows import AuditRow

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A larger file is renamed to one that ends in .1, and replaces the earlier one of that name."""
MAX_WAITING = 1_000
"""Writes that wait for the disk; records beyond it are counted as lost."""
CLOSE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class AuditFile:
    """One JSON object per line and record, in a file that only its owner can read.

    Records that cannot be written are counted; the first failure is logged, and so is the first success after it, when
    the file gets a record of the kind `lost` with their number. The file may be moved away or removed at any time.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lost = 0
        self._skipped = 0
        """Lost because too many writes wait; belongs to the thread that calls `write`."""
        self._waiting: queue.SimpleQueue[tuple[Sequence[AuditRow], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    def write(self, rows: Sequence[AuditRow]) -> None:
        """Have records written soon. Never waits and never fails."""
        if self._waiting.qsize() >= MAX_WAITING:
            self._skipped += len(rows)
        else:
            self._waiting.put((rows, self._skipped))
            self._skipped = 0

    def close(self) -> None:
        """Wait until everything is written, for a moment."""
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            rows, skipped = item
            self._lost += skipped
            lost = [AuditRow(time.time(), "lost", times=self._lost, text="could not be written")] if self._lost else []
            try:
                self._append("".join(json.dumps(row.document()) + "\n" for row in (*lost, *rows)).encode())
            except OSError as error:
                if not self._lost:
                    _log.error("audit_path: cannot write %s: %s; records are lost", self._path, error.strerror)
                self._lost += len(rows)
            else:
                if lost:
                    _log.warning("audit_path: %s is written again, lost %s", self._path, counted(self._lost, "record"))
                self._lost = 0

    def _append(self, text: bytes) -> None:
        """Append all of the text or nothing. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + len(text) > self._max_bytes:
                self._path.replace(f"{self._path}.1")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, text) < len(text):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

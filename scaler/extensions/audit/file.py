"""The audit log on disk."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from scaler.extensions.audit import AuditSettings
from scaler.extensions.audit.rows import AuditRow
from scaler.extensions.interface import Performer
from scaler.journal.files import FileWriter, append
from scaler.paths import local_path
from scaler.scheduler.rooms import Surroundings

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Size at which the file is renamed to PATH.1, replacing the previous PATH.1."""


class AuditFile(Performer):
    """Appends records to a JSON lines file, which may be moved or removed at any time. Reports dropped records."""

    def __init__(self, path: Path, writer: FileWriter, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = writer.file("audit_path", path, self._append)

    def perform(self, work: Sequence[AuditRow]) -> None:
        self._file.put(work, len(work))

    def _append(self, rows: Sequence[AuditRow], lost: int) -> None:
        first = [AuditRow(time.time(), "lost", times=lost, text="could not be written")] if lost else []
        text = "".join(json.dumps(row.document()) + "\n" for row in (*first, *rows)).encode()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + len(text) > self._max_bytes:
                self._path.replace(f"{self._path}.1")
        with contextlib.suppress(OSError):  # the append below reports the error
            self._path.parent.mkdir(parents=True, exist_ok=True)
        append(self._path, text)


def audit_file(config: AuditSettings, around: Surroundings) -> AuditFile | None:
    return AuditFile(local_path(config.audit_path), around.files) if config.audit_path else None

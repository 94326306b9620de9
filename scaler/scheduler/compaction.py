"""Subprocess that replaces the first segments of a scheduler's journal by a snapshot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scaler.component import report
from scaler.errors import ScalerError
from scaler.journal.directory import JournalDirectory
from scaler.journal.records import Replay
from scaler.protocol.messages import PROTOCOL_VERSION
from scaler.scheduler.journal import Ledger, from_bytes, to_bytes

NICENESS = 10


def compact(path: Path, number: int) -> None:
    """Replace all segments before this number. Raises JournalError and OSError."""
    directory = JournalDirectory(path, PROTOCOL_VERSION, lock=False)
    ledger, replay = Ledger(), Replay(PROTOCOL_VERSION)
    for body in directory.bodies(replay, number):
        for change in from_bytes(body):
            ledger.apply(change)
    bodies = (to_bytes(changes) for changes in ledger.snapshot() if changes)
    directory.write_snapshot(number, bodies, replay.last)


if __name__ == "__main__":
    os.nice(NICENESS)
    try:
        compact(Path(sys.argv[1]), int(sys.argv[2]))
    except ScalerError as error:
        sys.exit(report("compaction", error))

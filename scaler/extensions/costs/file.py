"""Saves the ledger in `state_directory`, where it survives scheduler restarts."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from scaler.extensions.costs import CostSettings
from scaler.extensions.costs.core import Saved, SpendingLedger
from scaler.extensions.interface import Performer
from scaler.scheduler.rooms import Surroundings
from scaler.security.private_files import write_atomically

NAME = "spending.json"
_log = logging.getLogger(__name__)


class SpendingFile(Performer):
    """One scheduler's ledger file, guarded by the lock of the journal directory. Restores the ledger on creation."""

    def __init__(self, directory: Path, around: Surroundings) -> None:
        self._path = directory / NAME
        self._file = around.files.file("state_directory", self._path, self._replace, only_latest=True)
        self._saved = 0.0
        """Total cost of the run at the last write."""
        try:
            document = json.loads(self._path.read_bytes())
            ledger = SpendingLedger({}, 0.0)
            ledger.restore(document["ledger"], 0.0)
            away_seconds = max(0.0, time.time() - float(document["unix_seconds"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("%s cannot be read, so spending starts at zero in this run: %s", self._path, error)
        else:
            self._saved = ledger.run
            around.tell({"away_seconds": away_seconds, "ledger": document["ledger"]})

    def perform(self, work: Saved) -> None:
        """Enqueue a write unless the file is current. A failed write is retried by the next call."""
        if work.ledger.run != self._saved:
            document = {"unix_seconds": work.unix_seconds, "ledger": work.ledger.to_json(work.now)}
            self._file.put((work.ledger.run, document))

    def _replace(self, item: tuple[float, dict[str, Any]], _lost: int) -> None:
        run, document = item
        write_atomically(self._path, json.dumps(document), replace=True)
        self._saved = run


def spending_file(_config: CostSettings, around: Surroundings) -> SpendingFile | None:
    directory = around.state_directory
    return SpendingFile(directory / "scheduler", around) if directory is not None else None

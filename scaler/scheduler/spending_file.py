"""Keeps what units have cost in `state_directory`, so that a restarted scheduler goes on with it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.files import FileWriter, replace

NAME = "spending.json"
SAVE_SECONDS = 5.0
"""How often it is written while units cost something. Units that live are charged for the time since, later."""

_log = logging.getLogger(__name__)


class SpendingFile:
    """The file of one scheduler, in the directory of its journal, which is locked. Restores the ledger when made."""

    def __init__(
        self, directory: Path, state: ClusterState, loop: asyncio.AbstractEventLoop, writer: FileWriter
    ) -> None:
        self._path = directory / NAME
        self._state = state
        self._loop = loop
        self._file = writer.file("state_directory", self._path, self._replace, only_latest=True)
        try:
            document = json.loads(self._path.read_bytes())
            away_seconds = max(0.0, time.time() - float(document["unix_seconds"]))
            state.ledger.restore(document["ledger"], loop.time() - away_seconds)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("%s cannot be read, so this run begins with nothing spent: %s", self._path, error)
        self._saved = state.ledger.run
        """The sum of the run that the file has."""
        self._timer = loop.call_later(SAVE_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(SAVE_SECONDS, self._tick)
        self._save()

    def _save(self) -> None:
        """Have the sums written soon, unless the file has them: one that could not be written is tried again."""
        ledger = self._state.ledger
        if ledger.run != self._saved:
            document = ledger.to_json(self._state.own_time(self._loop.time()))
            self._file.put((ledger.run, {"unix_seconds": time.time(), "ledger": document}))

    def _replace(self, item: tuple[Any, dict[str, Any]], _lost: int) -> None:
        run, document = item
        replace(self._path, json.dumps(document).encode())
        self._saved = run

    def close(self) -> None:
        self._timer.cancel()
        self._save()

"""Keeps what units have cost in `state_directory`, so that a restarted scheduler goes on with it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

from scaler.scheduler.core.cluster import ClusterState

NAME = "spending.json"
SAVE_SECONDS = 5.0
"""How often it is written while units cost something. Units that live are charged for the time since, later."""

_log = logging.getLogger(__name__)


class SpendingFile:
    """The file of one scheduler, in the directory of its journal, which is locked. Restores the ledger when made."""

    def __init__(self, directory: Path, state: ClusterState, loop: asyncio.AbstractEventLoop) -> None:
        self._path = directory / NAME
        self._state = state
        self._loop = loop
        self._failure = ""
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
        """Write what has changed. A disk that fails is reported once: the sums in memory are right."""
        ledger = self._state.ledger
        if ledger.run == self._saved:
            return
        document = ledger.to_json(self._state.own_time(self._loop.time()))
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps({"unix_seconds": time.time(), "ledger": document}))
            temporary.replace(self._path)
        except OSError as error:
            if str(error) != self._failure:
                _log.warning("cannot write what units have cost, will try again: %s", error)
            self._failure = str(error)
            return
        self._saved, self._failure = ledger.run, ""

    def close(self) -> None:
        self._timer.cancel()
        self._save()

"""The keys that a server admits, following the keys directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from scaler.errors import ConfigError
from scaler.security.directory import KeysDirectory
from scaler.security.documents import UNITS, BrokenEntry, PeerEntry
from scaler.security.keys import Entry
from scaler.texts import escaped

_log = logging.getLogger(__name__)
_now = partial(datetime.now, UTC)


class AllowList:
    """The admitted public keys of a directory. Logs each problem with a line only once."""

    def __init__(self, directory: KeysDirectory, now: Callable[[], datetime] = _now) -> None:
        self._directory = directory
        self._now = now
        self._state: tuple[int, ...] | None = None
        self._listed: Sequence[PeerEntry | BrokenEntry] = ()
        self._unreadable = ""
        self._next_expiry: datetime | None = None
        self._entries: dict[str, Entry] = {}
        self.problems: set[str] = set()
        self.refresh()

    @property
    def is_unreadable(self) -> bool:
        return bool(self._unreadable)

    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    def refresh(self) -> None:
        """Apply added, revoked, expired, and removed keys. Costs one `stat` if nothing changed."""
        now, state = self._now(), _state_of(self._directory.peers)
        if state != self._state:
            self._state, self._unreadable = state, ""
            try:
                self._listed = self._directory.listed() if state else ()
            except ConfigError as error:  # may be temporary without a file change, such as a lack of descriptors
                self._state, self._unreadable = None, f"{error}: the keys are unchanged"
        elif self._next_expiry is None or now < self._next_expiry:
            return
        problems = [self._unreadable] if self._unreadable else []
        if not state:  # removing the file revokes all keys
            problems.append(f"{self._directory.peers} does not exist: no peer is admitted")
        self._entries = self._admitted(now, problems)
        for problem in problems:
            if problem not in self.problems:
                _log.warning("problem in the keys directory: %s", escaped(problem))
        self.problems = set(problems)

    def _admitted(self, now: datetime, problems: list[str]) -> dict[str, Entry]:
        scheduler = self._directory.scheduler.public
        found = {scheduler: Entry("scheduler", "scheduler")}
        reserved = self._directory.object_storage.public
        problems += [each.error for each in self._listed if isinstance(each, BrokenEntry)]
        read = [(entry.problem(now), entry) for entry in self._listed if isinstance(entry, PeerEntry)]
        self._next_expiry = min((entry.expires for why, entry in read if not why and entry.expires), default=None)
        for problem, entry in sorted(read, key=lambda each: not each[0]):  # of equal keys, a refused one wins
            rows = {entry.public: Entry(entry.name, entry.role, problem)}
            if entry.units:
                rows[entry.units] = Entry(entry.name + UNITS, "worker", problem)
            if reserved in rows or rows.keys() & found.keys():
                problems.append(f"key {entry.name} is ignored: it is a server's key, or a duplicate")
            else:
                found |= rows
        return found


def _state_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return ()
    except OSError:
        return (0,)
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns

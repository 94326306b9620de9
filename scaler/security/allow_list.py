"""The keys that a server admits, as the keys directory has them now."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from scaler.errors import ConfigError
from scaler.security.directory import KeysDirectory
from scaler.security.documents import UNITS
from scaler.security.entry import PeerEntry
from scaler.security.keys import Entry
from scaler.security.private_files import TEMPORARY, require_private
from scaler.texts import escaped

CLOCK_STEP_NS = 100_000_000
"""Changes of a directory within less than this may leave it with the same time."""
_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class AllowList:
    """The public keys of a directory. problems: by file, of those that admit nothing, because they are broken, can be
    opened by others, or repeat another one's key. Each problem is logged once, and all other keys stay.
    """

    def __init__(self, directory: KeysDirectory, now: Callable[[], datetime] = _now) -> None:
        self._directory = directory
        self._now = now
        self._seen: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, PeerEntry | ConfigError] = {}
        self._next_expiry: datetime | None = datetime.min.replace(tzinfo=UTC)  # the first refresh is due
        self._entries: dict[str, Entry] = {}
        self._changed_ns = 0
        """When files were added to the directory or removed, as of the last `refresh`; 0: more may come unnoticed."""
        self.problems: dict[str, str] = {}
        self.refresh()

    def entries(self) -> Mapping[str, Entry]:
        """Return all of them by public key, as of the last `refresh`."""
        return self._entries

    def is_outdated(self) -> bool:
        """Return whether keys may have been added since the last `refresh`. It asks for the times of one directory."""
        try:
            return self._directory.peers.stat().st_mtime_ns != self._changed_ns
        except OSError:
            return False

    def refresh(self) -> bool:
        """Read what has changed: added, revoked, expired and removed keys. Return whether any entry has changed.

        It is cheap: of a file that has not changed, it asks for the times and the size only.
        """
        peers, now = self._directory.peers, self._now()
        problems: dict[str, str] = {}
        try:
            changed_ns = peers.stat().st_mtime_ns
            self._changed_ns = changed_ns if abs(time.time_ns() - changed_ns) > CLOCK_STEP_NS else 0
            seen = _files_in(peers)
        except FileNotFoundError:
            seen = {}  # to remove the directory is to revoke all keys
            problems["peers"] = f"{peers} is gone: no peer is admitted"
        except (OSError, ConfigError) as error:
            seen = self._seen
            problems["peers"] = f"{error}: all keys stay as they were"
        is_due = self._next_expiry is not None and now >= self._next_expiry
        if seen == self._seen and not (problems or self.problems or is_due):
            return False
        self._files = {
            name: self._files[name] if self._seen.get(name) == state and name not in self.problems else self._read(name)
            for name, state in seen.items()
        }
        entries = self._admitted(now, problems)
        for name, problem in problems.items():
            if self.problems.get(name) != problem:
                _log.warning("problem in the keys directory: %s", escaped(problem))
        changed = entries != self._entries
        self._seen, self._entries, self.problems = seen, entries, problems
        return changed

    def _read(self, name: str) -> PeerEntry | ConfigError:
        try:
            return self._directory.entry_in(self._directory.peers / name)
        except ConfigError as error:
            return error

    def _admitted(self, now: datetime, problems: dict[str, str]) -> dict[str, Entry]:
        scheduler = self._directory.scheduler.public
        found = {scheduler: Entry("scheduler", "scheduler")}
        reserved = self._directory.object_storage.public
        read = []
        for name, entry in self._files.items():
            if isinstance(entry, ConfigError):
                problems[name] = str(entry)
            else:
                read.append((not entry.problem(now), name, entry))
        self._next_expiry = min((entry.expires for ok, _, entry in read if ok and entry.expires), default=None)
        for _, name, entry in sorted(read, key=lambda each: each[:2]):  # of two with one key, the refused one counts
            problem = entry.problem(now)
            rows = {entry.public: Entry(entry.name, entry.role, problem)}
            if entry.units:
                rows[entry.units] = Entry(entry.name + UNITS, "worker", problem)
            if reserved in rows or rows.keys() & found.keys():
                problems[name] = f"{name} admits nothing: its key is that of a server or of another file"
            else:
                found |= rows
        return found


def _files_in(peers: Path) -> dict[str, tuple[int, ...]]:
    """Return the names of the files of entries, each with what differs after any change of it."""
    require_private(peers.stat(), peers)
    seen: dict[str, tuple[int, ...]] = {}
    with os.scandir(peers) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if not file.name.startswith(TEMPORARY):
                    found = file.stat()
                    times = found.st_mtime_ns, found.st_ctime_ns
                    seen[file.name] = found.st_ino, found.st_mode, found.st_size, *times
    return seen

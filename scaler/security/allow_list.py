"""The keys that a server admits, as the keys directory has them now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scaler.errors import ConfigError
from scaler.security.credential import UNITS
from scaler.security.directory import KeysDirectory
from scaler.security.entry import PeerEntry
from scaler.security.private_files import require_private

_log = logging.getLogger(__name__)
_Signature = tuple[int, ...]


class Entry(NamedTuple):
    """What a public key stands for. problem: why it is not admitted, such as `was revoked on ...`; empty when it is."""

    name: str
    role: str
    problem: str = ""


def _now() -> datetime:
    return datetime.now(UTC)


class AllowList:
    """The public keys of a directory. Files are read again only when they have changed.

    A file that is broken, readable by others, or repeats another one's key admits nothing. It is logged once and
    listed in `problems`, by file, and the other files go on. While the whole directory cannot be read, what was read
    last stays.
    """

    def __init__(self, directory: KeysDirectory, now: Callable[[], datetime] = _now) -> None:
        self._directory = directory
        self._now = now
        self._files: dict[Path, tuple[_Signature, PeerEntry | None]] = {}
        self._entries: dict[str, Entry] = {}
        self.problems: dict[Path, str] = {}
        self.refresh()

    def entry(self, public_key: str) -> Entry | None:
        """Return what a public key in z85 stands for as of the last `refresh`, or None for an unknown one."""
        return self._entries.get(public_key)

    def refresh(self) -> bool:
        """Read what has changed: added, revoked, expired and removed keys. Return whether any entry has changed."""
        problems: dict[Path, str] = {}
        try:
            self._files = self._read(problems)
        except FileNotFoundError:
            self._files = {}  # who removes the directory revokes all keys in it
            problems[self._directory.peers] = "the keys directory is gone: no peer is admitted"
        except (OSError, ConfigError) as error:
            problems[self._directory.peers] = f"{error}: keys stay as they were"
        entries = self._admitted(problems)
        for path, problem in problems.items():
            if self.problems.get(path) != problem:
                _log.warning("problem in the keys directory: %s", problem)
        changed = entries != self._entries
        self._entries, self.problems = entries, problems
        return changed

    def _read(self, problems: dict[Path, str]) -> dict[Path, tuple[_Signature, PeerEntry | None]]:
        peers = self._directory.peers
        require_private(peers.stat(), peers)
        files: dict[Path, tuple[_Signature, PeerEntry | None]] = {}
        for path in self._directory.entry_files():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # removed meanwhile
            signature = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_uid)
            known = self._files.get(path)
            if known is not None and known[0] == signature:
                files[path] = known
                if path in self.problems and known[1] is None:
                    problems[path] = self.problems[path]
                continue
            entry = None
            try:
                entry = self._directory.entry_in(path)
            except ConfigError as error:
                problems[path] = str(error)
            files[path] = (signature, entry)
        return files

    def _admitted(self, problems: dict[Path, str]) -> dict[str, Entry]:
        scheduler = self._directory.scheduler.public
        found = {scheduler: Entry("scheduler", "scheduler")}
        reserved = {scheduler, self._directory.object_storage.public}
        now = self._now()
        read = [(path, entry, entry.problem(now)) for path, (_, entry) in self._files.items() if entry]
        for path, entry, problem in sorted(read, key=lambda each: not each[2]):  # of two, the one that is not admitted
            rows = {entry.public: Entry(entry.name, entry.role, problem)}
            if entry.units:
                rows[entry.units] = Entry(entry.name + UNITS, "worker", problem)
            if rows.keys() & (found.keys() | reserved):
                problems[path] = f"{path} admits nothing: another file has its key, too"
            else:
                found |= rows
        return found

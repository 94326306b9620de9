"""The keys of a cluster: a private directory that servers read and `scaler keys` changes. `servers.toml`: the servers'
key pairs. `peers.jsonl`: public keys of peers. `credentials`: credentials of local components."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Self

from scaler.errors import ConfigError, UsageError
from scaler.paths import UNSUPPORTED, local_path
from scaler.security import CREDENTIALS_VARIABLE, documents
from scaler.security.credential import Credential, load_credential
from scaler.security.documents import UNITS, BrokenEntry, PeerEntry
from scaler.security.keys import NO_SHARE, Entry, KeyPair, Share, new_key_pair
from scaler.security.private_files import read_private, require_private, write_private
from scaler.texts import escaped

MAX_LIST_BYTES = 64 * 1024 * 1024
_SERVERS_FILE = "servers.toml"
_PEERS_FILE = "peers.jsonl"
_KINDS = {
    "cluster": "Name",
    **{f"{server}_{half}": "Key" for server in documents.SERVERS for half in ("public", "secret")},
}


def default_directory(environment: Mapping[str, str]) -> Path:
    configured = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return local_path(environment.get(CREDENTIALS_VARIABLE) or f"{configured}/scaler/keys")


class KeysDirectory:
    def __init__(self, path: Path, cluster: str, scheduler: KeyPair, object_storage: KeyPair) -> None:
        self.path = path
        self.cluster = cluster
        self.scheduler = scheduler
        self.object_storage = object_storage
        self.peers = path / _PEERS_FILE

    @classmethod
    def create(cls, path: str | Path, cluster: str) -> Self:
        """Create the directory with new server keys. Raises UsageError if it is not empty."""
        path = local_path(path)
        if not documents.is_name(cluster):
            raise UsageError(f"the cluster's name {cluster!r} must be {documents.NAME_RULE}")
        keys = cls(path, cluster, new_key_pair(), new_key_pair())
        pairs = zip(documents.SERVERS, (keys.scheduler, keys.object_storage), strict=True)
        values = {f"{server}_{half}": text for server, pair in pairs for half, text in pair._asdict().items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
            if any(path.iterdir()):
                raise UsageError(f"{path} exists and is not empty: `scaler keys add` adds keys to a keys directory")
            require_private(path.stat(), path)
            (path / "credentials").mkdir(0o700)
            write_private(keys.peers, "")
            write_private(path / _SERVERS_FILE, documents.lines({"cluster": cluster, **values}))
        except OSError as error:
            raise UsageError(f"cannot create the keys directory {path}: {error.strerror}") from None
        return keys

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing directory. Raises ConfigError, also if other users can open it."""
        path = local_path(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, not a keys directory (usually ~/.config/scaler/keys)")
        try:
            (path / _SERVERS_FILE).lstat()  # before checking modes: that advice applies only to keys directories
            for each in (path, path / _PEERS_FILE):
                require_private(each.stat(), each)
        except (FileNotFoundError, NotADirectoryError):
            make = f"`scaler keys init {quote(str(path))}` creates one"
            raise ConfigError(f"{path} is not a keys directory: {make}") from None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        values = documents.parse(read_private(path / _SERVERS_FILE), str(path / _SERVERS_FILE), _KINDS)
        pairs = (KeyPair(values[f"{server}_public"], values[f"{server}_secret"]) for server in documents.SERVERS)
        return cls(path, values["cluster"], *pairs)

    def add(self, name: str, role: str, expires: datetime | None = None, share: Share = NO_SHARE) -> Credential:
        """Add a key. Returns its credential, the only copy of its secrets. Raises UsageError if the name is taken."""
        credential = self._new_credential(name, role, expires)
        self._admit(credential, share)
        return credential

    def share(self, name: str, changes: Mapping[str, Any]) -> PeerEntry:
        """Change the share of a key, or of a group that some key belongs to. changes: fields of `Share`; None: the
        default. Returns the entry. Raises UsageError if there is no such key or group."""
        with self._changing() as listed:
            entries = [entry for entry in listed if isinstance(entry, PeerEntry) and not entry.revoked]
            found = next((entry for entry in entries if entry.name == name), None)
            if found is None:
                if not any(entry.group == name for entry in entries):
                    raise UsageError(f"there is no key named {name!r}, and no key is in a group with this name")
                found = PeerEntry(name=name, role=documents.GROUP, added=datetime.now(UTC))
                listed.append(found)
            if found.role == documents.GROUP and changes.get("group"):
                raise UsageError(f"{name!r} is a group, and a group cannot belong to another group")
            changed = replace(found, **changes)
            listed[listed.index(found)] = changed
        return changed

    def of_scheduler(self) -> Credential:
        return self._credential("scheduler", "scheduler", self.scheduler)

    def credential(self, name: str, role: str) -> Credential:
        """Return the credential of the component with this name, creating it on the first call. Raises UsageError if
        the name belongs to a key added for another host, and ConfigError if the component has another role."""
        new = self._new_credential(name, role, None)
        path = self.path / "credentials" / f"{name}.credentials"
        if not path.exists():
            try:
                write_private(path, new.to_text())
                self._admit(new)
            except FileExistsError:
                pass  # another process was first
            except UsageError:
                path.unlink(missing_ok=True)
                raise
        credential = load_credential(path)
        if credential.role != role:
            raise ConfigError(f"{path} has the role {credential.role}, not {role}: choose another name")
        return credential

    def revoke(self, name: str) -> None:
        now = datetime.now(UTC)
        with self._changing() as listed:
            found = [entry for entry in listed if isinstance(entry, documents.PeerEntry) and entry.name == name]
            if all(entry.revoked for entry in found):
                said = f"{name!r} {found[-1].problem(now)} already" if found else f"there is no key named {name!r}"
                raise UsageError(f"{said}; `scaler keys list` lists all keys")
            for index, entry in enumerate(listed):
                if entry in found and not entry.revoked:
                    listed[index] = replace(entry, revoked=now)

    def listed(self) -> list[documents.PeerEntry | documents.BrokenEntry]:
        """Return all peers' keys, in the order of addition. Raises ConfigError for an unreadable file."""
        text = read_private(self.peers, MAX_LIST_BYTES)
        if len(text) > MAX_LIST_BYTES:
            raise ConfigError(f"{self.peers} is larger than MAX_LIST_BYTES = {MAX_LIST_BYTES}")
        rows = enumerate(text.split("\n"), 1)
        return [documents.entry_of(line, f"{self.peers}, line {number}") for number, line in rows if line]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[documents.PeerEntry | documents.BrokenEntry]]:
        with (self.path / _SERVERS_FILE).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # keys are changed by hand, so concurrent changes are rare
                if error.errno not in UNSUPPORTED:
                    raise
            listed = self.listed()
            yield listed
            write_private(self.peers, "".join(f"{entry.line}\n" for entry in listed), replace=True)

    def _new_credential(self, name: str, role: str, expires: datetime | None) -> Credential:
        if not documents.is_name(name) or name in documents.RESERVED_NAMES:
            raise UsageError(
                f"{name!r} must be {documents.NAME_RULE}; {', '.join(documents.RESERVED_NAMES)} are reserved"
            )
        if role not in documents.PEER_ROLES:
            raise UsageError(f"unknown role {role!r}; roles: {', '.join(documents.PEER_ROLES)}")
        return self._credential(name, role, new_key_pair(), expires)

    def _credential(self, name: str, role: str, keys: KeyPair, expires: datetime | None = None) -> Credential:
        return Credential(
            name=name,
            role=role,
            cluster=self.cluster,
            scheduler_key=self.scheduler.public,
            object_storage_key=self.object_storage.public,
            expires=expires,
            **keys._asdict(),
        )

    def _admit(self, credential: Credential, share: Share = NO_SHARE) -> None:
        new = documents.PeerEntry(
            name=credential.name,
            role=credential.role,
            public=credential.public,
            units=credential.for_units().public if credential.role == "manager" else None,
            added=datetime.now(UTC),
            expires=credential.expires,
            weight=None if share.weight == 1.0 else share.weight,
            max_slots=share.max_slots or None,
            group=share.group or None,
        )
        with self._changing() as listed:
            require_free(new.name, listed)
            listed.append(new)


def require_free(name: str, listed: Iterable[documents.PeerEntry | documents.BrokenEntry]) -> None:
    now = datetime.now(UTC)
    for entry in listed:
        if isinstance(entry, documents.PeerEntry) and entry.name == name and not entry.problem(now):
            raise UsageError(
                f"a key named {name!r} already exists, added on {documents.shown(entry.added)}: choose another name, "
                f"or revoke that key first with `scaler keys revoke {name}`"
            )


_log = logging.getLogger(__name__)
_now = partial(datetime.now, UTC)


class AllowList:
    """The admitted public keys in a directory. Logs each problem with a line once."""

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
        """Apply added, revoked, expired, and removed keys. If nothing changed, costs one `stat`."""
        now, state = self._now(), _state_of(self._directory.peers)
        if state != self._state:
            self._state, self._unreadable = state, ""
            try:
                self._listed = self._directory.listed() if state else ()
            except ConfigError as error:  # the cause may not be the file: for example, no descriptor is free
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
        for problem, entry in sorted(
            read, key=lambda each: not each[0]
        ):  # if entries have equal keys, a refused entry wins. Public keys contain no spaces.
            known = entry.public or f"{documents.GROUP} {entry.name}"
            rows = {known: Entry(entry.name, entry.role, problem, entry.share)}
            if entry.units:
                rows[entry.units] = Entry(entry.name + UNITS, "worker", problem)
            if reserved in rows or rows.keys() & found.keys():
                problems.append(f"ignored key {entry.name}: it is a server's key, or a duplicate")
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

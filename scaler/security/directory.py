"""The keys of a cluster: a private directory that servers read and `scaler keys` changes.

`servers.toml` has the key pairs of the servers. `peers` has one public file per key of a peer, `NAME.toml`, then
`NAME.2.toml`: each is made by one atomic step that fails when it exists, so commands at once do no harm. `credentials`
has those of components that are started with the directory itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from scaler.errors import ConfigError, UsageError
from scaler.security import CREDENTIALS_VARIABLE
from scaler.security.credential import Credential, load_credential
from scaler.security.documents import NAME_RULE, PEER_ROLES, is_name, lines, parse, shown
from scaler.security.entry import PeerEntry
from scaler.security.keys import KeyPair, new_key_pair
from scaler.security.private_files import TEMPORARY, read_private, require_private, write_private

SERVERS = ("scheduler", "object_storage")
RESERVED_NAMES = ("local", "anyone", *SERVERS)
"""Names of identities that no key of a peer may have."""
_SERVERS_FILE = "servers.toml"
_KINDS = {
    "cluster": "name",
    **{f"{server}_{half}": "key" for server in SERVERS for half in ("public", "secret")},
}
_ENTRY = re.compile(r"([^.]+)(\.[1-9][0-9]*)?\.toml")


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory that `scaler keys` uses when none is named."""
    configured = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(environment.get(CREDENTIALS_VARIABLE) or f"{configured}/scaler/keys")


class KeysDirectory:
    """The keys of a cluster. scheduler, object_storage: the key pairs of the servers."""

    def __init__(self, path: Path, cluster: str, scheduler: KeyPair, object_storage: KeyPair) -> None:
        self.path = path
        self.cluster = cluster
        self.scheduler = scheduler
        self.object_storage = object_storage
        self.peers = path / "peers"

    @classmethod
    def create(cls, path: str | Path, cluster: str) -> KeysDirectory:
        """Make the directory with new keys of the servers. Raises UsageError when it has something in it."""
        path = Path(path)
        if not is_name(cluster):
            raise UsageError(f"the cluster's name {cluster!r} must be {NAME_RULE}")
        keys = cls(path, cluster, new_key_pair(), new_key_pair())
        values = {"cluster": cluster}
        for server, pair in zip(SERVERS, (keys.scheduler, keys.object_storage), strict=True):
            values |= {f"{server}_public": pair.public, f"{server}_secret": pair.secret}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
            if any(path.iterdir()):
                raise UsageError(f"{path} exists and is not empty: `scaler keys add` adds keys to a keys directory")
            require_private(path.stat(), path)
            for each in (keys.peers, path / "credentials"):
                each.mkdir(0o700)
            write_private(path / _SERVERS_FILE, lines(values))
        except OSError as error:
            raise UsageError(f"cannot make the keys directory {path}: {error.strerror}") from None
        return keys

    @classmethod
    def open(cls, path: str | Path) -> KeysDirectory:
        """Return an existing directory. Raises ConfigError, also when other users can open it."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, and no keys directory (~/.config/scaler/keys is the usual one)")
        try:
            (path / _SERVERS_FILE).lstat()  # before any advice about modes, which is for keys directories only
            for each in (path, path / "peers"):
                require_private(each.stat(), each)
        except (FileNotFoundError, NotADirectoryError):
            make = f"`scaler keys init {quote(str(path))}` makes one"
            raise ConfigError(f"{path} is no keys directory: {make}") from None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        values = parse(read_private(path / _SERVERS_FILE), str(path / _SERVERS_FILE), _KINDS)
        pairs = (KeyPair(values[f"{server}_public"], values[f"{server}_secret"]) for server in SERVERS)
        return cls(path, values["cluster"], *pairs)

    def add(self, name: str, role: str, expires: datetime | None = None) -> Credential:
        """Admit a new key under this name and return its credential, the only copy of its secrets.

        Raises UsageError when the name is taken by a key that is admitted.
        """
        credential = self._new_credential(name, role, expires)
        self._admit(credential)
        return credential

    def of_scheduler(self) -> Credential:
        """Return what the scheduler proves itself with to the object storage."""
        return self._credential("scheduler", "scheduler", self.scheduler)

    def credential(self, name: str, role: str) -> Credential:
        """Return the credential that the directory keeps for a component of this name; made at the first call.

        Raises UsageError when the name is taken by a key that was added for another place, and ConfigError when the
        component of this name has another role.
        """
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
        """End all keys of this name. Raises UsageError when there is none to end."""
        now = datetime.now(UTC)
        found = [(path, self.entry_in(path)) for path in self._files_of(name)]
        current = [(path, entry) for path, entry in found if not entry.revoked]
        if not current:
            said = f"{name!r} {found[-1][1].problem(now)} already" if found else f"there is no key named {name!r}"
            raise UsageError(f"{said}; `scaler keys list` lists all")
        for path, entry in current:
            write_private(path, replace(entry, revoked=now).to_text(), replace=True)

    def entries(self) -> list[PeerEntry]:
        """Return all keys of peers by name, older ones of a name first. Raises ConfigError for a broken file."""
        return [self.entry_in(path) for path in self.entry_files()]

    def entry_files(self) -> list[Path]:
        """Return the files of entries, also broken ones, in the order of `entries`."""
        try:
            names = [name for name in os.listdir(self.peers) if not name.startswith(TEMPORARY)]  # noqa: PTH208 (names)
        except OSError as error:
            raise ConfigError(f"cannot read {self.peers}: {error.strerror}") from None
        return [self.peers / name for name in sorted(names, key=lambda each: (each.split(".")[0], len(each), each))]

    def entry_in(self, path: Path) -> PeerEntry:
        """Return the entry in one of the files. Raises ConfigError when it is broken, or the file of another name."""
        entry = PeerEntry.from_text(read_private(path), str(path))
        match = _ENTRY.fullmatch(path.name)
        if match is None or match[1] != entry.name or entry.name in RESERVED_NAMES:
            raise ConfigError(f"{path} is no file for a key of the name {entry.name!r}")
        return entry

    def _new_credential(self, name: str, role: str, expires: datetime | None) -> Credential:
        if not is_name(name) or name in RESERVED_NAMES:
            raise UsageError(f"{name!r} must be {NAME_RULE}; {', '.join(RESERVED_NAMES)} are reserved")
        if role not in PEER_ROLES:
            raise UsageError(f"unknown role {role!r}; roles are {', '.join(PEER_ROLES)}")
        units = new_key_pair() if role == "manager" else None
        return self._credential(name, role, new_key_pair(), units, expires)

    def _credential(
        self, name: str, role: str, keys: KeyPair, units: KeyPair | None = None, expires: datetime | None = None
    ) -> Credential:
        return Credential(
            name=name,
            role=role,
            cluster=self.cluster,
            scheduler_key=self.scheduler.public,
            object_storage_key=self.object_storage.public,
            keys=keys,
            units=units,
            expires=expires,
        )

    def _admit(self, credential: Credential) -> None:
        entry = PeerEntry(
            name=credential.name,
            role=credential.role,
            cluster=credential.cluster,
            public=credential.keys.public,
            units=credential.units.public if credential.units else None,
            added=datetime.now(UTC),
            expires=credential.expires,
        )
        while True:
            number = self.require_free(entry.name)
            path = self.peers / (f"{entry.name}.{number}.toml" if number > 1 else f"{entry.name}.toml")
            with contextlib.suppress(FileExistsError):  # another process was first, so the name is taken now
                return write_private(path, entry.to_text())

    def require_free(self, name: str) -> int:
        """Return the number that the next key of this name gets. Raises UsageError when one of its keys is admitted."""
        number, now = 1, datetime.now(UTC)
        for path in self._files_of(name):
            entry = self.entry_in(path)
            if not entry.problem(now):
                raise UsageError(
                    f"there is a key named {name!r} already, added on {shown(entry.added)}: choose another name, or "
                    f"end that key first with `scaler keys revoke {name}`"
                )
            number = max(number, int(path.name.split(".")[1]) + 1 if path.name.count(".") > 1 else 2)
        return number

    def _files_of(self, name: str) -> Iterator[Path]:
        return (path for path in self.entry_files() if path.name.split(".")[0] == name)

"""A peer's credential: its own keys and the servers' public keys, in a private file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from scaler.errors import ConfigError
from scaler.paths import local_path
from scaler.security.documents import UNITS, Key, Name, Role, Time, lines, parse, shown
from scaler.security.keys import KeyPair, derived_pair
from scaler.security.private_files import read_private

_CLOCKS_DIFFER_BY = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A peer's keys for the servers of a cluster, and the servers' public keys. role: one of PEER_ROLES."""

    name: Name
    role: Role
    cluster: Name
    expires: Time | None = None
    scheduler_key: Key
    object_storage_key: Key
    public: Key
    secret: Key = field(repr=False)

    @property
    def keys(self) -> KeyPair:
        return KeyPair(self.public, self.secret)

    def for_units(self) -> Credential:
        if self.role != "manager":
            raise ConfigError(f"the credential {self.name!r} has the role {self.role}: only managers have units")
        return replace(self, name=self.name + UNITS, role="worker", **derived_pair(self.keys, UNITS)._asdict())

    def ending(self, now: datetime) -> str:
        """Return why a server refuses this credential now. Near expiry this is a guess, because clocks differ."""
        if self.expires is None or self.expires > now + _CLOCKS_DIFFER_BY:
            return "was revoked"
        return f"expired on {shown(self.expires)}" if self.expires <= now else "was revoked, or has expired"

    def to_text(self) -> str:
        return (
            f'# A credential of Scaler: anyone who can read this file can act as "{self.name}".\n{lines(asdict(self))}'
        )

    @classmethod
    def from_text(cls, text: str, where: str) -> Credential:
        """Parse the result of `to_text`. where: source, named in errors. Raises ConfigError."""
        return cls(**parse(text, where, cls.__annotations__))


def load_credential(path: str | Path) -> Credential:
    """Read the credential from a file or pipe. Raises ConfigError, also if other users can read the file."""
    if (path := local_path(path)).is_dir():
        raise ConfigError(f"{path} is a directory: give a credential file, which `scaler keys add` writes")
    return Credential.from_text(read_private(path), str(path))

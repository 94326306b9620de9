"""A peer's credential: its own keys, and the public keys of the servers. One private file holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scaler.errors import ConfigError
from scaler.security.documents import Document, lines
from scaler.security.private_files import read_private

PEER_ROLES = ("client", "worker", "manager", "monitor", "admin")
UNITS = ".units"
"""Ends the name of the key of a manager's units. Names of peers have no dot."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The keys of one peer or server in z85. `repr` does not show the secret one."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def from_document(cls, document: Document) -> KeyPair:
        """Return what `to_text` wrote. Raises ConfigError."""
        return cls(document.key("public"), document.key("secret"))

    def to_text(self) -> str:
        """Return the lines of a TOML table, with the secret key."""
        return lines({"public": self.public, "secret": self.secret})


def new_key_pair() -> KeyPair:
    """Return keys that nobody else has."""
    import zmq  # noqa: PLC0415 (readers of credentials do not need it)

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a peer proves itself with to the servers of a cluster, and knows these by.

    role: one of PEER_ROLES. units: of managers, the keys that they give to their units.
    """

    name: str
    role: str
    cluster: str
    scheduler_key: str
    object_storage_key: str
    keys: KeyPair
    units: KeyPair | None = None
    expires: datetime | None = None

    def for_units(self) -> Credential:
        """Return the worker credential of a manager's units, which ends with the manager's own."""
        if self.units is None:
            raise ConfigError(f"the credential {self.name!r} has the role {self.role}: only a manager has units")
        return Credential(
            name=self.name + UNITS,
            role="worker",
            cluster=self.cluster,
            scheduler_key=self.scheduler_key,
            object_storage_key=self.object_storage_key,
            keys=self.units,
            expires=self.expires,
        )

    def to_text(self) -> str:
        """Return the text of a credential file, with the secret keys."""
        head = {"name": self.name, "role": self.role, "cluster": self.cluster, "expires": self.expires}
        servers = {"scheduler": self.scheduler_key, "object_storage": self.object_storage_key}
        units = f"\n[units]\n{self.units.to_text()}" if self.units else ""
        return (
            f'# A credential of Scaler: whoever can read this file can act as "{self.name}".\n{lines(head)}\n'
            f"[servers]\n{lines(servers)}\n[keys]\n{self.keys.to_text()}{units}"
        )

    @classmethod
    def from_text(cls, text: str, where: str) -> Credential:
        """Return the credential of a text that `to_text` wrote. where: names it in errors. Raises ConfigError."""
        document = Document.parse(text, where)
        servers = document.table("servers")
        role = document.choice("role", PEER_ROLES)
        return cls(
            name=document.name(suffix=UNITS if role == "worker" else ""),
            role=role,
            cluster=document.name("cluster"),
            scheduler_key=servers.key("scheduler"),
            object_storage_key=servers.key("object_storage"),
            keys=KeyPair.from_document(document.table("keys")),
            units=KeyPair.from_document(document.table("units")) if role == "manager" else None,
            expires=document.time("expires"),
        )


def load_credential(path: str | Path) -> Credential:
    """Return the credential in a file or pipe. Raises ConfigError, also when other users can read it."""
    path = Path(path)
    if path.is_dir():
        text = "is a directory: give the file of one credential, which `scaler keys add` writes"
        raise ConfigError(f"{path} {text}")
    return Credential.from_text(read_private(path), str(path))

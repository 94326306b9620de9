"""CURVE keys for ZeroMQ: a server's key pair, the public keys that the server admits, and a peer's key pair."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from scaler.net.connection import LOCAL, Identity
from scaler.net.transport import Report
from scaler.protocol.messages import Role
from scaler.security.keys import Entry, KeyPair

MAX_REFUSALS = 100
TRY_AGAIN, REFUSED, REVOKED = "300", "400", "500"
"""ZAP codes: no decision yet, so the peer gets no answer; unknown key; revoked or expired key."""
_ADMIN_ROLES = frozenset({Role.CLIENT, Role.MONITOR, Role.ADMIN})


class PeerKeys(NamedTuple):
    """The keys for a connection. server: the server's public key, to verify. name: name of this side's key. ending: why
    the key is refused. Without a name, the keys are for a single attempt, which shows whether the server requires
    keys."""

    server: str
    own: KeyPair
    name: str
    ending: str = "was revoked"


class Allowed(Protocol):
    """The public keys that a server admits; see `security.allow_list.AllowList`."""

    @property
    def is_unreadable(self) -> bool: ...

    def entries(self) -> Mapping[str, Entry]: ...

    def refresh(self) -> None: ...


class ServerKeys:
    """A server's key pair, and the keys that the server admits. Thread-safe."""

    def __init__(self, pair: KeyPair, allowed: Allowed) -> None:
        self.pair = pair
        self.refusals: deque[Report] = deque(maxlen=MAX_REFUSALS)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._admitted: dict[str, Identity] = {}

    def decide(self, public_key: str, origin: str) -> str:
        """Return the ZAP code for a peer with this key (200: admitted)."""
        with self._lock:
            entry = self._allowed.entries().get(public_key)
            if entry is None:  # the key may have been added in the meantime
                self._allowed.refresh()
                entry = self._allowed.entries().get(public_key)
            if entry is not None and not entry.problem:
                self._admitted[public_key] = identity_of(entry)
                return "200"
        if entry is None and self._allowed.is_unreadable:
            return TRY_AGAIN
        if entry is None:
            self.refusals.append(Report(f"a peer at {origin}: unknown key", True, "", origin))
            return REFUSED
        text = f"{entry.role} {entry.name} at {origin}: its key {entry.problem}"
        self.refusals.append(Report(text, True, entry.name, origin))
        return REVOKED

    def entries(self) -> Mapping[str, Entry]:
        return self._allowed.entries()

    def identity(self, public_key: str) -> Identity | None:
        with self._lock:
            entry = self._allowed.entries().get(public_key)
            return None if entry is None or entry.problem else self._admitted.get(public_key)

    def revoked(self) -> dict[Identity, str]:
        """Reread the allow-list. Returns the identities that are no longer admitted, and why."""
        with self._lock:
            self._allowed.refresh()
            found = {}
            for public_key, identity in list(self._admitted.items()):
                entry = self._allowed.entries().get(public_key)
                if entry is None or entry.problem or identity_of(entry) != identity:
                    del self._admitted[public_key]
                    problem = "was removed" if entry is None else entry.problem or "now has another role"
                    found[identity] = f"the key {identity.key} {problem}"
            return found


def identity_of(entry: Entry) -> Identity:
    if entry.name == LOCAL.key:
        return LOCAL
    if entry.role == Role.ADMIN:
        return Identity(entry.name, _ADMIN_ROLES, is_admin=True)
    roles = {Role.WORKER, Role.STORE} if entry.role == Role.WORKER else {Role(entry.role)}
    return Identity(entry.name, frozenset(roles))

"""CURVE keys on ZeroMQ: those of a server and of the peers that it admits, and those with which a peer connects."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from scaler.net.identity import LOCAL, Identity
from scaler.net.transport import PeerRefused
from scaler.protocol.messages import Role
from scaler.security.keys import Entry, KeyPair, new_key_pair

MAX_REFUSALS = 100
"""Refused keys that wait to be reported; beyond it, the oldest are dropped."""
TRY_AGAIN, REFUSED, REVOKED = "300", "400", "500"
"""Codes of ZAP: nothing can be said of the key for now, and its peer gets no answer; the key is not known; it was
revoked or has expired.
"""
_ADMIN_ROLES = frozenset({Role.CLIENT, Role.MONITOR, Role.ADMIN})


class PeerKeys(NamedTuple):
    """The keys of a connection. server: public key to be proved. name: of the own key. ending: why it is refused.

    Without a name, the pair is only for one attempt, whose failure shows whether the server asks for keys.
    """

    server: str
    own: KeyPair
    name: str
    ending: str = "was revoked"


def without_credential() -> PeerKeys:
    """Return the keys of a peer that has none."""
    return PeerKeys(new_key_pair().public, new_key_pair(), "")


class Allowed(Protocol):
    """The public keys that a server admits; see `security.allow_list.AllowList`."""

    @property
    def is_unreadable(self) -> bool: ...

    def entries(self) -> Mapping[str, Entry]: ...

    def refresh(self) -> None: ...


class ServerKeys:
    """A server's key pair, and the keys of the peers that it admits. Safe to share between threads."""

    def __init__(self, pair: KeyPair, allowed: Allowed) -> None:
        self.pair = pair
        self.refusals: deque[PeerRefused] = deque(maxlen=MAX_REFUSALS)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._admitted: dict[str, Identity] = {}
        """Identities that this server has admitted, by public key."""

    def decide(self, public_key: str, origin: str) -> str:
        """Return the code of ZAP for a peer with this key: 200 admits it."""
        with self._lock:
            entry = self._allowed.entries().get(public_key)
            if entry is None:  # it may have been added since
                self._allowed.refresh()
                entry = self._allowed.entries().get(public_key)
            if entry is not None and not entry.problem:
                self._admitted[public_key] = identity_of(entry)
                return "200"
        if entry is None and self._allowed.is_unreadable:
            return TRY_AGAIN
        if entry is None:
            self.refusals.append(PeerRefused(f"a peer at {origin}: its key is not known here", "", origin))
            return REFUSED
        text = f"{entry.role} {entry.name} at {origin}: its key {entry.problem}"
        self.refusals.append(PeerRefused(text, entry.name, origin))
        return REVOKED

    def entries(self) -> Mapping[str, Entry]:
        return self._allowed.entries()

    def identity(self, public_key: str) -> Identity | None:
        """Return the identity of a public key, None when the key is not admitted."""
        with self._lock:
            entry = self._allowed.entries().get(public_key)
            return None if entry is None or entry.problem else self._admitted.get(public_key)

    def revoked(self) -> dict[Identity, str]:
        """Read the allow-list again; return the admitted identities that it no longer admits, and why."""
        with self._lock:
            self._allowed.refresh()
            found = {}
            for public_key, identity in list(self._admitted.items()):
                entry = self._allowed.entries().get(public_key)
                if entry is None or entry.problem or identity_of(entry) != identity:
                    del self._admitted[public_key]
                    problem = "was removed" if entry is None else entry.problem or "has another role now"
                    found[identity] = f"the key {identity.key} {problem}"
            return found


def identity_of(entry: Entry) -> Identity:
    """Return what an entry of the allow-list lets its key do."""
    if entry.name == LOCAL.key:
        return LOCAL
    if entry.role == Role.ADMIN:
        return Identity(entry.name, _ADMIN_ROLES, is_admin=True)
    roles = {Role.WORKER, Role.STORE} if entry.role == Role.WORKER else {Role(entry.role)}
    return Identity(entry.name, frozenset(roles))

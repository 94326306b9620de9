"""The identity that a connection has proved. It decides what a peer may do; no message of the peer can change it."""

from __future__ import annotations

from typing import NamedTuple

from scaler.protocol.messages import Role

ALL_ROLES = frozenset(Role)


class Identity(NamedTuple):
    """A key's name, its roles, and whether it sees what other keys own. Peers with one key are one user."""

    key: str
    roles: frozenset[Role] = ALL_ROLES
    is_admin: bool = False

    @property
    def has_key(self) -> bool:
        """Return whether a key authenticated this peer. Peers without one are one user: the server's own, or anyone."""
        return self not in {LOCAL, ANYONE}

    def may_see(self, owner_key: str) -> bool:
        """Return whether this peer may know of what the peers with this key own."""
        return self.key == owner_key or self.is_admin


LOCAL = Identity("local")
"""A process of the server's own user on its host: the kernel says so."""
ANYONE = Identity("anyone", ALL_ROLES - {Role.ADMIN})
"""Every peer of a server that runs with insecure_no_auth."""
NOBODY = Identity("nobody", frozenset())
"""A peer of which nothing has come, or whose key has been revoked since."""

"""The authenticated identity of a connection, which determines its permissions. Messages cannot change it."""

from __future__ import annotations

from typing import NamedTuple

from scaler.protocol.messages import Role

ALL_ROLES = frozenset(Role)


class Identity(NamedTuple):
    """A key's name, its roles, and whether it sees objects of other keys. Peers with one key are one user."""

    key: str
    roles: frozenset[Role] = ALL_ROLES
    is_admin: bool = False

    @property
    def has_key(self) -> bool:
        """Return whether a key authenticated this peer. Peers without a key are one user: LOCAL or ANYONE."""
        return self not in {LOCAL, ANYONE}

    def may_see(self, owner_key: str) -> bool:
        return self.key == owner_key or self.is_admin


LOCAL = Identity("local")
"""A process of the server's own user on its host, as verified by the kernel."""
ANYONE = Identity("anyone", ALL_ROLES - {Role.ADMIN})
NOBODY = Identity("nobody", frozenset())

"""A peer's authentication to servers. Imports credential modules on first use, because local peers need none."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.protocol.messages import Role, Server

if TYPE_CHECKING:
    from scaler.net.keys import PeerKeys
    from scaler.security.credential import Credential


class Access(NamedTuple):
    """A credential, a store's keys, or no authentication. Default: the keys that a run by the same user published.
    uses_local: connect locally if possible; the server then identifies the peer by its user, not by a credential.
    store_keys: keys that authenticate a store to another store, whose public key the scheduler distributes.
    """

    credential: Credential | None = None
    is_insecure: bool = False
    uses_local: bool = True
    compression: str = "auto"
    store_keys: PeerKeys | None = None

    @classmethod
    def of(
        cls, credentials: str | None, insecure_no_auth: bool, role: Role, name: str, compression: str = "auto"
    ) -> Access:
        """Read the credential at this path, or this component's credential from a keys directory. Raises
        ConfigError."""
        if credentials is None:
            return cls(None, insecure_no_auth, compression=compression)
        from scaler.security.credential import load_credential  # noqa: PLC0415 (see the module)

        if local_path(credentials).is_dir():
            from scaler.security.directory import KeysDirectory  # noqa: PLC0415 (of servers, which run on Linux)
            from scaler.security.documents import MAX_NAME_CHARACTERS  # noqa: PLC0415

            # Key names are shorter than component names, and some are reserved.
            key = re.sub(r"[^A-Za-z0-9_-]", "-", f"{role}-{name}")[:MAX_NAME_CHARACTERS]
            return cls(KeysDirectory.open(credentials).credential(key, role.value), compression=compression)
        return cls(load_credential(credentials), compression=compression)

    def keys(self, server: Server, address: str) -> PeerKeys | None:
        """Return the keys for a connection to this server. None disables encryption."""
        if self.is_insecure or self.store_keys is not None:
            return self.store_keys
        from scaler.net.keys import PeerKeys  # noqa: PLC0415 (see the module)
        from scaler.security.keys import new_key_pair  # noqa: PLC0415
        from scaler.security.run import find  # noqa: PLC0415

        if (own := self.credential) is not None:
            proven = own.scheduler_key if server is Server.SCHEDULER else own.object_storage_key
            return PeerKeys(proven, own.keys, own.name, own.ending(datetime.now(UTC)))
        try:
            found = find(address)
        except UsageError:
            found = None
        if found is None:
            return PeerKeys(new_key_pair().public, new_key_pair(), "")
        return PeerKeys(found.server, found.own, "of this run")


LOCAL_ACCESS = Access()

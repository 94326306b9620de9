"""The keys with which a peer connects to a server over ZeroMQ."""

from __future__ import annotations

from typing import NamedTuple

from scaler.security.keys import KeyPair, new_key_pair


class PeerKeys(NamedTuple):
    """What a peer connects with. server: the public key that the server must prove. name: of the peer's own key.
    ending: why a server that knows the key refuses it.

    Without a name, the pair is thrown away afterwards, and the connection can only fail: the way it fails tells whether
    the server asks for keys.
    """

    server: str
    own: KeyPair
    name: str
    ending: str = "was revoked"


def without_credential() -> PeerKeys:
    """Return the keys of a peer that has none."""
    return PeerKeys(new_key_pair().public, new_key_pair(), "")

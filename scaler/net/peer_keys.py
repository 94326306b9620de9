"""The keys with which a peer connects to a server over ZeroMQ."""

from __future__ import annotations

from typing import NamedTuple

from scaler.security.keys import KeyPair, new_key_pair


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

"""CURVE key pairs, and the meaning of public keys. Imports nothing slow."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple


class KeyPair(NamedTuple):
    """The key pair of one peer or server, in z85. `repr` hides the secret key."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class Share(NamedTuple):
    """The share of a cluster for a key or group. weight: share relative to other keys. max_slots: most slots at once;
    0: no limit. group: name, or empty."""

    weight: float = 1.0
    max_slots: int = 0
    group: str = ""


NO_SHARE = Share()


class Entry(NamedTuple):
    """The entry for a public key or, with the role `group`, for a group. problem: why the key is not admitted."""

    name: str
    role: str
    problem: str = ""
    share: Share = NO_SHARE


def new_key_pair() -> KeyPair:
    import zmq  # noqa: PLC0415 (readers of credentials do not need it)

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def derived_pair(pair: KeyPair, purpose: str) -> KeyPair:
    """Derive a key pair irreversibly from another pair's secret."""
    import zmq  # noqa: PLC0415 (see above)
    from zmq.utils import z85  # noqa: PLC0415

    digest = blake2b(z85.decode(pair.secret), digest_size=32, person=purpose.encode()).digest()
    secret = z85.encode(digest)
    return KeyPair(zmq.curve_public(secret).decode(), secret.decode())

"""CURVE key pairs, and the meaning of public keys. Imports nothing slow."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple


class KeyPair(NamedTuple):
    """The keys of one peer or server in z85. `repr` hides the secret key."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class Entry(NamedTuple):
    """The meaning of a public key. problem: why the key is not admitted, or empty."""

    name: str
    role: str
    problem: str = ""


def new_key_pair() -> KeyPair:
    import zmq  # noqa: PLC0415 (readers of credentials do not need it)

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def derived_pair(pair: KeyPair, purpose: str) -> KeyPair:
    """Derive a pair from another pair's secret, irreversibly."""
    import zmq  # noqa: PLC0415 (see above)
    from zmq.utils import z85  # noqa: PLC0415

    digest = blake2b(z85.decode(pair.secret), digest_size=32, person=purpose.encode()).digest()
    secret = z85.encode(digest)
    return KeyPair(zmq.curve_public(secret).decode(), secret.decode())

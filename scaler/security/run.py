"""The keys for one run of a server without configured keys, in a private file that is locked during the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from scaler.config.addresses import dialled
from scaler.registry import OwnFile, texts_of_running
from scaler.security.keys import Entry, KeyPair, new_key_pair

LOCAL = "local"  # name of a run's single key, shared by all processes of the user
_SUFFIX = ".keys"


class FoundKeys(NamedTuple):
    """The published keys of a run: the server's public key, and a key pair for the user's other processes."""

    server: str
    own: KeyPair


class RunKeys:
    is_unreadable = False

    def __init__(self) -> None:
        self.pair = new_key_pair()
        self._own = new_key_pair()
        self._file: OwnFile | None = None

    def publish(self, addresses: Iterable[str]) -> None:
        file = publish(addresses, FoundKeys(self.pair.public, self._own))
        self.close()
        self._file = file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def entries(self) -> dict[str, Entry]:
        return {self._own.public: Entry(LOCAL, LOCAL)}

    def refresh(self) -> None:
        if self._file is not None:
            self._file.refresh()


def publish(addresses: Iterable[str], keys: FoundKeys) -> OwnFile:
    """Publish a server's keys to this user's processes until the file is closed. Raises UsageError if that fails."""
    document = {
        "addresses": sorted({dialled(address) for address in addresses}),
        "server": keys.server,
        "public": keys.own.public,
        "secret": keys.own.secret,
    }
    return OwnFile(f"{os.getpid()}-{os.urandom(8).hex()}", _SUFFIX, json.dumps(document).encode())


def find(address: str) -> FoundKeys | None:
    """Return the keys of this user's server at an address, or None. Raises UsageError without a private directory."""
    wanted = dialled(address)
    for document in map(json.loads, texts_of_running(_SUFFIX)):
        if wanted in document.get("addresses", ()):
            return FoundKeys(document["server"], KeyPair(document["public"], document["secret"]))
    return None

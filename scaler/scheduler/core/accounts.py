"""Accounts of each key's use of the scheduler, with limits. Pure.

An account belongs to a key, not to a session, so a peer cannot evade a limit by reconnecting or by opening many
sessions. All processes of the scheduler's own user share one account. Without authentication, all peers share one
account, and the limits protect the scheduler, but not peers from each other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from scaler.grammar import counted
from scaler.net.connection import Identity
from scaler.protocol.messages import Spec

HOUR_SECONDS = 3600.0
MAX_PEERS = 60_000
MAX_PEERS_OF_KEY = 20_000
MAX_SESSIONS_PER_HOUR = 100_000
"""Sessions that one key may open per hour. Reconnecting within the lease does not count."""
MAX_OWNERS = 65_536
"""Maximum peer ids whose keys are remembered: connected peers, then the most recent past peers."""
ENTRY_BYTES = 256
"""Bytes charged per object, function, or group of tasks, in addition to its own bytes."""
REFERENCE_BYTES = 64
"""Bytes charged for each reference in a task."""
DELAY_BYTES = 24


class Rules(Protocol):
    """Settings that the core reads; see docs/settings.md."""

    @property
    def state_directory(self) -> str: ...
    @property
    def protected(self) -> bool: ...
    @property
    def object_retention_seconds(self) -> float: ...
    @property
    def client_timeout_seconds(self) -> float: ...
    @property
    def worker_timeout_seconds(self) -> float: ...
    @property
    def max_number_of_tasks_waiting(self) -> int: ...
    @property
    def max_tasks_per_client(self) -> int: ...
    @property
    def max_bytes_per_client(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


@dataclass(slots=True, eq=False)
class KeyAccount:
    """Current use by one key. opened: sessions since `hour_began_at`."""

    key: str
    sessions: int = 0
    tasks: int = 0
    size_bytes: int = 0
    hour_began_at: float = 0.0
    opened: int = 0


def spec_bytes(spec: Spec) -> int:
    size = ENTRY_BYTES + len(spec.name) + len(spec.context) + len(spec.retry_on) + DELAY_BYTES * len(spec.retry_delays)
    for tag in spec.tags:
        size += ENTRY_BYTES + len(tag)
    for name, _ in spec.needs:
        size += ENTRY_BYTES + len(name)
    return size


class KeyAccounts:
    """All accounts. `owners`: key by peer id, including past peers."""

    def __init__(self, config: Rules) -> None:
        self.owners: OrderedDict[bytes, str] = OrderedDict()
        self._config = config
        self._max_bytes = config.max_bytes
        self.max_tasks = config.max_tasks_per_client
        self._sessions: dict[bytes, KeyAccount] = {}
        self._accounts: dict[str, KeyAccount] = {}

    def refusal(self, peer: bytes, identity: Identity, now: float) -> str:
        if self.owners.get(peer, identity.key) != identity.key:
            return f"the peer id {peer.hex()} belongs to another client"
        account = self._accounts.get(identity.key)
        if len(self._sessions) >= MAX_PEERS:
            return f"the scheduler has {MAX_PEERS} peers, its limit"
        if account is None:
            return ""
        if account.sessions >= MAX_PEERS_OF_KEY:
            return f"key {identity.key} has {MAX_PEERS_OF_KEY} peers, the limit per key"
        if account.opened >= MAX_SESSIONS_PER_HOUR and now - account.hour_began_at < HOUR_SECONDS:
            minutes = (HOUR_SECONDS - (now - account.hour_began_at)) / 60
            text = f"key {identity.key} has opened {MAX_SESSIONS_PER_HOUR} sessions within an hour"
            return f"{text}: wait {counted(round(minutes), 'minute')}"
        return ""

    def opened(self, peer: bytes, identity: Identity, now: float) -> KeyAccount:
        account = self._sessions[peer] = self.joined(peer, identity.key)
        account.sessions += 1
        if now - account.hour_began_at >= HOUR_SECONDS or not account.opened:
            account.hour_began_at, account.opened = now, 0
        account.opened += 1
        return account

    def joined(self, peer: bytes, key: str) -> KeyAccount:
        self.owners[peer] = key
        self.owners.move_to_end(peer)
        if len(self.owners) > MAX_OWNERS:
            self.owners.popitem(last=False)
        return self._accounts.setdefault(key, KeyAccount(key))

    def closed(self, peer: bytes) -> None:
        account = self._sessions.pop(peer, None)
        if account is not None:
            account.sessions -= 1

    def expire(self, now: float) -> None:
        for key, account in list(self._accounts.items()):
            is_used = account.sessions or account.tasks or account.size_bytes
            if not is_used and now - account.hour_began_at >= HOUR_SECONDS:
                del self._accounts[key]

    def bytes_left(self, account: KeyAccount) -> int:
        left = self._max_bytes
        for each in self._accounts.values():
            left -= each.size_bytes
        own = self._config.max_bytes_per_client
        return min(left, own - account.size_bytes) if own >= 0 else left

    def bytes_limit(self, account: KeyAccount) -> str:
        own, left = self._config.max_bytes_per_client, self.bytes_left(account)
        is_own = own >= 0 and own - account.size_bytes == left
        limit = f"max_bytes_per_client is {own}" if is_own else f"the limit for all keys is {self._max_bytes}"
        return f"{limit}, and the scheduler has already reached it"

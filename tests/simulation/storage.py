"""The object storage in the simulated world: its core, connections to its peers, and an optional disk."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from functools import partial
from random import Random

from scaler.errors import UsageError
from scaler.net.connection import Broken, Closed, Opened, Received, Welcomed
from scaler.object_storage.commands import ForgetPersisted, ObjectNotPersisted, PersistObject, SendToPeer, StorageInput
from scaler.object_storage.core import StorageCore
from scaler.object_storage.durable import ObjectJournal
from scaler.object_storage.messages import StorageReply, StorageResult
from scaler.object_storage.requests import CallEnded, Requests, RequestsInput, SendRequest, StorageCall
from scaler.object_storage.requests import Outcome as CallOutcome
from scaler.object_storage.spilling import StorageLimits
from scaler.protocol.messages import ClientDetails, ForgetObjects, ForgetOwner, Role, Welcome, WorkerDetails
from scaler.testing.simulation.actors import ActorWorld
from scaler.testing.simulation.stepping import hello
from scaler.testing.storage_invariants import check_storage
from tests.simulation.machine import Machine, SimulatedProcess

SCHEDULER = b"schedulr"
START_AGAIN_SECONDS = 0.5
"""Delay before a server with a full disk is restarted."""


def large_value(identifier: bytes) -> bytes:
    """Return the unique content of a stored result. Some are large enough for a file."""
    return b"large " + identifier * (1 + 7 * (identifier[-1] % 2))


class StoragePort:
    """Requests from one peer, with the callbacks for their results."""

    def __init__(
        self, storage: SimulatedStorage, peer: bytes, role: Role, connected: Callable[[], None] = lambda: None
    ) -> None:
        """connected: called after the storage has opened a session."""
        self.peer = peer
        self._connected = connected
        self._storage = storage
        self._requests = Requests("simulated", 1e9, storage.now)
        self._waiting: dict[StorageCall, Callable[[CallOutcome], None]] = {}
        details = WorkerDetails("simulated", peer.hex(), 1, 1, {}) if role is Role.WORKER else ClientDetails("")
        self._hello = hello(role, details)
        storage.ports[peer] = self
        if not storage.is_down:
            self._connect()

    def _connect(self) -> None:
        self._storage.arrive(Opened(self.peer, self._hello))
        self.step(Welcomed(Welcome(False, 1 + self._storage.restarts, 1e9, 2.0)))
        self._connected()

    def lose_connection(self) -> None:
        self.step(Broken(SCHEDULER))

    def come_back(self) -> None:
        self._storage.later_in_order((self.peer, True), self._reconnect)

    def _reconnect(self) -> None:
        if self._storage.ports.get(self.peer) is self:
            self._connect()

    def call(self, call: StorageCall, ended: Callable[[CallOutcome], None]) -> None:
        self._waiting[call] = ended
        self.step(call)

    def forget(self, message: ForgetObjects | ForgetOwner) -> None:
        """Send the scheduler's message, which is lost if the storage exits."""
        arrived = Received(self.peer, message)
        self._storage.later_in_order((self.peer, True), partial(self._storage.arrive, arrived))

    def step(self, item: RequestsInput) -> None:
        for command in self._requests.step([item], self._storage.now):
            match command:
                case SendRequest(message, attachments):
                    arrived = Received(self.peer, message, [memoryview(bytes(frame)) for frame in attachments])
                    self._storage.later_in_order((self.peer, True), partial(self._storage.arrive, arrived))
                case CallEnded(call, outcome):
                    self._waiting.pop(call)(outcome)

    def close(self) -> None:
        """Close the peer: messages that it has sent still arrive, but it receives no answers."""
        self._waiting.clear()
        self._storage.ports.pop(self.peer, None)
        self._storage.later_in_order((self.peer, True), lambda: self._storage.arrive(Closed(self.peer, "")))


class SimulatedStorage:
    """The storage's core with connections that preserve order. machine: provides its disk; None: no disk."""

    def __init__(self, world: ActorWorld, random: Random, delay_seconds: float, machine: Machine | None) -> None:
        self.ports: dict[bytes, StoragePort] = {}
        self.restarts = 0
        self.is_down = False
        self._world = world
        self._random = random
        self._delay_seconds = delay_seconds
        self._machine = machine
        self._clear_at: dict[tuple[bytes, bool], float] = {}
        self._process: SimulatedProcess | None = None
        self._journal: ObjectJournal | None = None
        self._start()

    @property
    def is_durable(self) -> bool:
        return self._machine is not None

    @property
    def may_lose(self) -> bool:
        """Return whether objects may be lost."""
        return self.restarts > 0 and not self.is_durable

    @property
    def now(self) -> float:
        return self._world.now

    @property
    def used_bytes(self) -> int:
        """Number of bytes in all objects, including those on disk."""
        return self._core.objects.used_bytes + self._core.objects.spilling.used_bytes

    # -- process

    def _start(self) -> None:
        self._core = StorageCore(
            StorageLimits(1 << 40),
            outbox_bytes=lambda _peer: 0,
            lease_seconds=1e9,
            tick_seconds=1e9,
            is_durable=self._machine is not None,
        )
        if self._machine is not None:
            self._process = self._machine.start()
            try:
                self._process.run(partial(self._recover, self._machine))
            except UsageError:
                if self._machine.failure != errno.EIO:
                    raise
                self._process.end()
                self._world.later(self.now + START_AGAIN_SECONDS, self._start)
                return
        self.is_down = False
        for port in list(self.ports.values()):
            port.come_back()

    def _recover(self, machine: Machine) -> None:
        self._journal = self._open(machine)
        for found, body in self._journal.recover():
            self._core.restore(found.id, body, found.key)

    def _open(self, machine: Machine) -> ObjectJournal:
        path = machine.path / "objects"
        return ObjectJournal(path, self._stored, self._lost, self._disk_changed)

    def on_disk(self) -> list[bytes]:
        """Return the objects that the next process would find. Requires a disk."""
        assert self._machine is not None, "the storage has no disk"
        return [found.id for found, _ in self._open(self._machine).recover()]

    def restart(self) -> None:
        """Exit, which loses memory and messages in flight, and restart."""
        if self.is_down:
            return
        self.restarts += 1
        self.is_down = True
        if self._process is not None:
            self._process.end()
        for port in list(self.ports.values()):
            port.lose_connection()
        self._start()

    # -- messages

    def later_in_order(self, wire: tuple[bytes, bool], action: Callable[[], None]) -> None:
        at = max(self.now + self._random.expovariate(1 / self._delay_seconds), self._clear_at.get(wire, 0.0))
        self._clear_at[wire] = at
        restarts = self.restarts
        self._world.later(at, lambda: action() if self.restarts == restarts and not self.is_down else None)

    def arrive(self, item: StorageInput) -> None:
        if self._process is None:
            self._step(item)
        else:
            self._process.run(partial(self._step, item))

    def _step(self, item: StorageInput) -> None:
        commands = self._core.step([item], self.now)
        check_storage(self._core)
        for command in commands:
            match command:
                case SendToPeer(peer, message, attachments):
                    self._send(peer, Received(SCHEDULER, message, list(attachments)))
                case PersistObject() if self._journal is not None:
                    self._journal.put(command)
                case ForgetPersisted() if self._journal is not None:
                    self._journal.forget(command)
        if self._core.wake_at < math.inf:
            self._world.later(self._core.wake_at, lambda: None)

    def _stored(self, peer: bytes, request: int) -> None:
        self._send(peer, Received(SCHEDULER, StorageReply(request, StorageResult.OK)))

    def _disk_changed(self, failure: str) -> None:
        self._core.objects.disk_failure = failure

    def _lost(self, identifier: bytes, text: str, requests: list[tuple[bytes, int]]) -> None:
        self.arrive(ObjectNotPersisted(identifier, text, requests))

    def _send(self, peer: bytes, received: Received) -> None:
        self.later_in_order((peer, False), partial(self._answer, peer, received))

    def _answer(self, peer: bytes, received: Received) -> None:
        port = self.ports.get(peer)
        if port is not None:
            port.step(received)

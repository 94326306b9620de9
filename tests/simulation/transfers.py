"""The real scheduler core and stores on hosts with limited links: sources and speed of each transfer.

    python -m tests.simulation.transfers 1000

Prints times, copies on the busiest link, and the scheduler's CPU time, for a broadcast to this many hosts and for a
shuffle between 64 of them.
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scaler.config.servers import SchedulerConfig
from scaler.extensions.data_plane.core import DataPlane
from scaler.extensions.durability.core import DurabilityPart
from scaler.ids import IdFactory
from scaler.net.connection import Closed, Opened, Received
from scaler.object_storage.messages import (
    ChunksFetched,
    CopyObjects,
    FetchChunks,
    FetchesFailed,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsWanted,
    PushObjects,
)
from scaler.protocol.chunks import chunk_bytes, chunk_count
from scaler.protocol.messages import PROTOCOL_VERSION, ClientDetails, Hello, Message, Role, StoreDetails
from scaler.scheduler.core.commands import Input, Send, SendToStorage, StorageConnected, StorageSaid
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.rooms import make_scaling
from scaler.testing.invariants import check

GIGABIT = 125e6
FOREVER = 1e6
LATENCY_SECONDS = 0.0002
CHECK_EVERY = 5
"""Interval in steps at which all invariants of the core are checked."""
STEP_SECONDS = 0.0005
MB = 1_000_000


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes in flight between two hosts. A host's flows share its link."""

    source: Host
    target: Host
    left: float
    done: Callable[[], None]
    rate: float = 0.0
    updated_at: float = 0.0
    version: int = 0


@dataclass(slots=True, eq=False)
class Host:
    """A store and its link, which transfers bytes_per_second in each direction."""

    number: int
    peer: bytes
    bytes_per_second: float = GIGABIT
    has: dict[bytes, int] = field(default_factory=dict)
    """Chunks that the store has, as a mask per object."""
    sends: dict[Flow, None] = field(default_factory=dict)
    gets: dict[Flow, None] = field(default_factory=dict)
    sent_bytes: float = 0.0
    got_bytes: float = 0.0
    ended: dict[bytes, float] = field(default_factory=dict)
    """Time at which each wanted object arrived, or was found not to exist (`lost`)."""
    lost: set[bytes] = field(default_factory=set)
    unwanted: set[bytes] = field(default_factory=set)
    alive: bool = True


class LinkWorld:
    """Hosts 1, 2, ... and the object storage as host 0."""

    def __init__(self, hosts: int, *, checked: bool = True) -> None:
        self.now = 0.0
        config = SchedulerConfig(
            bind_address="tcp://127.0.0.1:0", worker_timeout_seconds=FOREVER, client_timeout_seconds=FOREVER
        )
        self.core = SchedulerCore(config, 0.0, make_scaling(), Rooms([DataPlane(), DurabilityPart()]))
        self.hosts: dict[int, Host] = {}
        self.sizes: dict[bytes, int] = {}
        self.unreachable: set[tuple[int, int]] = set()
        self.core_seconds = 0.0
        self.runs = 0
        self._checked = checked
        self._steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._inbox: list[Input] = []
        self._step_at = math.inf
        self._ids = IdFactory(b"client..")
        self._add(Host(0, b"storage."))
        hello = Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", "host", 1, ClientDetails("client"))
        self._arrive(Opened(b"client..", hello))
        for number in range(1, hosts + 1):
            self.join(number)
        self.run()

    def join(self, number: int) -> None:
        """Add the host with the next number."""
        host = Host(number, number.to_bytes(8, "big"))
        self._add(host)
        details = StoreDetails(f"tcp://h{number}:1", "", -1)
        hello = Hello(Role.STORE, False, PROTOCOL_VERSION, "", "", "", f"h{number}", 1, details)
        self._arrive(Opened(host.peer, hello))

    def _add(self, host: Host) -> None:
        self.hosts[host.number] = host

    # -- events

    def make(self, holders: Iterable[int], size_bytes: int) -> bytes:
        """Return the id of a new object held by these hosts."""
        identifier = self._ids.object()
        self.sizes[identifier] = size_bytes
        for number in holders:
            self.hosts[number].has[identifier] = (1 << chunk_count(size_bytes)) - 1
            self.say(number, ObjectsHeld([identifier], [size_bytes]))
        return identifier

    def want(self, number: int, identifiers: Sequence[bytes]) -> None:
        self.hosts[number].unwanted.difference_update(identifiers)
        for first in range(0, len(identifiers), 1000):
            self.say(number, ObjectsWanted(list(identifiers[first : first + 1000])))

    def is_whole(self, number: int, identifier: bytes) -> bool:
        """Return whether a living host has a complete object."""
        host = self.hosts[number]
        return host.alive and host.has.get(identifier) == (1 << chunk_count(self.sizes[identifier])) - 1

    def client_says(self, message: Message) -> None:
        self._arrive(Received(b"client..", message))

    def die(self, number: int) -> None:
        """Kill a host, which the scheduler notices. The object storage restarts at once without its objects."""
        host = self.hosts[number]
        host.alive = number == 0
        host.has.clear()
        for flow in [*host.sends, *host.gets]:
            self._cut(flow)
        self._arrive(StorageConnected() if host.alive else Closed(host.peer, "", is_orderly=False))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + seconds, self._sequence, action))

    def run(self, limit_seconds: float = math.inf) -> float:
        """Run until nothing is in flight, and return the elapsed seconds."""
        began_at = self.now
        while self._events and self._events[0][0] < began_at + limit_seconds:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self.now - began_at

    # -- scheduler

    def say(self, number: int, message: Message) -> None:
        if self.hosts[number].alive:
            told = StorageSaid(message) if number == 0 else Received(self.hosts[number].peer, message)
            self.later(LATENCY_SECONDS, partial(self._arrive, told))

    def _arrive(self, item: Input) -> None:
        self._inbox.append(item)
        self._wake(self.now + STEP_SECONDS)

    def _wake(self, at: float) -> None:
        if at < self._step_at:
            self._step_at = at
            self.later(at - self.now, partial(self._step, at))

    def _step(self, at: float) -> None:
        if self._step_at != at:
            return
        self._step_at = math.inf
        inputs, self._inbox = self._inbox, []
        began = time.process_time()
        commands = self.core.step(inputs, self.now)
        self.core_seconds += time.process_time() - began
        self._steps += 1
        if self._checked and self._steps % CHECK_EVERY == 0:
            check(self.core.state)
        for command in commands:
            if isinstance(command, SendToStorage):
                self.later(LATENCY_SECONDS, partial(self._hear, self.hosts[0], command.message))
            elif isinstance(command, Send) and command.peer != b"client..":
                host = self.hosts[int.from_bytes(command.peer, "big")]
                self.later(LATENCY_SECONDS, partial(self._hear, host, command.message))
        state = self.core.state
        if state.rooms.stores.timer.next_at < FOREVER:
            self._wake(max(state.rooms.stores.timer.next_at + state.stalled_seconds, self.now + STEP_SECONDS))

    # -- stores

    def _hear(self, host: Host, message: Message) -> None:
        if not host.alive:
            return
        if isinstance(message, FetchChunks):
            for row in zip(message.ids, message.firsts, message.counts, message.sources, strict=True):
                self.later(LATENCY_SECONDS, partial(self._fetch, host, *row))
        elif isinstance(message, ObjectsUnavailable):
            for identifier in message.ids:
                host.ended[identifier] = self.now
                host.lost.add(identifier)
        elif isinstance(message, CopyObjects):
            here = [identifier for identifier in message.ids if self.is_whole(host.number, identifier)]
            self.say(host.number, ObjectsHeld(here, [self.sizes[each] for each in here]))
            self.want(host.number, [identifier for identifier in message.ids if identifier not in here])
        elif isinstance(message, PushObjects):
            for identifier in message.ids:
                done = partial(self._pushed, identifier)
                self._flow(host, self.hosts[0], self.sizes[identifier], done)

    def _pushed(self, identifier: bytes) -> None:
        self.hosts[0].has[identifier] = (1 << chunk_count(self.sizes[identifier])) - 1
        self.hosts[0].ended[identifier] = self.now
        self.say(0, ObjectsHeld([identifier], [self.sizes[identifier]]))

    def _fetch(self, host: Host, identifier: bytes, first: int, count: int, number: int) -> None:
        source, size = self.hosts[number], self.sizes[identifier]
        chunks = ((1 << count) - 1) << first
        is_reachable = source.alive and (host.number, number) not in self.unreachable
        if not is_reachable or chunks & ~source.has.get(identifier, 0):
            self.say(host.number, FetchesFailed([identifier], [first], [number], [not is_reachable]))
            return
        if identifier in host.unwanted:
            return
        self.runs += 1
        begin = first * chunk_bytes(size)
        nbytes = min(begin + count * chunk_bytes(size), size) - begin
        self._flow(source, host, nbytes, partial(self._came, host, identifier, first, count))

    def _came(self, host: Host, identifier: bytes, first: int, count: int) -> None:
        size = self.sizes[identifier]
        host.has[identifier] = host.has.get(identifier, 0) | ((1 << count) - 1) << first
        if host.has[identifier] == (1 << chunk_count(size)) - 1:
            host.ended.setdefault(identifier, self.now)
        self.say(host.number, ChunksFetched([identifier], [first], [count], [size]))

    # -- links

    def _flow(self, source: Host, target: Host, nbytes: float, done: Callable[[], None]) -> None:
        source.sent_bytes += nbytes
        target.got_bytes += nbytes
        flow = Flow(source, target, nbytes, done, updated_at=self.now)
        source.sends[flow] = target.gets[flow] = None
        self._share(source, target)

    def _share(self, source: Host, target: Host) -> None:
        """Update the rates of all flows on two links."""
        for flow in {**source.sends, **target.gets}:
            rate = min(
                flow.source.bytes_per_second / len(flow.source.sends),
                flow.target.bytes_per_second / len(flow.target.gets),
            )
            if rate != flow.rate:
                flow.left -= flow.rate * (self.now - flow.updated_at)
                flow.rate, flow.updated_at = rate, self.now
                flow.version += 1
                self.later(max(0.0, flow.left / rate), partial(self._ends, flow, flow.version))

    def _ends(self, flow: Flow, version: int) -> None:
        if flow.version == version:
            self._cut(flow)
            flow.done()

    def _cut(self, flow: Flow) -> None:
        flow.version += 1
        del flow.source.sends[flow], flow.target.gets[flow]
        self._share(flow.source, flow.target)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run. copies: bytes sent on the busiest link, in objects or relative to the mean of all links."""

    seconds: float
    bound_seconds: float
    copies: float
    runs: int
    core_us_per_run: float

    @property
    def ratio(self) -> float:
        """Return the duration as a multiple of the lower bound."""
        return self.seconds / self.bound_seconds


def broadcast(hosts: int, size_bytes: int, source: int = 0, *, checked: bool = True) -> Outcome:
    """Send an object from one store to all hosts. The bound is the time for one copy over one link."""
    world = LinkWorld(hosts, checked=checked)
    identifier = world.make([source], size_bytes)
    world.run()
    before, began_at = world.core_seconds, world.now
    fetchers = [number for number in range(1, hosts + 1) if number != source]
    for number in fetchers:
        world.want(number, [identifier])
    world.run()
    for number in fetchers:
        assert identifier in world.hosts[number].ended, f"host {number} lacks the object"
    seconds = max(world.hosts[number].ended[identifier] for number in fetchers) - began_at
    busiest = max(host.sent_bytes for host in world.hosts.values()) / size_bytes
    us = (world.core_seconds - before) / world.runs * 1e6
    return Outcome(seconds, size_bytes / GIGABIT, busiest, world.runs, us)


def shuffle(hosts: int, parts: int, size_bytes: int, *, checked: bool = True) -> Outcome:
    """Run `parts` tasks that make `parts` objects each, and `parts` tasks that read one object from each maker.

    The bound is the time that each host's link needs for its readers' inputs from other hosts.
    """
    world = LinkWorld(hosts, checked=checked)
    made = [[world.make([1 + maker % hosts], size_bytes) for _ in range(parts)] for maker in range(parts)]
    world.run()
    before, began_at = world.core_seconds, world.now
    wanted = Counter[int]()
    for reader in range(parts):
        number = 1 + reader % hosts
        needed = [made[maker][reader] for maker in range(parts) if 1 + maker % hosts != number]
        wanted[number] += len(needed)
        world.want(number, needed)
    world.run()
    seconds = max(max(host.ended.values()) for host in world.hosts.values() if host.ended) - began_at
    assert sum(len(host.ended) for host in world.hosts.values()) == sum(wanted.values()), "some readers lack inputs"
    sent = [host.sent_bytes for host in world.hosts.values() if host.number]
    us = (world.core_seconds - before) / world.runs * 1e6
    bound = max(wanted.values()) * size_bytes / GIGABIT
    return Outcome(seconds, bound, max(sent) / (sum(sent) / len(sent)), world.runs, us)


def main(hosts: int) -> None:
    for name, outcome in (
        (f"broadcast of 100 MB to {hosts} hosts", broadcast(hosts, 100 * MB, checked=False)),
        (f"broadcast of 1 GB to {hosts} hosts", broadcast(hosts, 1000 * MB, checked=False)),
        (f"shuffle of 64 x 64 x 4 MB among {min(hosts, 64)} hosts", shuffle(min(hosts, 64), 64, 4 * MB, checked=False)),
    ):
        print(
            f"{name}: {outcome.seconds:.2f} s, {outcome.ratio:.2f} of the lower bound, busiest link "
            f"{outcome.copies:.2f}; {outcome.runs:,} runs, {outcome.core_us_per_run:.0f} us of CPU each",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Connections without sockets and without real time: what components and simulations are tested with.

Sessions, handshake and rules are those of the real thing; only the transport differs. Nothing moves by itself: `run`
delivers until all is quiet, `step` gives every end one turn, and `advance` lets time pass. One seed, one history.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from scaler.config.addresses import check_address
from scaler.errors import UsageError
from scaler.ids import PEER_ID_BYTES
from scaler.net.connection import Admit, Buffer, ConnectorEvent, ListenerEvent, OutboxLimits
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.envelopes import Counters, Taken
from scaler.net.listener_core import ListenerCore
from scaler.protocol.messages import Hello, Message, Welcome
from scaler.protocol.roles import Server
from scaler.protocol.session import SESSION_ID_BYTES, read_header

WIRE_MESSAGES = 100
"""Messages that a wire holds in each direction; beyond it, it is full, as a real connection can be."""
MAX_ROUNDS = 100_000
"""Turns of everybody after which `run` gives up on quiet."""


class Envelope(NamedTuple):
    """The frames of one message in flight."""

    header: bytes
    body: bytes
    attachments: Sequence[memoryview] = ()


class Wire:
    """One connection: two queues of messages in flight. Its ends read what is left before they see that it broke."""

    __slots__ = ("broken", "link", "lossy", "to_connector", "to_listener")

    def __init__(self, link: bytes) -> None:
        self.link = link
        self.to_listener: deque[Envelope] = deque()
        self.to_connector: deque[Envelope] = deque()
        self.broken = False
        self.lossy = False
        """True: it swallows everything, and nobody is told."""

    def put(self, queue: deque[Envelope], envelope: Envelope) -> Taken:
        if self.broken:
            return Taken.GONE
        if len(queue) >= WIRE_MESSAGES:
            return Taken.BLOCKED
        if not self.lossy:
            queue.append(envelope)
        return Taken.SENT


class _End(Protocol):
    def turn(self) -> bool: ...

    def next_at(self) -> float | None: ...


class MemoryNetwork:
    """All listeners and connectors of one test. `now` is their clock."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self._random = random.Random(seed)  # noqa: S311 (repeatable on purpose)
        self._listeners: dict[str, MemoryListener] = {}
        self._ends: list[_End] = []
        self._unreachable: set[str] = set()
        self._links = 0

    # -- ends ----------------------------------------------------------------------------------------------------

    def listener(
        self,
        address: str,
        *,
        server_kind: Server | str,
        admit: Admit,
        on_events: Callable[[list[ListenerEvent]], None],
        outbox: OutboxLimits | None = None,
    ) -> MemoryListener:
        """Return a listener at this address. Raises UsageError when there is one."""
        if check_address(address) in self._listeners:
            raise UsageError(f"cannot listen on {address}: it is in use")
        core = ListenerCore(Server(server_kind), admit, outbox or OutboxLimits())
        listener = MemoryListener(self, address, core, on_events)
        self._listeners[address] = listener
        self._ends.append(listener)
        return listener

    def connector(
        self,
        address: str,
        *,
        peer: bytes,
        hello: Hello,
        on_events: Callable[[list[ConnectorEvent]], None],
        outbox: OutboxLimits | None = None,
    ) -> MemoryConnector:
        """Return a connector to this address, where a listener may be or come."""
        session_id = peer + self._random.randbytes(SESSION_ID_BYTES - PEER_ID_BYTES)
        core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self.now, self._random.random)
        connector = MemoryConnector(self, check_address(address), core, on_events)
        self._ends.append(connector)
        return connector

    def wire(self, address: str) -> Wire | None:
        """Return a new connection to this address, or None when nobody answers there.

        Connectors use it; tests may, to say what no connector would.
        """
        listener = self._listeners.get(address)
        if listener is None or address in self._unreachable:
            return None
        self._links += 1
        wire = Wire(self._links.to_bytes(5, "big"))
        listener.wires[wire.link] = wire
        return wire

    # -- time and turns ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Give every end one turn, in an order that the seed decides; returns whether anything happened."""
        ends = list(self._ends)
        self._random.shuffle(ends)
        happened = [end.turn() for end in ends]
        return any(happened)

    def run(self) -> None:
        """Take turns until all is quiet, without time passing. Raises RuntimeError when that never comes."""
        for _ in range(MAX_ROUNDS):
            if not self.step():
                return
        raise RuntimeError(f"the network does not come to rest within MAX_ROUNDS = {MAX_ROUNDS}")

    def advance(self, seconds: float) -> None:
        """Let time pass, with every turn that comes due meanwhile."""
        until = self.now + seconds
        self.run()
        while True:
            times = [at for end in self._ends if (at := end.next_at()) is not None and at > self.now]
            self.now = min(times, default=until)
            if self.now >= until:
                break
            self.run()
        self.now = until
        self.run()

    # -- faults --------------------------------------------------------------------------------------------------

    def break_connection(self, connector: MemoryConnector, *, duplicate: bool = False) -> None:
        """Break a connection. Of what is in flight, a random first part still arrives, with duplicate twice."""
        wire = connector.current_wire
        if wire is None:
            return
        wire.broken = True
        for queue in (wire.to_listener, wire.to_connector):
            arrives = [queue.popleft() for _ in range(self._random.randint(0, len(queue)))]
            queue.clear()
            for envelope in arrives:
                queue.append(envelope)
                if duplicate and read_header(envelope.header).sequence:
                    queue.append(envelope)

    def lose(self, connector: MemoryConnector) -> None:
        """Lose one message in flight in each direction, and tell nobody: the next one leaves a gap."""
        wire = connector.current_wire
        if wire is None:
            return
        for queue in (wire.to_listener, wire.to_connector):
            if queue:
                del queue[self._random.randrange(len(queue))]

    def swallow(self, connector: MemoryConnector) -> None:
        """Let the present connection of a connector lose everything from now on, and tell nobody."""
        wire = connector.current_wire
        if wire is not None:
            wire.lossy = True
            wire.to_listener.clear()
            wire.to_connector.clear()

    def set_reachable(self, address: str, reachable: bool) -> None:
        """Let attempts to connect to this address fail from now on, or succeed again. Connections stay as they are."""
        (self._unreachable.discard if reachable else self._unreachable.add)(address)

    def closed(self, end: MemoryListener | MemoryConnector) -> None:
        """Note that an end was closed."""
        self._ends.remove(end)
        if isinstance(end, MemoryListener):
            del self._listeners[end.addresses[0]]


class MemoryListener:
    """See `connection.Listener`."""

    def __init__(
        self, network: MemoryNetwork, address: str, core: ListenerCore, on_events: Callable[[list[ListenerEvent]], None]
    ) -> None:
        self.wires: dict[bytes, Wire] = {}
        self._network = network
        self._address = address
        self._core = core
        self._on_events = on_events
        self._happened = False
        self._closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self._address,)

    @property
    def counters(self) -> Counters:
        return self._core.counters

    def malformed_of(self, peer: bytes) -> int:
        return self._core.malformed_of(peer)

    def outbox_bytes(self, peer: bytes) -> int:
        return self._core.outbox_bytes(peer)

    def send(self, peer: bytes, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        if not self._closed:
            self._core.send(peer, message, attachments, self._network.now)

    def forget(self, peer: bytes, reason: Message | None = None) -> None:
        if not self._closed:
            self._core.forget(peer, reason, self._network.now)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._core.flush(self._transmit, self._network.now)
        self._core.end_all(self._network.now)
        self._core.flush(self._transmit, self._network.now)
        for wire in self.wires.values():
            wire.broken = True
        self._network.closed(self)

    def next_at(self) -> float | None:
        return self._core.next_at()

    def turn(self) -> bool:
        """Take in what has arrived, let the component answer, send what it says."""
        now, core = self._network.now, self._core
        self._happened = False
        for link, wire in list(self.wires.items()):
            while wire.to_listener:
                self._happened = True
                core.receive(link, *wire.to_listener.popleft(), now)
            if wire.broken:
                self._happened = True
                del self.wires[link]
                core.broken(link)
        core.tick(now)
        events = core.take_events()
        if events:
            self._happened = True
            self._on_events(events)
        if not self._closed:
            core.flush(self._transmit, now)
            for link in core.take_cuts():
                if link in self.wires:
                    self._happened = True
                    self.wires[link].broken = True
        return self._happened

    def _transmit(self, link: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        wire = self.wires.get(link)
        if wire is None:
            return Taken.GONE
        taken = wire.put(wire.to_connector, _envelope(header, body, attachments))
        self._happened = self._happened or taken is Taken.SENT
        return taken


class MemoryConnector:
    """See `connection.Connector`."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: str,
        core: ConnectorCore,
        on_events: Callable[[list[ConnectorEvent]], None],
    ) -> None:
        self.current_wire: Wire | None = None
        self._network = network
        self._address = address
        self._core = core
        self._on_events = on_events
        self._happened = False
        self._closed = False

    @property
    def peer(self) -> bytes:
        return self._core.peer

    @property
    def connected(self) -> bool:
        return self._core.phase is Phase.CONNECTED

    @property
    def last_error(self) -> str:
        return self._core.last_error

    @property
    def welcome(self) -> Welcome | None:
        return self._core.welcome

    @property
    def counters(self) -> Counters:
        return self._core.counters

    def outbox_bytes(self) -> int:
        return self._core.outbox_bytes()

    def send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        if not self._closed:
            self._core.send(message, attachments)

    def close(self, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self._core.flush(self._transmit, self._network.now)
        self._core.say_goodbye(reason)
        self._core.flush(self._transmit, self._network.now)
        self._core.stop()
        self._drop_wire()
        self._network.closed(self)

    def next_at(self) -> float | None:
        return self._core.next_at()

    def turn(self) -> bool:
        """Connect if it is time, take in what has arrived, let the component answer, send what it says."""
        now, core = self._network.now, self._core
        self._happened = False
        if core.phase is Phase.WAITING and now >= core.dial_at:
            self._dial(now)
        if self.current_wire is not None:
            self._drain(self.current_wire, now)
        core.tick(now)
        if core.hang_up:
            self._hang_up(core.last_error, now)
        if core.phase is Phase.STOPPED:
            self._drop_wire()
        events = core.take_events()
        if events:
            self._happened = True
            self._on_events(events)
        if not self._closed and self.current_wire is not None:
            core.flush(self._transmit, now)
        return self._happened

    def _dial(self, now: float) -> None:
        self._happened = True
        self.current_wire = self._network.wire(self._address)
        self._core.dialled(now)
        if self.current_wire is None:
            self._hang_up("nothing listens there", now)

    def _drain(self, wire: Wire, now: float) -> None:
        while wire.to_connector:
            self._happened = True
            self._core.receive(*wire.to_connector.popleft(), now)
        if wire.broken:
            self._hang_up("the connection broke", now)

    def _hang_up(self, why: str, now: float) -> None:
        self._happened = True
        self._drop_wire()
        self._core.broken(why, now)

    def _drop_wire(self) -> None:
        if self.current_wire is not None:
            self.current_wire.broken = True
            self.current_wire = None

    def _transmit(self, _peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        wire = self.current_wire
        if wire is None:
            return Taken.GONE
        taken = wire.put(wire.to_listener, _envelope(header, body, attachments))
        self._happened = self._happened or taken is Taken.SENT
        return taken


def _envelope(header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Envelope:
    # As over a real wire, whoever sent the bytes may change them afterwards.
    return Envelope(header, body, tuple(memoryview(bytes(attachment)) for attachment in attachments))

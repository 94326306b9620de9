"""Connections without sockets or real time, for tests of components and simulations.

Only the transport differs from real connections. Messages move only on request: `run` delivers until all is quiet,
`step` gives every end one iteration, and `advance` lets time pass. A seed determines the history.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from scaler.config.addresses import check_address, check_server_addresses
from scaler.errors import UsageError
from scaler.ids import PEER_ID_BYTES
from scaler.net.connection import LOCAL, ConnectorEvent, ListenerEvent
from scaler.net.connector import ConnectorShell
from scaler.net.connector_core import ConnectorCore
from scaler.net.listener import Listener
from scaler.net.listener_core import Admission, ListenerCore
from scaler.net.transport import EnvelopeReceived, Input, LinkLost, LinkOpened, Unblocked
from scaler.net.wakeups import Wakeups
from scaler.protocol.messages import Hello, Server
from scaler.protocol.session import SESSION_ID_BYTES, Envelope, Header, OutboxLimits

WIRE_MESSAGES = 100
"""Messages in flight per direction until a wire is full, like a real connection."""
MAX_ROUNDS = 100_000
"""Steps after which `run` gives up waiting for quiet."""


class Wire:
    """One connection: two queues of messages in flight. Its ends read remaining messages before they see a break."""

    __slots__ = ("at_connector", "at_listener", "broken", "lossy", "network")

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.at_listener = WireEnd(self)
        self.at_connector = WireEnd(self)
        self.broken = False
        self.lossy = False
        """Whether everything is lost, unnoticed by both ends."""


class WireEnd:
    """See `transport.Transport`."""

    __slots__ = ("_is_cut", "_unsent", "inbox", "is_blocked", "wire")

    passes_descriptors = False
    received_bytes = 0
    identity = LOCAL

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.inbox: deque[Envelope] = deque()
        """Messages in flight to this end."""
        self._unsent: deque[Envelope] = deque()
        self.is_blocked = False
        self._is_cut = False

    def receive(self, inputs: list[Input]) -> None:
        """Append new events to `inputs`."""
        if self._is_cut:
            return
        if self.is_blocked and self._push():
            self.is_blocked = False
            inputs.append(Unblocked(self))
        while self.inbox:
            envelope = self.inbox.popleft()
            # As on a real wire, the sender may change attachments after sending.
            attachments = tuple(memoryview(bytes(attachment)) for attachment in envelope.attachments)
            inputs.append(EnvelopeReceived(self, envelope.header, envelope.body, attachments))
        if self.wire.broken:
            self._is_cut = True
            inputs.append(LinkLost(self))

    def transmit(self, envelopes: Sequence[Envelope]) -> None:
        self._unsent.extend(envelopes)
        self.is_blocked = not self._push()

    def start_session(self, *, compresses: bool) -> None: ...

    def cut(self) -> None:
        self._is_cut = True
        self.wire.broken = True

    def close(self, linger_seconds: float) -> None:
        del linger_seconds  # no time passes here
        self.cut()

    def _push(self) -> bool:
        wire = self.wire
        inbox = (wire.at_connector if self is wire.at_listener else wire.at_listener).inbox
        while self._unsent and len(inbox) < WIRE_MESSAGES:
            envelope = self._unsent.popleft()
            if not wire.broken and not wire.lossy:
                inbox.append(wire.network.alter(envelope))
        return not self._unsent


class MemoryNetwork:
    """All listeners and connectors of one test. `now` is their clock."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 1000.0  # not 0, like a real clock
        self._random = random.Random(seed)
        self._listeners: dict[str, MemoryListener] = {}
        self._ends: list[MemoryListener | MemoryConnector] = []
        self._listener_numbers = count()  # makes session ids unique, even after a restart
        self._unreachable: set[str] = set()
        self.alter: Callable[[Envelope], Envelope] = lambda envelope: envelope
        """Decides each envelope's fate in transit."""

    # -- ends ----------------------------------------------------------------------------------------------------

    def listener(
        self,
        address: str,
        *,
        server_kind: Server | str,
        admit: Admission,
        on_events: Callable[[list[ListenerEvent]], None],
        outbox: OutboxLimits | None = None,
    ) -> MemoryListener:
        """Return a listener at this address. Raises UsageError if the address is in use."""
        if check_address(address) in self._listeners:
            raise UsageError(f"cannot listen on {address}: it is in use")
        core = ListenerCore(
            Server(server_kind), outbox or OutboxLimits(), admit, first_session=next(self._listener_numbers) << 32
        )
        listener = self._listeners[address] = MemoryListener(self, address, core, on_events)
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
        """Return a connector to this address, on which a listener may exist now or later."""
        session_id = peer + self._random.randbytes(SESSION_ID_BYTES - PEER_ID_BYTES)
        core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self.now, check_server_addresses(address))
        connector = MemoryConnector(self, core, on_events)
        self._ends.append(connector)
        return connector

    def wire(self, address: str) -> Wire | None:
        """Return a new connection to this address, or None if nothing answers."""
        listener = self._listeners.get(address)
        if listener is None or address in self._unreachable:
            return None
        wire = Wire(self)
        listener.accept(wire.at_listener)
        return wire

    # -- time and iterations -------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Give every end one iteration, in an order from the seed. Returns whether anything happened."""
        ends = list(self._ends)
        self._random.shuffle(ends)
        happened = [end.iterate() for end in ends]
        return any(happened)

    def run(self) -> None:
        """Step until all is quiet, without advancing time. Raises RuntimeError after MAX_ROUNDS."""
        for _ in range(MAX_ROUNDS):
            if not self.step():
                return
        raise RuntimeError(f"the network does not come to rest within MAX_ROUNDS = {MAX_ROUNDS}")

    def advance(self, seconds: float) -> None:
        """Advance time, and run all iterations that become due."""
        until = self.now + seconds
        self.run()
        while True:
            self.now = min((at for end in self._ends if (at := end.wake_at()) > self.now), default=until)
            if self.now >= until:
                break
            self.run()
        self.now = until
        self.run()

    # -- faults --------------------------------------------------------------------------------------------------

    def break_connection(self, connector: MemoryConnector, *, duplicate: bool = False) -> None:
        """Break a connection. A random prefix of the messages in flight still arrives, twice if duplicate is set."""
        wire = connector.current_wire
        if wire is None:
            return
        wire.broken = True
        for queue in (wire.at_listener.inbox, wire.at_connector.inbox):
            arrives = [queue.popleft() for _ in range(self._random.randint(0, len(queue)))]
            queue.clear()
            for envelope in arrives:
                queue.append(envelope)
                if duplicate and Header.read(envelope.header).sequence:
                    queue.append(envelope)

    def lose(self, connector: MemoryConnector) -> None:
        """Silently lose one message in flight per direction, so the next message reveals a gap."""
        wire = connector.current_wire
        if wire is None:
            return
        for queue in (wire.at_listener.inbox, wire.at_connector.inbox):
            if queue:
                del queue[self._random.randrange(len(queue))]

    def swallow(self, connector: MemoryConnector) -> None:
        """From now on, silently lose everything on a connector's current connection."""
        wire = connector.current_wire
        if wire is not None:
            wire.lossy = True
            wire.at_listener.inbox.clear()
            wire.at_connector.inbox.clear()

    def set_reachable(self, address: str, reachable: bool) -> None:
        """Make connection attempts to this address fail or succeed again. Existing connections are unaffected."""
        (self._unreachable.discard if reachable else self._unreachable.add)(address)

    def closed(self, end: MemoryListener | MemoryConnector) -> None:
        """Record that an end was closed."""
        self._ends.remove(end)
        if isinstance(end, MemoryListener):
            del self._listeners[end.addresses[0]]


class NetworkTime(Wakeups):
    """The clock of a network, which itself triggers the iterations of all ends."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.now = lambda: network.now
        self.due_at = -math.inf

    def soon(self, seconds: float = 0.0) -> None: ...

    def close(self) -> None: ...


class MemoryListener(Listener):
    """A server's in-memory end."""

    def __init__(
        self, network: MemoryNetwork, address: str, core: ListenerCore, on_events: Callable[[list[ListenerEvent]], None]
    ) -> None:
        super().__init__(core, on_events, NetworkTime(network))
        self.addresses = (address,)
        self._network = network
        self._links: list[WireEnd] = []

    def accept(self, link: WireEnd) -> None:
        """Accept a connection."""
        self._links.append(link)
        self._inputs.append(LinkOpened(link, "memory"))

    def wake_at(self) -> float:
        return self._core.wake_at

    def iterate(self) -> bool:
        """Process received messages, and send the component's answers. Returns whether anything happened."""
        for link in self._links:
            link.receive(self._inputs)
        self._links = [link for link in self._links if not link.wire.broken]
        return self._iterate()

    def _close_transports(self) -> None:
        for link in self._links:
            link.close(0)
        self._network.closed(self)


class MemoryConnector(ConnectorShell):
    """See `connection.Connector`."""

    def __init__(
        self, network: MemoryNetwork, core: ConnectorCore, on_events: Callable[[list[ConnectorEvent]], None]
    ) -> None:
        super().__init__(core, on_events, NetworkTime(network))
        self._network = network

    @property
    def current_wire(self) -> Wire | None:
        """The current connection."""
        return self._transport.wire if isinstance(self._transport, WireEnd) else None

    def close(self, reason: str = "") -> None:
        if not self._closed:
            super().close(reason)
            self._network.closed(self)

    def wake_at(self) -> float:
        return self._core.wake_at

    def iterate(self) -> bool:
        """Connect if due, process received messages, let the component answer, and send its answers."""
        return self._wake()

    def _dial(self) -> WireEnd:
        wire = self._network.wire(self._dialled)
        if wire is None:
            raise OSError("nothing listens there")
        return wire.at_connector

"""The network without sockets: its promises to the tests that use it, and histories too rare for chance."""

from __future__ import annotations

from scaler.net.connection import Broken, ConnectorEvent, Identity, ListenerEvent, Opened, Received, Resumed
from scaler.net.versions import own_hello
from scaler.object_storage.messages import StorageReply, StorageResult
from scaler.protocol.messages import Hello, Refused, Role, Welcome
from tests.contracts.memory_network import MemoryConnector, MemoryListener, MemoryNetwork

ADDRESS = "ipc://nowhere"


def admit(_peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
    return Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)


class Pair:
    """A server with a scripted answer to each opening, and a client."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.greetings: list[int] = []
        self.at_server: list[ListenerEvent] = []
        self.at_client: list[ConnectorEvent] = []
        self.server = self.serve()
        self.client: MemoryConnector = network.connector(
            ADDRESS, peer=b"12345678", hello=own_hello(Role.CLIENT), on_events=self.at_client.extend
        )

    def serve(self) -> MemoryListener:
        return self.network.listener(ADDRESS, server_kind="object_storage", admit=admit, on_events=self.on_events)

    def on_events(self, events: list[ListenerEvent]) -> None:
        self.at_server.extend(events)
        for event in events:
            if isinstance(event, Opened):
                for number in self.greetings:
                    self.server.send(event.peer, StorageReply(number, StorageResult.OK))

    def heard(self) -> list[int]:
        return [e.message.request for e in self.at_client if isinstance(e, Received) and hasattr(e.message, "request")]


def test_session_whose_opening_the_peer_missed_is_opened_again() -> None:
    network = MemoryNetwork()
    pair = Pair(network)
    pair.greetings = [1, 2]
    network.run()
    assert pair.heard() == [1, 2]
    pair.server.close()
    pair.greetings = [11, 12, 13]
    pair.server = pair.serve()
    network.step()
    while pair.client.current_wire is None:
        network.now += 0.01
        network.step()
    # The Hello acknowledges two messages from the old server, which the new server cannot know. All its answers are
    # lost.
    pair.client.current_wire.lossy = True
    pair.client.current_wire.at_connector.inbox.clear()
    network.advance(10.0)
    assert [type(event) for event in pair.at_server if not isinstance(event, Received)] == [
        Opened,
        Opened,
        Broken,
        Opened,
    ]
    assert pair.heard() == [1, 2, 11, 12, 13]
    assert Resumed not in {type(event) for event in pair.at_client}

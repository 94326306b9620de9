"""Measures round trips and one-way batches over sessions, relative to bare ZeroMQ sockets.

Run `python benchmarks/net.py [--seconds 2]`. The server is a second process, and each side uses one core. Figures are
medians of three runs. Sessions and bare sockets alternate, because both then see the same load.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import zmq

from scaler.errors import LimitError
from scaler.net.access import Access
from scaler.net.connection import ConnectorEvent, Identity, ListenerEvent, Received
from scaler.net.connector import SocketConnector
from scaler.net.listener import SocketListener
from scaler.net.versions import own_hello
from scaler.object_storage.messages import PutObject, StatStorage, StorageReply, StorageResult
from scaler.protocol.messages import Hello, Refused, Role, Server, Welcome
from scaler.protocol.session import OutboxLimits

BODY = bytes(200)
CHUNK = bytes(16 * 1024 * 1024)
ID = bytes(16)


def serve_ours(address: str, ready: Connection) -> None:
    async def main() -> None:
        def admit(_peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
            return Welcome(False, 1, 60.0, 2.0)

        def on_events(events: list[ListenerEvent]) -> None:
            for event in events:
                if isinstance(event, Received) and isinstance(event.message, StatStorage) and event.message.request:
                    listener.send(event.peer, StorageReply(event.message.request, StorageResult.OK))

        listener = SocketListener([address], server_kind="object_storage", admit=admit, on_events=on_events)
        ready.send(listener.addresses[0])
        await asyncio.get_running_loop().run_in_executor(None, ready.recv)
        listener.close()

    asyncio.run(main())


def serve_bare(address: str, ready: Connection) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(address)
    ready.send(router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())  # type: ignore[union-attr]
    while True:
        frames = router.recv_multipart()
        if frames[1] == b"end":
            break
        if frames[1] == b"ask":
            router.send_multipart(frames)
    context.destroy(linger=0)


def bare_round_trips(dealer: zmq.Socket[bytes], seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        dealer.send_multipart([b"ask", BODY])
        dealer.recv_multipart()
        count += 1
    return count / (time.perf_counter() - begun)


def bare_one_way(dealer: zmq.Socket[bytes], seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(100):
            dealer.send_multipart([b"take", BODY])
        count += 100
    dealer.send_multipart([b"ask", BODY])
    dealer.recv_multipart()
    return count / (time.perf_counter() - begun)


def bare_bytes(dealer: zmq.Socket[bytes], seconds: float) -> float:
    sent, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        dealer.send_multipart([b"take", BODY], flags=zmq.SNDMORE)
        dealer.send(CHUNK, copy=False)
        dealer.send_multipart([b"ask", BODY])
        dealer.recv_multipart()
        sent += len(CHUNK)
    return sent / (time.perf_counter() - begun) / 1e6


class SessionClient:
    """A connector that records the number of the latest answer."""

    def __init__(self, address: str) -> None:
        self.connector = SocketConnector(
            address,
            Server.OBJECT_STORAGE,
            Access(is_insecure=True, compression="off"),
            own_hello(Role.CLIENT),
            self._on_events,
            outbox=OutboxLimits(messages=20_000),
        )
        self._answered = asyncio.Event()
        self.on_answer: Callable[[], None] = self._answered.set

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            if isinstance(event, Received):
                self.on_answer()

    async def ask(self) -> None:
        self._answered.clear()
        self.on_answer = self._answered.set
        self.connector.send(StatStorage(1))
        await self._answered.wait()

    async def round_trips(self, seconds: float) -> float:
        """Measure round trips as components make them: the callback that gets an answer sends the next question."""
        count, begun = 0, time.perf_counter()
        ended = asyncio.Event()

        def again() -> None:
            nonlocal count
            count += 1
            if time.perf_counter() - begun < seconds:
                self.connector.send(StatStorage(1))
            else:
                ended.set()

        self.on_answer = again
        self.connector.send(StatStorage(1))
        await ended.wait()
        return count / (time.perf_counter() - begun)

    async def one_way(self, seconds: float) -> float:
        """Measure batches of 100 messages. The outbox pushes back when the server falls behind."""
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            try:
                for _ in range(100):
                    self.connector.send(StatStorage(0))
                    count += 1
            except LimitError:
                pass
            await asyncio.sleep(0)
        while self.connector.outbox_bytes():  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        return count / (time.perf_counter() - begun)

    async def bytes_put(self, seconds: float) -> float:
        sent, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            self.connector.send(PutObject(1, ID, [len(CHUNK)], 0), [CHUNK])
            await self.ask()
            sent += len(CHUNK)
        return sent / (time.perf_counter() - begun) / 1e6


def measure(scheme: str, seconds: float) -> dict[str, tuple[float, float]]:
    """Return the medians of three runs for each scenario: bare, and with sessions."""
    with tempfile.TemporaryDirectory() as directory:
        addresses = [f"ipc://{directory}/{name}" if scheme == "ipc" else "tcp://127.0.0.1:0" for name in ("b", "o")]
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(2)]
        servers = [
            spawn.Process(target=serve, args=(address, there))
            for serve, address, (_, there) in zip((serve_bare, serve_ours), addresses, pipes, strict=True)
        ]
        for server in servers:
            server.start()
        try:
            return asyncio.run(compare(pipes[0][0].recv(), pipes[1][0].recv(), seconds))
        finally:
            pipes[1][0].send("end")
            for server in servers:
                server.join(10)
                server.kill()


async def compare(bare_address: str, our_address: str, seconds: float) -> dict[str, tuple[float, float]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(bare_address)
    ours = SessionClient(our_address)
    async with asyncio.timeout(10):
        while not ours.connector.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(3):
        for name, bare, our in (
            ("round trips/s", bare_round_trips, ours.round_trips),
            ("one-way messages/s", bare_one_way, ours.one_way),
            ("16 MiB attachments, MB/s", bare_bytes, ours.bytes_put),
        ):
            pair = found.setdefault(name, ([], []))
            pair[0].append(bare(dealer, seconds))
            pair[1].append(await our(seconds))
    dealer.send_multipart([b"end", b""])
    ours.connector.close()
    dealer.close(linger=1000)
    context.term()
    return {name: (statistics.median(bare), statistics.median(our)) for name, (bare, our) in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each run (default: 1)")
    seconds = parser.parse_args().seconds
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, pyzmq {zmq.pyzmq_version()}, {zmq.zmq_version()}")
    print(f"{'':6}{'':28}{'bare ZeroMQ':>14}{'with sessions':>16}{'ratio':>8}")
    for scheme in ("tcp", "ipc"):
        for name, (bare, our) in measure(scheme, seconds).items():
            print(f"{scheme:6}{name:28}{bare:14,.0f}{our:16,.0f}{our / bare:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

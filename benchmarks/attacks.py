"""Measures how attacks on the scheduler's port affect a connected client, and how much memory they cost.

    python benchmarks/attacks.py [--attacks a,b] [--rounds 3] [--connections 2000] [--local]

Each attack runs in a low-priority process, because it shares the cores with the cluster. Runs with an attack, without,
and with the same attack on a port of the attacking process alternate. The last shows the load on the machine alone. The
client uses TCP, or the local transport with --local. Memory is the scheduler's growth during the attack.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import machine
from benchmarks.tasks import check, identity
from scaler import Client, SchedulerClusterCombo
from scaler.net import connector
from scaler.net.access import Access
from scaler.net.local import local_name
from scaler.protocol.messages import MAX_BATCH_BYTES, Server

TASKS = 5_000
ROUND_TRIPS = 500
SETTLE_SECONDS = 2.0
SAMPLE_SECONDS = 0.02
MEBIBYTE = 1024 * 1024
PAUSE_SECONDS = 0.005
"""Pause between two connections if the attack does not keep them open."""
ANSWER_SECONDS = 0.02

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"


def greeting(mechanism: bytes) -> bytes:
    """Return the 64-byte greeting of a ZeroMQ peer."""
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def large_frame(size_bytes: int, flags: int) -> bytes:
    return struct.pack(">BQ", flags | 2, size_bytes)


READY = b"\x04\x26\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)
READY = b"\x04" + bytes([len(READY) - 2]) + READY[2:]
MORE, COMMAND = 1, 4

Stream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sends(data: bytes, then_every_seconds: float = 0.0) -> Stream:
    """Send the data at once, or byte by byte with an interval, then wait until the server closes the connection."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in [data[at : at + 1] for at in range(len(data))] if then_every_seconds else [data]:
            writer.write(part)
            await asyncio.sleep(then_every_seconds)
        while await reader.read(1000):
            pass

    return send


def floods(*begin: bytes, frame_bytes: int = MEBIBYTE, frame: bytes = b"") -> Stream:
    """Send the parts of `begin`, then endless frames, or the endless bytes of a single frame."""

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in begin:
            writer.write(part)
            await asyncio.sleep(ANSWER_SECONDS)
        data = frame + bytes(frame_bytes)
        while True:
            writer.write(data)
            await writer.drain()

    return flood


ATTACKS: dict[str, tuple[Stream, bool]] = {
    "silent": (sends(b""), True),
    "half a greeting": (sends(SIGNATURE), True),
    "slow loris": (sends(greeting(b"CURVE"), 1.0), True),
    "junk": (sends(os.urandom(2000)), False),
    "HTTP": (sends(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), False),
    "TLS hello": (sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500)), False),
    "a frame of 1 GB": (floods(greeting(b"NULL"), READY + large_frame(1 << 30, 0)), False),
    "endless frames": (floods(greeting(b"NULL"), READY, frame=large_frame(MEBIBYTE, MORE)), False),
    "a handshake of 60 MB": (floods(greeting(b"CURVE") + large_frame(60_000_000, COMMAND)), False),
    "local bodies of 64 MB": (sends(struct.pack("=IHH40s", MAX_BATCH_BYTES, 0, 0, bytes(40))), True),
}
"""Data sent per connection, and whether --connections of them stay open. Otherwise ten connect in turn."""
UNKNOWN_KEYS = "unknown keys"


def knock_with_unknown_keys(address: str) -> None:
    """Connect ten ZeroMQ sockets with unknown keys, repeatedly."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = Access().keys(Server.SCHEDULER, address)
    assert server is not None
    while True:
        knocking = []
        for _ in range(10):
            socket = context.socket(zmq.DEALER)
            socket.curve_serverkey = server.server.encode()
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.linger = 0
            socket.connect(address)
            knocking.append(socket)
        time.sleep(ANSWER_SECONDS)
        for socket in knocking:
            socket.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read once and close the connection, like a server that rejects the protocol."""
    with contextlib.suppress(OSError):
        await reader.read(64)
    writer.transport.abort()


async def attack(name: str, address: str, connections: int) -> None:
    stream, stays = ATTACKS[name]
    if not address:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    host, _, port = address.removeprefix("tcp://").rpartition(":")

    async def connect_again_and_again() -> None:
        while True:
            with contextlib.suppress(OSError):
                if name.startswith("local"):
                    reader, writer = await asyncio.open_unix_connection(local_name(address))
                else:
                    reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    await stream(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(connect_again_and_again() for _ in range(connections if stays else 10)))


class Attack:
    """An attacking process, with the scheduler's memory during the attack."""

    def __init__(self, name: str, address: str, connections: int, scheduler: psutil.Process) -> None:
        command = [sys.executable, __file__, "--run", name, "--address", address, "--connections", str(connections)]
        self._scheduler = scheduler
        self._before = scheduler.memory_info().rss
        self._open = scheduler.num_fds()
        self.peak_bytes = 0
        self.peak_connections = 0
        self._is_over = False
        self._process = subprocess.Popen(["nice", "-n", "19", *command])
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over:
            self.peak_bytes = max(self.peak_bytes, self._scheduler.memory_info().rss - self._before)
            self.peak_connections = max(self.peak_connections, self._scheduler.num_fds() - self._open)
            time.sleep(SAMPLE_SECONDS)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._is_over = True
        self._thread.join()


def measure(client: Client) -> tuple[float, float]:
    """Return no-ops per second, and the 99th percentile of single round trips in milliseconds."""
    began = time.perf_counter()
    futures = [client.submit(identity, number) for number in range(TASKS)]
    check([future.result() for future in futures] == list(range(TASKS)), "no-ops")
    rate = TASKS / (time.perf_counter() - began)
    taken = []
    for number in range(ROUND_TRIPS):
        began = time.perf_counter()
        check(client.submit(identity, number).result() == number, "a round trip")
        taken.append((time.perf_counter() - began) * 1000)
    return rate, sorted(taken)[ROUND_TRIPS * 99 // 100]


@contextlib.contextmanager
def cluster(is_local: bool) -> Iterator[tuple[Client, str, psutil.Process]]:
    with contextlib.ExitStack() as stack:
        combo = SchedulerClusterCombo(n_workers=1, logging_level="ERROR")
        stack.callback(combo.shutdown)
        if not is_local:
            vars(connector)["connect_local"] = lambda *_: None
        client = Client(address=combo.get_address())
        stack.callback(client.disconnect)
        port = int(combo.get_address().rpartition(":")[2])
        (scheduler,) = (
            child
            for child in psutil.Process().children(recursive=True)
            if any(
                found.laddr and found.laddr[1] == port and found.status == "LISTEN" for found in child.net_connections()
            )
        )
        yield client, combo.get_address(), scheduler


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", help=f"attacks to run, from {', '.join(ATTACKS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--local", action="store_true", help="connect the client over the local transport")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run == UNKNOWN_KEYS:
        knock_with_unknown_keys(options.address)
    if options.run:
        asyncio.run(attack(options.run, options.address, options.connections))
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(machine(options.rounds))
    print(
        f"{'attack':24}{'rate':>8}{'of none':>9}{'elsewhere':>11}"
        f"{'p99 ms':>8}{'none':>6}{'MB':>8}{'open':>6}{'KiB each':>10}"
    )
    with cluster(options.local) as (client, address, scheduler):
        measure(client)
        for name in options.attacks.split(",") if options.attacks else [*ATTACKS, UNKNOWN_KEYS]:
            rates, ratios, elsewhere_ratios, p99s, calm_p99s, costs, opens = [], [], [], [], [], [], []
            for _ in range(options.rounds):
                calm_rate, calm_p99 = measure(client)
                attacking = Attack(name, address, options.connections, scheduler)
                time.sleep(SETTLE_SECONDS)
                rate, p99 = measure(client)
                attacking.end()
                elsewhere = Attack(name, "", options.connections, scheduler)
                time.sleep(SETTLE_SECONDS)
                elsewhere_rate, _ = measure(client)
                elsewhere.end()
                elsewhere_ratios.append(elsewhere_rate / calm_rate)
                rates.append(rate)
                ratios.append(rate / calm_rate)
                p99s.append(p99)
                calm_p99s.append(calm_p99)
                costs.append(attacking.peak_bytes)
                opens.append(attacking.peak_connections)
            each = max(costs) / 1024 / max(1, *opens)
            print(
                f"{name:24}{statistics.median(rates):8,.0f}{statistics.median(ratios):9.2f}"
                f"{statistics.median(elsewhere_ratios):11.2f}"
                f"{statistics.median(p99s):8.1f}{statistics.median(calm_p99s):6.1f}"
                f"{max(costs) / 1e6:8.0f}{max(opens):6}{each:10.0f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures a remote client with and without `compression` on a slow link, as ratios within the same run.

    python benchmarks/far.py [--rounds 3] [--megabits 200] [--milliseconds 40] [--megabytes 20]

Client and cluster are on two simulated hosts (`tests/hosts.py`, as root). This program is the link between them: it
delays packets of 1,500 bytes by half the round trip, limits the rate, and queues up to 0.2 s of data. Clients with
`compression = "off"` and `"auto"` alternate. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from scaler import Client, SchedulerClusterCombo
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.hosts import Host, hosts, ip, run_as_root, why_not

KINDS = ("off", "auto")
TASKS = 20_000
LONE = 15
NEAR, FAR = "10.97.0.1", "10.97.0.2"
PORT = 9300
QUEUE_SECONDS = 0.2
HEADER_BYTES = 38
"""Bytes that an Ethernet frame adds to a packet."""
_SET_TUN, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


# -- the link


class Direction:
    """Packets in flight from one end to the other."""

    def __init__(self, source: int, target: int, megabits: float, delay_seconds: float) -> None:
        self.source = source
        self._target = target
        self._bytes_per_second = megabits * 125_000
        self._delay_seconds = delay_seconds
        self._free_at = 0.0
        self._packets: deque[tuple[float, bytes]] = deque()

    def read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(64):
                packet = os.read(self.source, 65_536)
                now = time.monotonic()
                begins = max(now, self._free_at)
                if begins < now + QUEUE_SECONDS:
                    self._free_at = begins + (len(packet) + HEADER_BYTES) / self._bytes_per_second
                    self._packets.append((self._free_at + self._delay_seconds, packet))

    def deliver(self) -> float:
        """Deliver packets that are due, and return the time of the next one."""
        while self._packets and self._packets[0][0] <= time.monotonic():
            with suppress(OSError):  # the device rejected the packet: it is lost
                os.write(self._target, self._packets[0][1])
            self._packets.popleft()
        return self._packets[0][0] if self._packets else time.monotonic() + 1.0


def end_of_link(host: Host, address: str, peer: str) -> int:
    """Add a network device to a host, and return a descriptor that reads and writes its packets."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"far{os.getpid()}-{host.name[-1]}"
    fcntl.ioctl(device, _SET_TUN, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    ip("link", "set", name, "netns", host.namespace)
    ip("-n", host.namespace, "address", "add", address, "peer", peer, "dev", name)
    ip("-n", host.namespace, "link", "set", name, "mtu", "1500", "txqueuelen", "10000", "up")
    return device


def carry(first: int, second: int, megabits: float, milliseconds: float) -> None:
    """Carry packets between both ends, forever."""
    ways = [Direction(*ends, megabits, milliseconds / 2000) for ends in ((first, second), (second, first))]
    while True:
        due = min(way.deliver() for way in ways)
        readable, _, _ = select.select([way.source for way in ways], [], [], max(0.0, due - time.monotonic()))
        for way in ways:
            if way.source in readable:
                way.read()


# -- client and cluster


def measured_text(megabytes: int, seed: int) -> str:
    chosen = random.Random(seed)
    rows = [
        {"id": number, "name": f"sensor-{chosen.randrange(500)}", "value": chosen.randrange(100_000) / 100, "ok": True}
        for number in range(megabytes * 17_000)
    ]
    return json.dumps(rows)[: megabytes * 1_000_000]


def prose(megabytes: int, seed: int) -> str:
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("etaoinshrdlu", k=chosen.randint(2, 9))) for _ in range(2_000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return " ".join(chosen.choices(words, weights, k=megabytes * 170_000))[: megabytes * 1_000_000]


def prices(megabytes: int, seed: int) -> np.ndarray:
    return np.round(np.random.default_rng(seed).normal(100, 10, megabytes * 125_000), 2)


def times(megabytes: int, seed: int) -> np.ndarray:
    return seed + np.arange(megabytes * 125_000) * 0.001


def noise(megabytes: int, _seed: int) -> bytes:
    return os.urandom(megabytes * 1_000_000)


VALUES: dict[str, Callable[[int, int], object]] = {
    "JSON": measured_text,
    "text": prose,
    "float64, 2 decimals": prices,
    "float64, times": times,
    "random bytes": noise,
}


def same(value: object) -> object:
    return value


def crossed_megabytes() -> float:
    """Return the megabytes that this host has sent and received over the link."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (counts,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("far"))
    return (int(counts[0]) + int(counts[8])) / 1e6


def serve(home: Path) -> None:
    """Run the cluster until stdin closes."""
    with SchedulerClusterCombo(f"tcp://{NEAR}:{PORT}", 1, credentials=str(home / "keys")):
        print("ready", flush=True)
        sys.stdin.read()


def measure(kind: str, home: Path, megabytes: int, seed: int) -> None:
    """Print one client's figures as JSON."""
    figures: dict[str, float] = {}
    with Client(f"tcp://{NEAR}:{PORT}", credentials=str(home / "client.credentials"), compression=kind) as client:
        client.submit(same, client.send_object(noise(megabytes, seed))).result()  # warms up the connections
        lone = []
        for _ in range(LONE):
            begun = time.perf_counter()
            client.submit(abs, -1).result()
            lone.append((time.perf_counter() - begun) * 1000)
        figures["lone task, ms"] = statistics.median(lone)
        begun = time.perf_counter()
        for future in [client.submit(abs, -1) for _ in range(TASKS)]:
            future.result()
        figures["submits/s"] = TASKS / (time.perf_counter() - begun)
        for name, make in VALUES.items():
            value = make(megabytes, seed)
            before = crossed_megabytes()
            begun = time.perf_counter()
            reference = client.send_object(value)
            client.submit(type, reference).result()
            figures[f"{name}, MB/s there"] = megabytes / (time.perf_counter() - begun)
            begun = time.perf_counter()
            client.submit(same, reference).result()
            figures[f"{name}, MB/s back"] = megabytes / (time.perf_counter() - begun)
            figures[f"{name}, MB on the link"] = crossed_megabytes() - before
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabits", type=float, default=200)
    parser.add_argument("--milliseconds", type=float, default=40)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side, home, *more = given.side
        if side == "server":
            serve(Path(home))
        else:
            measure(more[0], Path(home), int(more[1]), int(more[2]))
        return
    run_as_root()
    if reason := why_not():
        sys.exit(reason)
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    with ExitStack() as after:
        home = Path(after.enter_context(tempfile.TemporaryDirectory()))
        keys = KeysDirectory.create(home / "keys", "benchmark")
        write_private(home / "client.credentials", keys.add("client", "client").to_text())
        near, far = after.enter_context(hosts(2)).hosts
        ends = end_of_link(near, NEAR, FAR), end_of_link(far, FAR, NEAR)
        link = os.fork()
        if not link:
            carry(*ends, given.megabits, given.milliseconds)
        after.callback(os.waitpid, link, 0)
        after.callback(os.kill, link, 9)
        program = [sys.executable, __file__, "--side"]
        server = near.start(*program, "server", home, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the cluster did not start"
        for number in range(given.rounds):
            for place, kind in enumerate(KINDS if number % 2 else reversed(KINDS)):
                seed = number * len(KINDS) + place
                printed = far.run(*program, "client", home, kind, str(given.megabytes), str(seed), timeout=600)
                for name, figure in json.loads(printed).items():
                    found[kind].setdefault(name, []).append(figure)
    print(f"{given.megabits:g} Mbit/s, {given.milliseconds:g} ms, values of {given.megabytes} MB\n")
    print(f"{'':32}{'off':>10}{'auto':>10}{'ratio':>8}")
    for name in found["off"]:
        off, auto = (statistics.median(found[kind][name]) for kind in KINDS)
        print(f"{name:32}{off:10,.1f}{auto:10,.1f}{auto / off:8.2f}")


if __name__ == "__main__":
    main()

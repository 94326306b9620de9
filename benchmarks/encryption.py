"""Measures the cost of encryption between two hosts: with keys, without keys, and with CURVE alone.

Run `python benchmarks/encryption.py [--rounds 5]` as root, to put the client into its own network namespace. Without
root, both sides share one namespace. The three variants alternate, and each figure is the best of all rounds, because
other programs only slow a round down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from scaler import Client, SchedulerClusterCombo
from scaler.security.directory import KeysDirectory
from scaler.security.keys import KeyPair, new_key_pair
from scaler.security.private_files import write_private
from tests.hosts import hosts, why_not

SIZE_BYTES = 40_000_000
FRAME_BYTES = 1024 * 1024
TASKS = 20_000
KINDS = ("with keys", "insecure_no_auth", "CURVE alone")


def plain_command(*words: str | Path) -> list[str]:
    return [str(word) for word in words]


def size_of(value: bytes) -> int:
    return len(value)


def make(size: int) -> bytes:
    return os.urandom(1) * size


def make_and_keep(size: int) -> int:
    return len(make(size))


def serve(kind: str, host: str, home: Path) -> None:
    """Run the server side until stdin closes."""
    port = 9100 + KINDS.index(kind) * 10
    if kind == "CURVE alone":
        pair = KeyPair(**json.loads((home / "pair").read_text()))
        router = zmq.Context().socket(zmq.ROUTER)
        router.curve_server, router.curve_publickey, router.curve_secretkey = (
            1,
            pair.public.encode(),
            pair.secret.encode(),
        )
        router.bind(f"tcp://{host}:{port}")
        threading.Thread(target=swallow, args=(router,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()
        return
    insecure = kind == "insecure_no_auth"
    credentials = None if insecure else str(home / "keys")
    with SchedulerClusterCombo(f"tcp://{host}:{port}", 1, credentials=credentials, insecure_no_auth=insecure):
        print("ready", flush=True)
        sys.stdin.read()


def swallow(router: zmq.Socket[bytes]) -> None:
    received = 0
    while True:
        frames = router.recv_multipart(copy=False)
        received += len(frames[-1])
        if received >= SIZE_BYTES:
            router.send_multipart([frames[0].bytes, b"done"])
            received = 0


def measure(kind: str, host: str, home: Path) -> None:
    """Print one round's figures as JSON: MB/s there, MB/s back, and tasks/s. Unsupported figures are 0."""
    address = f"tcp://{host}:{9100 + KINDS.index(kind) * 10}"
    value = os.urandom(SIZE_BYTES)
    if kind == "CURVE alone":
        pair, own = KeyPair(**json.loads((home / "pair").read_text())), new_key_pair()
        dealer = zmq.Context().socket(zmq.DEALER)
        dealer.curve_serverkey, dealer.curve_publickey = pair.public.encode(), own.public.encode()
        dealer.curve_secretkey = own.secret.encode()
        dealer.connect(address)
        view, rates = memoryview(value), []
        for _ in range(3):
            begun = time.perf_counter()
            for start in range(0, SIZE_BYTES, FRAME_BYTES):
                dealer.send(view[start : start + FRAME_BYTES], copy=False)
            dealer.recv()
            rates.append(SIZE_BYTES / 1e6 / (time.perf_counter() - begun))
        print(json.dumps([max(rates), 0, 0]))
        return
    insecure = kind == "insecure_no_auth"
    credentials = None if insecure else str(home / "client.credentials")
    with Client(address, credentials=credentials, insecure_no_auth=insecure) as client:
        there, back = [], []
        for _ in range(3):
            begun = time.perf_counter()
            reference = client.send_object(value)
            assert client.submit(size_of, reference).result() == SIZE_BYTES
            there.append(SIZE_BYTES / 1e6 / (time.perf_counter() - begun))
            begun = time.perf_counter()
            assert client.submit(make_and_keep, SIZE_BYTES).result() == SIZE_BYTES
            made = time.perf_counter()
            assert len(client.submit(make, SIZE_BYTES).result()) == SIZE_BYTES
            # Excludes the time of the task itself.
            back.append(SIZE_BYTES / 1e6 / (time.perf_counter() - made - (made - begun)))
        begun = time.perf_counter()
        futures = [client.submit(abs, -1) for _ in range(TASKS)]
        assert all(future.result() == 1 for future in futures)
        print(json.dumps([max(there), max(back), TASKS / (time.perf_counter() - begun)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side, kind, host, home = given.side
        (serve if side == "server" else measure)(kind, host, Path(home))
        return
    best = {kind: [0.0, 0.0, 0.0] for kind in KINDS}
    with ExitStack() as after:
        home = Path(after.enter_context(tempfile.TemporaryDirectory()))
        keys = KeysDirectory.create(home / "keys", "benchmark")
        write_private(home / "client.credentials", keys.add("client", "client").to_text())
        pair = new_key_pair()
        write_private(home / "pair", json.dumps({"public": pair.public, "secret": pair.secret}))
        address, server_side, client_side = "127.0.0.2", plain_command, plain_command
        if why_not():
            print(f"{why_not()}: both sides in one namespace, over loopback")
        else:
            one, other = after.enter_context(hosts(2)).hosts
            address, server_side, client_side = one.address, one.command, other.command

        def side(name: str, kind: str) -> list[str]:
            return [sys.executable, __file__, "--side", name, kind, address, str(home)]

        for kind in KINDS:
            command = server_side(*side("server", kind))
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            after.callback(server.wait)
            after.callback(server.stdin.close)  # type: ignore[union-attr]
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n", f"the server {kind} did not start"
        for _ in range(given.rounds):
            for kind in KINDS:
                printed = subprocess.run(client_side(*side("client", kind)), check=True, stdout=subprocess.PIPE).stdout
                best[kind] = [max(pair) for pair in zip(best[kind], json.loads(printed), strict=True)]
    for kind, (there, back, tasks) in best.items():
        figures = f"{there:6.0f} MB/s there" + (f", {back:6.0f} MB/s back, {tasks:8,.0f} tasks/s" if tasks else "")
        print(f"{kind:18} {figures}")
    secure, plain, alone = (best[kind] for kind in KINDS)
    print(f"with keys, relative to CURVE alone: {secure[0] / alone[0]:.2f} there, {secure[1] / alone[0]:.2f} back")
    print("with keys, relative to none: " + ", ".join(f"{a / b:.2f}" for a, b in zip(secure, plain, strict=True)))


if __name__ == "__main__":
    main()

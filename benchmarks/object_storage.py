"""Measures object storage put and get, relative to a memory copy and a raw ZeroMQ transfer in the same run.

    python benchmarks/object_storage.py [--repeats 5]

The storage, the process that puts, and the process that gets communicate over loopback. A figure is the median of the
repeats, in MB/s of object bytes. Ratios are relative to the raw transfer, in which bytes move between two processes
once and are not stored.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import zmq

from scaler.ids import IdFactory, new_peer_id
from scaler.object_storage.client import BlockingStorage, StorageClient
from scaler.protocol.messages import Role

MB = 1_000_000
SIZES = (1 * MB, 10 * MB, 60 * MB, 100 * MB)
COMMAND = "import sys; from scaler.cli import object_storage_server; sys.exit(object_storage_server())"


def putter(address: str, pipe: Connection) -> None:
    """For each size received, put an object of that size, and answer with its id and the seconds taken."""
    peer = new_peer_id()
    ids, storage = IdFactory(peer), BlockingStorage(lambda: StorageClient(address, peer, Role.CLIENT))
    content = memoryview(os.urandom(max(SIZES)))
    while (size := pipe.recv()) is not None:
        object_id = ids.object()
        begun = time.perf_counter()
        storage.put(object_id, [b"pickle", content[:size]])
        pipe.send((object_id, time.perf_counter() - begun))
    storage.close()


def getter(address: str, pipe: Connection) -> None:
    """For each id received, get that object, and answer with its size and the seconds taken."""
    storage = BlockingStorage(lambda: StorageClient(address, new_peer_id(), Role.WORKER))
    while (object_id := pipe.recv()) is not None:
        begun = time.perf_counter()
        parts = storage.get(object_id)
        pipe.send((parts[1].nbytes, time.perf_counter() - begun))
        del parts
    storage.close()


def raw_sender(address: str, pipe: Connection) -> None:
    """For each size received, send that many bytes in one ZeroMQ frame."""
    content = memoryview(os.urandom(max(SIZES)))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        while (size := pipe.recv()) is not None:
            socket.send(content[:size], copy=False)


class PipedProcess:
    """A process that runs a function with one end of a pipe, and exits when it receives None."""

    def __init__(self, target: Callable[[str, Connection], None], address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(address, theirs))
        self._process.start()

    def ask(self, question: object) -> tuple[object, float]:
        self.pipe.send(question)
        answer: tuple[object, float] = self.pipe.recv()
        return answer

    def close(self) -> None:
        self.pipe.send(None)
        self._process.join()


def measure(repeats: int, once: Callable[[], float]) -> float:
    """Return the median seconds per call, after one warm-up call."""
    once()
    return statistics.median(once() for _ in range(repeats))


def memory_copy(size: int, repeats: int) -> float:
    content = os.urandom(size)

    def once() -> float:
        begun = time.perf_counter()
        bytearray(content)
        return time.perf_counter() - begun

    return measure(repeats, once)


def raw_transfer(size: int, repeats: int) -> float:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        sender = PipedProcess(raw_sender, f"tcp://127.0.0.1:{port}")

        def once() -> float:
            begun = time.perf_counter()
            sender.pipe.send(size)
            socket.recv_multipart(copy=False)
            return time.perf_counter() - begun

        seconds = measure(repeats, once)
        sender.close()
    return seconds


def storage_seconds(address: str, size: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a put and of a get."""
    puts, gets = PipedProcess(putter, address), PipedProcess(getter, address)
    put_seconds: list[float] = []
    get_seconds: list[float] = []
    for _ in range(repeats + 1):
        object_id, seconds = puts.ask(size)
        put_seconds.append(seconds)
        got, seconds = gets.ask(object_id)
        assert got == size
        get_seconds.append(seconds)
    puts.close()
    gets.close()
    return statistics.median(put_seconds[1:]), statistics.median(get_seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    readable, writable = os.pipe()
    arguments = [sys.executable, "-c", COMMAND, "tcp://127.0.0.1:0", "--logging-paths", "/dev/null"]
    environment = {**os.environ, "SCALER_READY_FD": str(writable)}
    server = subprocess.Popen(arguments, env=environment, pass_fds=[writable])
    os.close(writable)
    try:
        with os.fdopen(readable) as ready:
            (address,) = json.loads(ready.readline())["addresses"].values()
        print(f"{'size':>8} {'copy':>8} {'raw':>8} {'put':>8} {'get':>8}   {'put/raw':>7} {'get/raw':>7}")
        for size in SIZES:
            put, get = storage_seconds(address, size, repeats)
            raw = raw_transfer(size, repeats)
            seconds = (memory_copy(size, repeats), raw, put, get)
            speeds = " ".join(f"{size / MB / value:8.0f}" for value in seconds)
            print(f"{size // MB:5} MB {speeds}   {raw / put:7.2f} {raw / get:7.2f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

"""Measures the client's CPU time per submitted task, in microseconds, without sockets.

A sink in the same process answers each Submit with a Finished. `encoded` also encodes and decodes every message.

    python benchmarks/client_submit.py [TASKS]
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import wait

from scaler.client.future import ScalerFuture
from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.options import Options
from scaler.client.task_calls import TemplateTable
from scaler.net.connection import Connector, ConnectorEvent, Received, Welcomed
from scaler.object_storage.client import StorageClient
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Buffer, Descriptor, Finished, Message, Outcome, Submit, Welcome

RESULT = b"\x80\x05K\x01."


class Sink:
    """A connector that plays the scheduler. hold: keep the tasks instead of answering."""

    passes_descriptors = False

    def __init__(self, peer: bytes, on_events: OnEvents, encoded: bool, hold: bool) -> None:
        self.peer = peer
        self.connected = True
        self.last_error = ""
        self._on_events = on_events
        self._encoded = encoded
        self._hold = hold
        self._number = 0
        self._loop = asyncio.get_running_loop()
        first: list[ConnectorEvent] = [Welcomed(Welcome(False, 1, 60.0, 2.0))]
        self._loop.call_soon(on_events, first)

    def send(
        self, message: Message, _attachments: Sequence[Buffer] = (), _descriptors: Sequence[Descriptor] = ()
    ) -> None:
        """Take a message. Answer a Submit in the next iteration of the event loop."""
        if self._encoded:
            message = decode(encode(message))
        if isinstance(message, Submit) and not self._hold:
            self._loop.call_soon(self._answer, [identifier for group in message.groups for identifier in group.ids])

    def _answer(self, ids: list[bytes]) -> None:
        self._number += 1
        count = len(ids)
        answer: Message = Finished(self._number, ids, [Outcome.SUCCESS] * count, [RESULT] * count, [1] * count)
        if self._encoded:
            answer = decode(encode(answer))
        self._on_events([Received(self.peer, answer)])

    def together(self, work: Callable[[], object]) -> None:
        work()

    def outbox_bytes(self) -> int:
        """Return 0: nothing is buffered."""
        return 0

    def close(self, reason: str = "") -> None:
        """Do nothing: there is no connection to close."""


def no_storage(_welcome: Welcome, _peer: bytes) -> StorageClient:
    raise AssertionError("nothing here is large")


def open_client(encoded: bool, hold: bool) -> tuple[ClientLoop, Callable[[int], ScalerFuture]]:
    def connect(peer: bytes, on_events: OnEvents) -> Connector:
        return Sink(peer, on_events, encoded, hold)

    loop = ClientLoop("nowhere", connect, no_storage, 10.0)
    templates = TemplateTable(loop.futures, None)
    options = Options()

    def submit(number: int) -> ScalerFuture:
        return loop.futures.submit(templates.template(abs, options, b""), (number,), {})

    return loop, submit


def measure(tasks: int, encoded: bool) -> None:
    loop, submit = open_client(encoded, hold=False)
    best = (1e9, 1e9, 1e9)
    for _ in range(5):
        began, cpu = time.perf_counter(), time.process_time()
        futures = [submit(number) for number in range(tasks)]
        submitted = time.perf_counter() - began
        wait(futures[-1:])
        for future in futures:
            future.result()
        best = min(best, (time.process_time() - cpu, time.perf_counter() - began, submitted))
        del futures
    loop.close("done")
    cpu, wall, submitted = (1e6 * seconds / tasks for seconds in best)
    name = "encoded" if encoded else "plain"
    print(f"{name:8} cpu {cpu:6.2f} us/task   wall {wall:6.2f} us/task   in submit {submitted:6.2f} us/task")


def measure_memory(tasks: int) -> None:
    loop, submit = open_client(encoded=False, hold=True)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    futures = [submit(number) for number in range(tasks)]
    while loop.futures.session.unsent_bytes or loop.futures.is_awake:
        time.sleep(0.01)
    print(
        f"memory   {(tracemalloc.get_traced_memory()[0] - before) / tasks:6.0f} bytes per pending task and its future"
    )
    tracemalloc.stop()
    del futures
    loop.close("done")


def main() -> None:
    tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    for encoded in (False, True):
        measure(tasks, encoded)
    measure_memory(tasks)


if __name__ == "__main__":
    main()

"""Clients inside tasks: the connector through the task's worker, and the lending of a waiting task's slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from scaler.client.connect import opened, processor
from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.transfers import Storage
from scaler.errors import ClientClosedError, ProtocolError, UsageError
from scaler.net.connection import Broken, ConnectorEvent, Received, Welcomed
from scaler.plugins import part_of
from scaler.protocol import codec
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Attachments, Descriptors
from scaler.worker import frames

if TYPE_CHECKING:
    from scaler.worker.processor.context import ProcessorContext

NESTED_LEASE_SECONDS = 0.0
"""Lease (seconds) of a client inside a task. A closed channel is never reopened."""
POLL_SECONDS = 0.02
IDLE_SHARE = 0.25
"""CPU share below which a process whose main thread sleeps counts as waiting."""
BUSY_SHARE = 0.5
"""CPU share above which a process counts as working again. A process starved of CPU also does."""

_lock = threading.RLock()
_nested: dict[int, ClientLoop] = {}
_watches: dict[int, SlotWatch] = {}


def prepare() -> None:
    codec.prepare(m.Submit, m.Started, m.Finished, m.Acknowledge, m.AcknowledgeResults, m.Goodbye)
    with contextlib.suppress(UsageError):
        part_of("environment", "packages", "").differences((("scaler", ""),))  # caches the installed packages


class NestedConnector:
    """The connector of a client inside a task, through its worker's session. Bound to the running loop."""

    passes_descriptors = False

    def __init__(self, context: ProcessorContext, peer: bytes, on_events: OnEvents) -> None:
        self._peer = peer
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._channel: socket.socket | None = context.open_channel(peer)
        self._loop.add_reader(self._channel.fileno(), self._read)  # passing a socket would format it for an exception
        self._welcome = m.Welcome(
            resumed=False,
            incarnation=0,
            lease_seconds=NESTED_LEASE_SECONDS,
            heartbeat_seconds=0.0,
            object_storage_address=context.object_storage_address,
        )
        first: list[ConnectorEvent] = [Welcomed(self._welcome)]
        self._loop.call_soon(on_events, first)

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def last_error(self) -> str:
        return "" if self.connected else "the task's worker closed the channel"

    def send(self, message: m.Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        assert not [*attachments, *descriptors], "a client's messages to a scheduler have none"
        if self._channel is not None:
            try:
                frames.send(self._channel, encode(message))
            except OSError as error:
                raise ClientClosedError("the channel of the client inside this task has closed") from error

    def together(self, work: Callable[[], object]) -> None:
        work()

    def outbox_bytes(self) -> int:
        return 0

    def close(self, reason: str = "") -> None:
        if self._channel is not None:
            self.send(m.Goodbye(reason))
            self._end()

    def _read(self) -> None:
        assert self._channel is not None, "the reader is removed with the channel"
        events: list[ConnectorEvent] = []
        is_open = False
        with contextlib.suppress(ConnectionError, ProtocolError):
            try:
                while body := frames.receive(self._channel, socket.MSG_DONTWAIT)[0]:
                    message = decode(body)
                    if isinstance(message, m.Welcome):
                        events.append(self._restarted(message))
                    else:
                        events.append(Received(self._peer, message))
            except BlockingIOError:
                is_open = True
        if not is_open:
            self._end()
            events.append(Broken(self._peer))
        self._on_events(events)

    def _restarted(self, welcome: m.Welcome) -> Welcomed:
        """Acknowledge the scheduler's restart. The worker drops this client's messages until then."""
        with contextlib.suppress(ClientClosedError):  # the next read reports the error
            self.send(m.Acknowledge())
        storage_address = welcome.object_storage_address or self._welcome.object_storage_address
        self._welcome = replace(self._welcome, object_storage_address=storage_address)
        return Welcomed(self._welcome)

    def _end(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            self._channel = None


def open_loop(_address: None, session: str | None, timeout_seconds: float) -> ClientLoop:
    """Return the loop shared by all clients of this processor. Raises UsageError if tasks cannot have clients here."""
    if session is not None:
        raise UsageError(f"session {session!r} needs the scheduler's address: this client is inside a task")
    context = cast("ProcessorContext | None", processor())
    if context is None:
        raise UsageError(sys.modules["scaler.worker.processor.context"].refusal)
    with _lock:
        loop = _nested.get(os.getpid())
        if loop is None or loop.futures.closed is not None:

            def storage(welcome: m.Welcome, peer: bytes) -> Storage:
                # Imported here because most clients inside tasks store nothing.
                from scaler.client.clusters import connect_storage  # noqa: PLC0415
                from scaler.worker.credential import own_access  # noqa: PLC0415

                return connect_storage(m.Role.WORKER, own_access(context.config), timeout_seconds, welcome, peer)

            connect = partial(NestedConnector, context)
            loop = opened(connect, storage, "this task's worker", timeout_seconds)
            _nested[os.getpid()] = loop
        return loop


def watch(context: ProcessorContext) -> SlotWatch:
    with _lock:
        return _watches.get(context.pid) or _watches.setdefault(context.pid, SlotWatch(context))


class SlotWatch:
    """Detects a task that waits for its own tasks by other means than their futures, such as a lock, a queue, or
    polling. Lends the task's slot to let them run. A task counts as waiting if it has unfinished tasks and hardly uses
    the CPU. One watch per processor with clients; sleeps while no client has unfinished tasks.
    """

    def __init__(self, slot: ProcessorContext) -> None:
        self._slot = slot
        self._clients: set[Callable[[], bool]] = set()
        self._submitted = threading.Event()
        self._resumed = threading.Event()
        slot.on_resume.append(self._resumed.set)
        self._state = Path(f"/proc/self/task/{os.getpid()}/stat")  # state of the main thread, which runs the tasks
        threading.Thread(target=self._run, name="scaler-slot-watch", daemon=True).start()

    def submitted(self, has_unfinished: Callable[[], bool]) -> None:
        self._clients.add(has_unfinished)
        self._submitted.set()

    def _run(self) -> None:
        while True:
            self._submitted.wait()
            self._submitted.clear()
            self._watch()
            self._slot.take_back()

    def _watch(self) -> None:
        used, at = _cpu_seconds(), time.monotonic()
        was_runnable = False
        while self._has_unfinished():
            time.sleep(POLL_SECONDS)
            self._resumed.clear()
            if self._slot.is_waiting:  # waiting for a future has already lent the slot
                self._resumed.wait()
                used, at = _cpu_seconds(), time.monotonic()
                continue
            used_before, at_before = used, at
            used, at = _cpu_seconds(), time.monotonic()
            share = (used - used_before) / (at - at_before)
            is_runnable = self._state.read_bytes().rpartition(b") ")[2][:1] == b"R"
            if share < IDLE_SHARE and not is_runnable:
                self._slot.lend()
            elif share > BUSY_SHARE or (is_runnable and was_runnable):
                self._slot.take_back()
            was_runnable = is_runnable

    def _has_unfinished(self) -> bool:
        for client in self._clients.copy():
            self._clients.discard(client)  # before asking: a client that submits later is added again
            if client():
                self._clients.add(client)
        return bool(self._clients)


def _cpu_seconds() -> float:
    return time.process_time() - time.thread_time()

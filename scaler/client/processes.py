"""Where a process stands: inside a task, at its end, or forked off another one. And how clients reach the others."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from weakref import WeakSet

from scaler.client.future_table import FutureTable
from scaler.client.loop import ClientLoop, ClientTransports, OnEvents
from scaler.client.slot_watch import SlotWatch
from scaler.errors import UsageError
from scaler.ids import new_peer_id
from scaler.net.connection import Connector
from scaler.protocol.messages import ClientDetails, Role

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient
    from scaler.worker.processor.context import ProcessorContext

_loops: WeakSet[ClientLoop] = WeakSet()
_nested: dict[int, ClientLoop] = {}
_nested_lock = threading.Lock()
_watches: dict[int, SlotWatch] = {}
_watch_lock = threading.Lock()


def processor() -> ProcessorContext | None:
    """Return the context of the processor that this code runs in, None outside of tasks."""
    module = sys.modules.get("scaler.worker.processor.context")  # a processor has imported it
    if module is None:
        return None
    context: ProcessorContext | None = module.current()
    return context


def waiting() -> AbstractContextManager[object]:
    """Return a context for a wait on a future: a task that runs here lends its slot meanwhile."""
    context = processor()
    return contextlib.nullcontext() if context is None else context.blocked()


def submitted(client: FutureTable) -> None:
    """A client has unfinished tasks: if it is inside a task, see that this lends its slot however it waits for them."""
    context = processor()
    if context is None:
        return
    with _watch_lock:
        watch = _watches.get(context.pid)
        if watch is None:
            watch = _watches[context.pid] = SlotWatch(context)
    watch.submitted(client)


def open_loop(address: str, name: str, timeout_seconds: float) -> ClientLoop:
    """Connect to the scheduler at an address. Raises UsageError, UnreachableError or RefusedError."""
    from scaler.net.connector import SocketConnector  # noqa: PLC0415
    from scaler.net.versions import own_hello  # noqa: PLC0415 (clients inside tasks need no sockets)

    if not isinstance(name, str):
        raise UsageError(f"name is {name!r}, and must be a text")

    def connect(peer: bytes, on_events: OnEvents) -> Connector:
        hello = own_hello(Role.CLIENT, ClientDetails(name))
        return SocketConnector(address, peer=peer, hello=hello, on_events=on_events)

    return _opened(ClientTransports(connect, connect_storage, address, waiting, submitted), timeout_seconds)


def nested_loop(timeout_seconds: float) -> ClientLoop:
    """Return the one loop of all clients inside this processor. Raises UsageError outside of tasks."""
    context = processor()
    if context is None:
        raise UsageError(_no_processor())
    with _nested_lock:
        loop = _nested.get(os.getpid())
        if loop is None or loop.futures.closed is not None:
            from scaler.client.nested import NestedConnector  # noqa: PLC0415 (only processors need it)

            def connect(peer: bytes, on_events: OnEvents) -> Connector:
                return NestedConnector(context, peer, on_events)

            loop = _opened(
                ClientTransports(connect, connect_storage, "this task's worker", waiting, submitted), timeout_seconds
            )
            _nested[os.getpid()] = loop
        return loop


def connect_storage(address: str, peer: bytes) -> StorageClient:
    """Return a client of the object storage on the running loop. Raises UsageError when there is no address."""
    from scaler.net.connector import SocketConnector  # noqa: PLC0415
    from scaler.net.versions import own_hello  # noqa: PLC0415
    from scaler.object_storage.client import StorageClient  # noqa: PLC0415

    if not address:
        raise UsageError("the scheduler has named no object storage: it takes no large arguments and objects")

    def connect(on_events: OnEvents) -> Connector:
        return SocketConnector(address, peer=peer, hello=own_hello(Role.CLIENT), on_events=on_events)

    return StorageClient(connect, address=address)


def _no_processor() -> str:
    module = sys.modules.get("scaler.worker.processor.context")
    refusal: str = "" if module is None else module.refusal()
    return refusal or "a client outside of a task needs the scheduler's address: Client(address=...)"


def _opened(transports: ClientTransports, timeout_seconds: float) -> ClientLoop:
    loop = ClientLoop(new_peer_id(), transports, timeout_seconds)
    _loops.add(loop)
    return loop


def _at_exit() -> None:
    """End what the program did not end itself: its threads must not outlive the interpreter."""
    for loop in list(_loops):
        loop.close("the program ends")


def _after_fork() -> None:
    for loop in list(_loops):
        loop.forked()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)

"""How a client reaches the scheduler: over a socket, or inside a task through the task's worker.

And what follows from the process in which it does: a task lends its slot while it waits, a forked child has no clients,
and the end of the program ends them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scaler.client.loop import ClientLoop, OnEvents
from scaler.errors import UsageError
from scaler.ids import cache_owner, session_peer_id
from scaler.net.connection import Connector
from scaler.processes import after_fork
from scaler.protocol.messages import ClientDetails, Role, Server, Welcome

if TYPE_CHECKING:
    from scaler.net.access import Access
    from scaler.object_storage.client import StorageClient
    from scaler.worker.processor.context import ProcessorContext

POLL_SECONDS = 0.02
IDLE_SHARE = 0.25
"""A process that uses less of a CPU than this, and whose main thread sleeps, waits."""
BUSY_SHARE = 0.5
"""A process that uses more of a CPU than this works again. So does one that finds no CPU to run on."""

QUIET_VARIABLE = "SCALER_QUIET"
"""Any value keeps clients from printing which cluster they use, and which tasks they drop."""

_loops: WeakSet[ClientLoop] = WeakSet()
_lock = threading.RLock()
_nested: dict[int, ClientLoop] = {}
_watches: dict[int, SlotWatch] = {}


def processor() -> ProcessorContext | None:
    """Return the context of the processor that this code runs in, None outside of tasks."""
    module = sys.modules.get("scaler.worker.processor.context")  # a processor has imported it
    if module is None:
        return None
    context: ProcessorContext | None = module.current()
    return context


def is_inside_task() -> bool:
    """Return True when this code runs in a task, also in one that can have no clients."""
    module = sys.modules.get("scaler.worker.processor.context")
    return processor() is not None or (module is not None and bool(module.refusal))


def open_loop(
    address: str,
    name: str,
    timeout_seconds: float,
    access: Access,
    session: str = "",
    ended: Callable[[], object] = lambda: None,
) -> ClientLoop:
    """Connect to the scheduler at an address. session: name of a durable session, or empty. ended: see ClientLoop.

    Raises UsageError, UnreachableError or RefusedError.
    """
    from scaler.net.connector import SocketConnector  # noqa: PLC0415 (clients inside tasks need no sockets)
    from scaler.net.versions import own_hello  # noqa: PLC0415

    if session:
        access = _of_session(access, address)

    def connect(peer: bytes, on_events: OnEvents) -> Connector:
        hello = own_hello(Role.CLIENT, ClientDetails(name, session))
        return SocketConnector(
            address,
            peer=peer,
            hello=hello,
            on_events=on_events,
            keys=access.to(Server.SCHEDULER, address),
            uses_local=access.uses_local,
            compression=access.compression,
        )

    key = access.credential.name if access.credential is not None else ""
    return _opened(
        connect,
        partial(_connect_storage, Role.CLIENT, access, timeout_seconds),
        address,
        timeout_seconds,
        name=name,
        session_id=session_peer_id(key, session) if session else b"",
        cache_owner=cache_owner(key),
        ended=ended,
    )


def _of_session(access: Access, address: str) -> Access:
    """Return how the client of a durable session authenticates: by its key also on the servers' machine.

    A session belongs to a key, and the local transport tells the server's user instead. A server that runs with keys of
    its own run does not know the credential.
    """
    if access.credential is None:
        return access
    from scaler.security.run import find  # noqa: PLC0415 (of clients with a credential)

    return access._replace(uses_local=False) if find(address) is None else access._replace(credential=None)


def nested_loop(timeout_seconds: float) -> ClientLoop:
    """Return the one loop of all clients inside this processor. Raises UsageError where a task can have none."""
    context = processor()
    if context is None:
        raise UsageError(sys.modules["scaler.worker.processor.context"].refusal)
    with _lock:
        loop = _nested.get(os.getpid())
        if loop is None or loop.futures.closed is not None:
            from scaler.client.nested import NestedConnector  # noqa: PLC0415 (of tasks, whose workers run on Linux)
            from scaler.worker.access import own_access  # noqa: PLC0415

            def connect_storage(welcome: Welcome, peer: bytes) -> StorageClient:
                # The credential is read here: most clients inside tasks store nothing.
                return _connect_storage(Role.WORKER, own_access(context.config), timeout_seconds, welcome, peer)

            connect = partial(NestedConnector, context)
            loop = _opened(connect, connect_storage, "this task's worker", timeout_seconds)
            _nested[os.getpid()] = loop
        return loop


def uploaded_code() -> bytes:
    """Return the archive of the modules that the client of the running task has uploaded; empty for none."""
    context = processor()
    return b"" if context is None else context.uploaded_code()


class SlotWatch:
    """Notices that a task waits for its own tasks in another way than through their futures, and lends its slot.

    A task may wait for a lock, a queue or a future of another kind that a callback serves, or poll whether its tasks
    have ended. When such tasks have all the slots, theirs never run. So a thread polls: a task that has unfinished
    tasks and hardly uses the CPU waits for them. One per processor that has clients; it sleeps while they have nothing
    unfinished.
    """

    def __init__(self, slot: ProcessorContext) -> None:
        self._slot = slot
        self._clients: set[Callable[[], bool]] = set()
        self._submitted = threading.Event()
        self._resumed = threading.Event()
        slot.on_resume.append(self._resumed.set)
        self._state = Path(f"/proc/self/task/{os.getpid()}/stat")  # of the main thread, which runs the tasks
        threading.Thread(target=self._run, name="scaler-slot-watch", daemon=True).start()

    def submitted(self, has_unfinished: Callable[[], bool]) -> None:
        """Watch while a client has unfinished tasks. Safe to call from any thread."""
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
            if self._slot.is_waiting:  # for a future, which lends the slot by itself
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
            self._clients.discard(client)  # before the question: a client that submits after it is added again
            if client():
                self._clients.add(client)
        return bool(self._clients)


def _cpu_seconds() -> float:
    """Return what this process has used, without the calling thread."""
    return time.process_time() - time.thread_time()


def _opened(
    connect: Callable[[bytes, OnEvents], Connector],
    connect_storage: Callable[[Welcome, bytes], StorageClient],
    address: str,
    timeout_seconds: float,
    **options: Any,
) -> ClientLoop:
    context = processor()
    if context is not None:
        with _lock:
            watch = _watches.get(context.pid) or _watches.setdefault(context.pid, SlotWatch(context))
        options |= {"blocked": context.blocked, "submitted": watch.submitted, "may_rest": lambda: context.is_suspended}
    loop = ClientLoop(address, connect, connect_storage, timeout_seconds, **options)
    _loops.add(loop)
    return loop


def _connect_storage(
    role: Role, access: Access, timeout_seconds: float, welcome: Welcome, peer: bytes
) -> StorageClient:
    """Return a client of the scheduler's object storage on the running loop. role: inside a task, that of its worker.

    Raises UsageError when the scheduler has none.
    """
    from scaler.object_storage.client import StorageClient  # noqa: PLC0415

    if not welcome.object_storage_address:
        raise UsageError("the scheduler has named no object storage: it takes no large arguments and objects")
    address = welcome.object_storage_address
    return StorageClient(address, peer, role, access, owner_token=welcome.owner_token, timeout_seconds=timeout_seconds)


def open_loops() -> list[ClientLoop]:
    return list(_loops)


def say(text: str) -> None:
    """Print a line to stderr. A program without a terminal or console may have no stderr."""
    if sys.stderr is not None and not os.environ.get(QUIET_VARIABLE):
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"scaler: {text}\n")
            sys.stderr.flush()


def say_unfinished(loop: ClientLoop) -> None:
    """Print how many tasks a client of a program drops; those of a client inside a task are not the program's."""
    if processor() is None and (text := loop.describe_unfinished()):
        say(text)


def _at_exit() -> None:
    """End what the program did not end itself: its threads must not outlive the interpreter."""
    for loop in open_loops():
        say_unfinished(loop)
        loop.close("the program ends")


def _after_fork() -> None:
    for loop in open_loops():
        loop.futures.forked()


atexit.register(_at_exit)
after_fork(_after_fork)

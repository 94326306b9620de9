"""A connector on the running event loop: a fresh connection for every attempt, local or over ZeroMQ.

`Shell` performs the commands of a core, for connectors and listeners, over sockets and in memory alike.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scaler.config.addresses import check_server_address
from scaler.errors import RefusedError, UnreachableError
from scaler.ids import PEER_ID_BYTES
from scaler.net.connection import ConnectorEvent, OutboxLimits
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.local import LocalTransport, connect_local
from scaler.net.transport import (
    LINGER_SECONDS,
    CloseRequested,
    Command,
    Connection,
    Counters,
    Cut,
    Deliver,
    Dial,
    Input,
    LinkLost,
    LinkOpened,
    Transmit,
    WritingChanged,
)
from scaler.protocol.messages import Hello, Message, Welcome
from scaler.protocol.session import SESSION_ID_BYTES, Buffer, Descriptor

if TYPE_CHECKING:
    from scaler.net.zmq_transport import Context, ZmqConnection


class _Core(Protocol):
    counters: Counters
    wake_at: float

    def step(self, inputs: Sequence[Input], now: float) -> list[Any]: ...


_CoreT = TypeVar("_CoreT", bound=_Core)


class Shell(Generic[_CoreT]):
    """Steps a core with what has happened, performs its commands, and gives its events to the component.

    Whatever the component sends while it handles events is transmitted once, at the end of the iteration.
    """

    def __init__(self, core: _CoreT, on_events: Callable[[list[Any]], None], clock: Callable[[], float]) -> None:
        self._core = core
        self._on_events = on_events
        self._clock = clock
        self._inputs: list[Input] = []
        """Inputs of the next step that come from this shell."""
        self._in_iteration = False
        self._closed = False

    @property
    def counters(self) -> Counters:
        """What went wrong so far."""
        return self._core.counters

    def _iterate(self, now: float) -> bool:
        """Step until there is nothing to do at this time; return whether there was any command."""
        did_anything = False
        step = self._core.step
        again = not self._closed
        self._in_iteration = True
        try:
            while again:
                inputs, self._inputs = self._inputs, []
                again = False
                for command in step(inputs, now):
                    did_anything = True
                    if isinstance(command, Transmit):
                        if not command.link.transmit(command.envelopes):
                            self._inputs.append(WritingChanged(command.link, is_blocked=True))
                    elif isinstance(command, Deliver):
                        again = True
                        self._on_events(command.events)
                    else:
                        self._perform(command, now)
                if self._closed:
                    break
                again = again or bool(self._inputs)
        finally:
            self._in_iteration = False
        return did_anything

    def _perform(self, command: Command, _now: float) -> None:
        if isinstance(command, Cut):
            command.link.cut()


class Wakeups:
    """Calls `wake` on an event loop: once after any number of `soon`, at the time of `at`, and for descriptors."""

    __slots__ = ("_handle", "_loop", "_timer", "_watched", "due_at", "wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self.wake = wake
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        # uvloop's handle of a time that has passed cannot be asked for it.
        self.due_at = math.inf
        self._watched: set[int] = set()

    def watch(self, descriptor: int, readable: Callable[[], None] | None = None) -> None:
        """Call `readable`, or wake, whenever this descriptor is readable."""
        self._loop.add_reader(descriptor, readable or self.wake)
        self._watched.add(descriptor)

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None:
        """Wake when this descriptor is writable, or stop doing so."""
        if is_wanted:
            self._loop.add_writer(descriptor, self.wake)
        else:
            self._loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def soon(self, seconds: float = 0.0) -> None:
        """Wake in the next iteration of the loop, or at the latest when this time has passed."""
        if seconds:
            self.at(self._loop.time() + seconds)
        elif self._handle is None:
            self._handle = self._loop.call_soon(self._run_soon)

    def at(self, when: float) -> None:
        """Wake at this time of the loop's clock, or at an earlier one that was asked for before."""
        # Moving a timer on at every iteration would cost more than the idle wakeup when it fires.
        if when >= self.due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due_at = when
        self._timer = self._loop.call_at(when, self._run_timer)

    def close(self) -> None:
        """Wake no more."""
        for descriptor in list(self._watched):
            self.unwatch(descriptor)
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()

    def _run_soon(self) -> None:
        self._handle = None
        self.wake()

    def _run_timer(self) -> None:
        self._timer, self.due_at = None, math.inf
        self.wake()


class ConnectorShell(Shell[ConnectorCore]):
    """What connectors over sockets and in memory share; see `connection.Connector` for what has no docstring."""

    def __init__(
        self, core: ConnectorCore, on_events: Callable[[list[ConnectorEvent]], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(core, on_events, clock)
        self._transport: Connection | None = None

    @property
    def peer(self) -> bytes:
        return self._core.peer

    @property
    def connected(self) -> bool:
        return self._core.phase is Phase.CONNECTED

    @property
    def passes_descriptors(self) -> bool:
        return self._transport is not None and self._transport.passes_descriptors

    @property
    def welcome(self) -> Welcome | None:
        """The server's last Welcome, also after a break."""
        return self._core.welcome

    @property
    def last_error(self) -> str:
        return self._core.last_error

    def outbox_bytes(self) -> int:
        return self._core.outbox_bytes

    def close(self, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        was_connected, transport = self.connected, self._transport
        commands = self._core.step([CloseRequested(reason)], self._clock())
        if transport is None:
            return
        # A local connection delivers the Hello at once, so a Goodbye must follow it even before the Welcome.
        if was_connected or isinstance(transport, LocalTransport):
            for command in commands:
                if isinstance(command, Transmit):
                    transport.transmit(command.envelopes)
            transport.close(LINGER_SECONDS)
        else:
            transport.cut()
        self._transport = None

    def _perform(self, command: Command, now: float) -> None:
        if isinstance(command, Dial):
            try:
                self._transport = self._dial()
            except OSError as error:
                self._inputs.append(LinkLost(None, str(error)))
            else:
                self._inputs.append(LinkOpened(self._transport))
        else:
            super()._perform(command, now)
            if isinstance(command, Cut):
                self._transport = None

    def _dial(self) -> Connection:
        """Return a new connection to the server, or an attempt at one. Raises OSError."""
        raise NotImplementedError


class SocketConnector(ConnectorShell):
    """See `connection.Connector`. Lives on the loop that runs when it is made, and belongs to its thread.

    Peers other than workers and worker managers need not send heartbeats: the connector does. `Received.peer` and the
    like hold the connector's own peer id.
    """

    def __init__(
        self,
        address: str,
        *,
        peer: bytes,
        hello: Hello,
        on_events: Callable[[list[ConnectorEvent]], None],
        outbox: OutboxLimits | None = None,
        io_threads: int = 1,
    ) -> None:
        """Begin to connect. on_events is called from the loop, never from here. hello.resume is set by the connector.

        io_threads: of the process's ZeroMQ context, when this is the first to use it. Raises UsageError when the
        address is malformed.
        """
        self.address = check_server_address(address)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        session_id = peer + os.urandom(SESSION_ID_BYTES - PEER_ID_BYTES)
        jitter = random.Random(session_id).random  # noqa: S311 (spreads attempts, hides nothing)
        core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self._loop.time(), jitter)
        super().__init__(core, on_events, self._loop.time)
        self._io_threads = io_threads
        self._zmq_context: Context | None = None
        self._tries_local = True
        self._waiters: list[asyncio.Future[None]] = []
        self._wakeups = Wakeups(self._loop, self._wake)
        self._wakeups.soon()

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        if not self._closed:
            self._core.send(message, attachments, descriptors)
            if not self._in_iteration:
                self._wakeups.soon()

    async def wait_connected(self, timeout_seconds: float) -> Welcome:
        """Return the Welcome as soon as there is a connection.

        Raises UnreachableError when there is none in time, or when the connector is closed, and RefusedError when the
        server refuses this peer.
        """
        begun = self._loop.time()
        while not self.connected:
            if self._core.phase is Phase.STOPPED and not self._closed:
                raise RefusedError(f"{self.address} refused this peer: {self._core.last_error}")
            left = begun + timeout_seconds - self._loop.time()
            if left <= 0 or self._closed:
                waited = self._loop.time() - begun
                raise UnreachableError(
                    f"no answer from {self.address} within {waited:.1f} s ({self._core.last_error}): "
                    f"is it running, and is the address right?"
                )
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
            self._waiters.remove(waiter)
        welcome = self._core.welcome
        assert welcome is not None, "connected by a Welcome"
        return welcome

    def close(self, reason: str = "") -> None:
        if self._closed or self._pid != os.getpid():
            return
        super().close(reason)
        self._wakeups.close()
        if self._zmq_context is not None:
            from scaler.net.zmq_transport import release_context  # noqa: PLC0415 (imported already)

            release_context(self._zmq_context)
        self._wake_waiters()

    def _wake(self) -> None:
        now = self._loop.time()
        if self._transport is not None:
            self._transport.receive(self._inputs)
        was_connected = self._core.phase
        self._iterate(now)
        if not self._closed:
            if self._core.wake_at < self._wakeups.due_at:
                self._wakeups.at(self._core.wake_at)
            if self._waiters and self._core.phase is not was_connected:
                self._wake_waiters()

    def _perform(self, command: Command, now: float) -> None:
        if isinstance(command, Cut):
            # Where the process behind the local listener does not welcome this peer, the server itself may.
            self._tries_local = command.was_welcomed or not isinstance(self._transport, LocalTransport)
        super()._perform(command, now)

    def _dial(self) -> Connection:
        try:
            local = connect_local(self.address, self._wakeups) if self._tries_local else None
            return local or self._connect_zmq()
        except OSError as error:  # the process has no descriptor left, and may have one later
            raise OSError(f"this process could not make a connection: {error}") from error

    def _connect_zmq(self) -> ZmqConnection:
        # Peers on the server's host need no ZeroMQ, whose import takes 20 ms and several megabytes.
        from scaler.net.zmq_transport import ZmqConnection, acquire_context  # noqa: PLC0415

        if self._zmq_context is None:
            self._zmq_context = acquire_context(self._io_threads)
        return ZmqConnection(self._zmq_context, self.address, self._wakeups)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Closable(Protocol):
    def close(self) -> None: ...


_LivingT = TypeVar("_LivingT", bound=_Closable)


class LoopThread(Generic[_LivingT]):
    """A thread with an event loop, on which one object is made, lives, and is closed."""

    def __init__(self, name: str, make: Callable[[], _LivingT]) -> None:
        """Start the thread. Raises what `make` raises there."""
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        made: Future[_LivingT] = Future()

        async def main() -> None:
            try:
                value = make()
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
                made.set_exception(error)
                return
            made.set_result(value)
            await self._stop.wait()
            value.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()
        try:
            self.value = made.result()
        except BaseException:
            self._thread.join()
            raise

    def close(self) -> None:
        """Close the object and end the thread."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

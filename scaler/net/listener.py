"""A listener on the running event loop: ZeroMQ for all peers, and a local listener for those of its host."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence

from scaler.config.addresses import local_address
from scaler.net.address import advertised
from scaler.net.connection import Admit, ListenerEvent, OutboxLimits
from scaler.net.connector import Shell, Wakeups
from scaler.net.listener_core import ListenerCore
from scaler.net.local import LocalListener, local_name
from scaler.net.transport import (
    LINGER_SECONDS,
    CloseRequested,
    Command,
    Report,
    SessionEndRequested,
    Transmit,
)
from scaler.net.zmq_transport import ZmqListener
from scaler.protocol.messages import Goodbye, Message, Refused, Server
from scaler.protocol.session import Buffer, Descriptor

REPEAT_SECONDS = 60.0
"""After a line was logged, the next of its kind follows no earlier; those between are counted."""

_log = logging.getLogger(__name__)


class ListenerShell(Shell[ListenerCore]):
    """What listeners over sockets and in memory share; see `connection.Listener` for what has no docstring."""

    def malformed_of(self, peer: bytes) -> int:
        """Return how many messages of this peer's session were dropped as malformed or not allowed."""
        return self._core.malformed_of(peer)

    def outbox_bytes(self, peer: bytes) -> int:
        return self._core.outbox_bytes(peer)

    def send(
        self,
        peer: bytes,
        message: Message,
        attachments: Sequence[Buffer] = (),
        descriptors: Sequence[Descriptor] = (),
    ) -> None:
        if not self._closed:
            self._core.send(peer, message, attachments, descriptors)
            if not self._in_iteration:
                self._wake_soon()

    def forget(self, peer: bytes, reason: Refused | Goodbye | None = None) -> None:
        if not self._closed:
            self._inputs.append(SessionEndRequested(peer, reason))
            if not self._in_iteration:
                self._wake_soon()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for command in self._core.step([*self._inputs, CloseRequested("the server ends")], self._clock()):
                if isinstance(command, Transmit):
                    command.link.transmit(command.envelopes)
            self._close_transports()

    def _wake_soon(self) -> None:
        """Have the next iteration begin soon."""

    def _close_transports(self) -> None:
        raise NotImplementedError


class SocketListener(ListenerShell):
    """See `connection.Listener`. Lives on the loop that runs when it is made, and belongs to its thread."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        server_kind: Server | str,
        admit: Admit,
        on_events: Callable[[list[ListenerEvent]], None],
        outbox: OutboxLimits | None = None,
        io_threads: int = 1,
        has_local_listener: bool = False,
    ) -> None:
        """Bind to all addresses. on_events is called from the loop, never from here.

        io_threads: of the process's ZeroMQ context, when this is the first to use it. has_local_listener: peers of this
        host and user need no ZeroMQ. Raises UsageError when an address is malformed, taken or not of this host; nothing
        stays bound then.
        """
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        super().__init__(ListenerCore(Server(server_kind), admit, outbox or OutboxLimits()), on_events, self._loop.time)
        self._wakeups = Wakeups(self._loop, self._wake)
        self._zmq = ZmqListener(addresses, io_threads, self._wakeups)
        self.addresses = self._zmq.addresses
        """The addresses as bound: a port 0 is replaced by the real one."""
        # Behind a wildcard, peers of this host may know it by either of these.
        known = {name(address) for address in self.addresses for name in (local_address, advertised)}
        has_local_listener = has_local_listener and local_name(self.addresses[0]) is not None
        self._local = LocalListener(known, self._wakeups) if has_local_listener else None
        self._unidentified = _RateLimitedLog(logging.INFO)  # one of ours that was killed at its start looks the same
        self._refusals = _RateLimitedLog(logging.WARNING)

    def close(self) -> None:
        if self._pid == os.getpid():
            super().close()

    def _close_transports(self) -> None:
        if self._local is not None:
            self._local.close(LINGER_SECONDS)
        self._wakeups.close()
        self._zmq.close(LINGER_SECONDS)
        for log in (self._unidentified, self._refusals):
            log.flush(self._loop.time())

    def _wake_soon(self) -> None:
        self._wakeups.soon()

    def _wake(self) -> None:
        now = self._loop.time()
        if self._zmq.is_due:
            self._zmq.receive(self._inputs)
        if self._local is not None:
            self._local.receive(self._inputs)
        self._iterate(now)
        if not self._closed:
            if self._zmq.was_used:
                self._zmq.rest()
            if self._core.wake_at < self._wakeups.due_at:
                self._wakeups.at(self._core.wake_at)

    def _perform(self, command: Command, now: float) -> None:
        if isinstance(command, Report):
            log = self._refusals if command.is_refusal else self._unidentified
            text = f"refused a peer: {command.text}" if command.is_refusal else command.text
            flush_at = log.add(f"{', '.join(self.addresses)}: {text}", now)
            if flush_at is not None:
                self._loop.call_at(flush_at, log.flush, flush_at)
        else:
            super()._perform(command, now)


class _RateLimitedLog:
    """Logs one kind of event that may come in any number: the first at once, later ones counted."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._quiet_until = 0.0
        self._count = 0
        self._last = ""

    def add(self, text: str, now: float) -> float | None:
        """Note an event, and log it unless one was logged lately; then return the time for the next `flush`."""
        self._count += 1
        self._last = text
        if now >= self._quiet_until:
            self.flush(now)
            return None
        return self._quiet_until if self._count == 1 else None

    def flush(self, now: float) -> None:
        """Log what was counted since the last line."""
        if self._count:
            self._quiet_until = now + REPEAT_SECONDS
            others = f" (and {self._count - 1} more like this)" if self._count > 1 else ""
            _log.log(self._level, "%s%s", self._last, others)
            self._count = 0

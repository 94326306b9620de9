"""The local transport: envelopes and file descriptors over a unix socket, between processes of one user on one host.

A server opens a *local listener* for its address: an abstract socket, named after address and user, that vanishes with
its process. Any process may use any name, so each side asks the kernel for the other side's user. An envelope on the
stream, in native byte order: size of the body (u32), number of attachments (u16) and of descriptors (u16), the 40-byte
header, the size of each attachment (u32), the body, the attachments. Descriptors accompany the first byte of their
envelope. A read returns descriptors from only one call, and reports dropped descriptors. A read's descriptors therefore
belong to the next envelope with descriptors.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from scaler.config.addresses import dialled
from scaler.errors import ProtocolError
from scaler.net import transport as t
from scaler.net.connection import LOCAL
from scaler.net.kernel import is_scarce
from scaler.protocol.messages import (
    MAX_ATTACHED_BYTES,
    MAX_BATCH_BYTES,
    MAX_CONTROL_BYTES,
    MAX_HELLO_BYTES,
    Attachments,
    Descriptors,
)
from scaler.protocol.session import HEADER_BYTES, MAX_ATTACHMENTS, MAX_DESCRIPTORS, Envelope

BACKLOG = 1024
MAX_ACCEPTED_PER_ITERATION = 32
READ_BYTES = 64 * 1024
"""Bytes per read. A larger envelope gets its own memory."""
MAX_PARTIAL_BYTES = 1024 * 1024 * 1024
"""Memory limit for all incomplete envelopes of a listener. A connection beyond it is cut, and may reconnect."""
SEND_BUFFER_BYTES = 1024 * 1024
_JOIN_BYTES = 16 * 1024
"""Bodies up to this size are joined with heads and neighbors, which is cheaper than more buffers per call."""
_MAX_BUFFERS = 64
_HEAD = struct.Struct(f"=IHH{HEADER_BYTES}s")
_DESCRIPTOR_COUNT = slice(6, 8)
_CREDENTIALS = struct.Struct("=iii")
_IS_SUPPORTED = sys.platform == "linux"
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_TRUNCATED = int(socket.MSG_CTRUNC)
"""An int, because comparing with an enum member costs several microseconds per envelope."""


def local_name(address: str) -> str | None:
    """Return the name of an address's local listener, or None. Another spelling of an address yields another name."""
    if not _IS_SUPPORTED:
        return None
    where = dialled(address).encode()
    return f"\0scaler-{os.geteuid()}-{blake2b(where, digest_size=16).hexdigest()}"


def has_local_listener(address: str) -> bool:
    name = local_name(address)
    if name is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(name)
    except OSError:
        return False
    return True


def connect_local(address: str, watcher: t.Watcher) -> LocalTransport | None:
    """Return a connection to the user's own local listener, or None. Raises OSError if no descriptor is free."""
    name = local_name(address)
    if name is None:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    return _to_same_user(connection, watcher)


def _to_same_user(end: socket.socket, watcher: t.Watcher, memory: PartialBytes | None = None) -> LocalTransport | None:
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.geteuid():
        end.close()
        return None
    return LocalTransport(end, watcher, memory)


class FileDescriptor:
    """An open file descriptor, closed with the last reference to this object."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._number)  # bound early: `os` may be gone at interpreter shutdown


class PartialBytes:
    def __init__(self) -> None:
        self._free_bytes = MAX_PARTIAL_BYTES

    def take(self, size_bytes: int) -> None:
        if size_bytes > self._free_bytes:
            raise ProtocolError(f"all connections together exceed MAX_PARTIAL_BYTES = {MAX_PARTIAL_BYTES}")
        self._free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes


class LocalTransport:
    passes_descriptors = True
    identity = LOCAL
    received_bytes = 0

    def __init__(self, connection: socket.socket, watcher: t.Watcher, memory: PartialBytes | None = None) -> None:
        """memory: the listener's memory budget; None for a connector's end, which trusts the server."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket = connection
        self._watcher = watcher
        self._head = b""
        self._partial = bytearray()
        """Full-size buffer for an incomplete envelope; empty if there is none."""
        self._filled = 0
        self._memory = memory or PartialBytes()
        self._taken_bytes = 0
        self._is_limited = memory is not None
        self._passed: list[list[FileDescriptor]] = []
        self._unsent: deque[tuple[list[memoryview], Descriptors]] = deque()
        self.is_blocked = False
        self._descriptor = connection.fileno()
        watcher.watch(self._descriptor)

    def receive(self, inputs: list[t.Input]) -> None:
        """Append to `inputs`: a limited number of envelopes, and the end of the connection."""
        if self.is_blocked and self._push():
            self.is_blocked = False
            self._watcher.watch_writing(self._descriptor, False)
            inputs.append(t.Unblocked(self))
        partial = self._partial
        reason = "the connection broke"
        try:
            if not partial:
                data, ancillary, flags, _ = self._socket.recvmsg(READ_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
                if ancillary or flags & _TRUNCATED:
                    self._passed.append(_descriptors_in(ancillary))
                if data:
                    self._split(self._head + data if self._head else data, inputs)
                    return
            elif count := self._socket.recv_into(memoryview(partial)[self._filled :]):
                self._filled += count
                if self._filled == len(partial):
                    self._forget_partial()
                    self._split(memoryview(partial).toreadonly(), inputs)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        except ProtocolError as error:
            inputs.append(t.MalformedReceived(self, str(error)))
            reason = f"the program at that address does not speak this protocol: {error}"
        inputs.append(t.LinkLost(self, reason))
        self.cut()

    def _split(self, data: bytes | memoryview, inputs: list[t.Input]) -> None:
        at, size = 0, len(data)
        while size - at >= _HEAD.size:
            body_bytes, attachment_count, descriptor_count, header = _HEAD.unpack_from(data, at)
            if attachment_count or descriptor_count or body_bytes > MAX_HELLO_BYTES:
                self._check(body_bytes, attachment_count, descriptor_count)
            begin = at + _HEAD.size
            sizes: tuple[int, ...] = ()
            if attachment_count:
                layout = struct.Struct(f"={attachment_count}I")
                if begin + layout.size > size:
                    break
                sizes = layout.unpack_from(data, begin)
                begin += layout.size
                if sum(sizes) > MAX_ATTACHED_BYTES:
                    raise ProtocolError(f"attachments of size {sum(sizes)}")
            end = begin + body_bytes + sum(sizes)
            if end > size:
                self._head = b""
                self._memory.take(end - begin)
                self._taken_bytes = end - begin
                self._partial, self._filled = bytearray(end - at), size - at
                self._partial[: self._filled] = data[at:]
                return
            descriptors = self._claim(descriptor_count) if descriptor_count else ()
            at = begin + body_bytes
            body = bytes(data[begin:at])
            attachments: list[memoryview] = []
            for length in sizes:
                attachments.append(memoryview(data[at : at + length]))
                at += length
            inputs.append(t.EnvelopeReceived(self, header, body, attachments or (), descriptors))
        self._head = bytes(data[at:])
        if len(self._passed) > 1:
            raise ProtocolError("descriptors without an envelope")

    def _check(self, body_bytes: int, attachments: int, descriptors: int) -> None:
        is_large = body_bytes > (MAX_CONTROL_BYTES if attachments else MAX_BATCH_BYTES)
        if self._is_limited or is_large or attachments > MAX_ATTACHMENTS or descriptors > MAX_DESCRIPTORS:
            text = f"a body of size {body_bytes}: attachments={attachments} descriptors={descriptors}"
            raise ProtocolError(f"an envelope with {text}")

    def _claim(self, count: int) -> Sequence[FileDescriptor]:
        """Return an envelope's descriptors. Returns none if the kernel dropped some for lack of space."""
        passed = self._passed.pop(0) if self._passed else []
        return passed if len(passed) == count else ()

    def transmit(self, envelopes: Sequence[Envelope]) -> None:
        small: list[bytes] = []
        for header, body, attachments, descriptors in envelopes:
            if not attachments and not descriptors and len(body) <= _JOIN_BYTES:
                small.append(_HEAD.pack(len(body), 0, 0, header))
                small.append(body)
                continue
            if small:
                self._unsent.append(([memoryview(b"".join(small))], ()))
                small = []
            self._unsent.append((_buffers(header, body, attachments, len(descriptors)), descriptors))
        if small:
            data, sent = b"".join(small), 0
            if not self._unsent:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    pass
                except OSError:
                    return  # the next read detects the lost connection
                if sent == len(data):
                    return
            self._unsent.append(([memoryview(data)[sent:]], ()))
        if not self._push() and not self.is_blocked:
            self.is_blocked = True
            self._watcher.watch_writing(self._descriptor, True)

    def _push(self) -> bool:
        try:
            while self._unsent:
                buffers, descriptors = self._unsent[0]
                _send_some(self._socket, buffers, descriptors)
                if buffers:
                    self._unsent[0] = buffers, ()
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            return False
        except OSError:
            self._unsent.clear()  # the next read detects the lost connection
        return True

    def start_session(self, *, compresses: bool) -> None:
        """See `Transport`. Never compresses, because a local socket is faster than compression."""
        del compresses
        self._is_limited = False

    def cut(self) -> None:
        if self._socket.fileno() >= 0:
            self._watcher.unwatch(self._descriptor)
            self._socket.close()
        self._passed.clear()
        self._forget_partial()

    def _forget_partial(self) -> None:
        self._partial = bytearray()
        self._memory.give_back(self._taken_bytes)
        self._taken_bytes = 0

    def close(self, linger_seconds: float) -> None:
        until = time.monotonic() + linger_seconds
        if self._unsent:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            while not self._push() and (left := until - time.monotonic()) > 0:
                poll.poll(left * 1000)
        self.cut()


def _send_some(connection: socket.socket, buffers: list[memoryview], descriptors: Descriptors) -> None:
    """Send part of the buffers, with the descriptors on the first byte, and drop that part. Raises OSError."""
    numbers = array("i", [descriptor.fileno() for descriptor in descriptors])
    try:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
        sent = connection.sendmsg(buffers[:_MAX_BUFFERS], ancillary)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS or not numbers:
            raise
        # The user has too many descriptors in flight: send the envelope without descriptors.
        buffers[0][_DESCRIPTOR_COUNT] = bytes(2)
        sent = connection.sendmsg(buffers[:_MAX_BUFFERS])
    done = 0
    while done < len(buffers) and sent >= len(buffers[done]):
        sent -= len(buffers[done])
        done += 1
    del buffers[:done]
    if sent:
        buffers[0] = buffers[0][sent:]


def _buffers(header: bytes, body: bytes, attachments: Attachments, descriptor_count: int) -> list[memoryview]:
    sizes = [attachment.nbytes if isinstance(attachment, memoryview) else len(attachment) for attachment in attachments]
    head = _HEAD.pack(len(body), len(sizes), descriptor_count, header) + struct.pack(f"={len(sizes)}I", *sizes)
    views = [memoryview(attachment).cast("B") for attachment in attachments if len(attachment)]
    return [memoryview(bytearray(head)), *([memoryview(body)] if body else []), *views]


def _descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[FileDescriptor]:
    found: list[FileDescriptor] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(map(FileDescriptor, numbers))
    return found


_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)


class LocalListener:
    """The local listener of a server: all its connections behind one descriptor."""

    def __init__(self, addresses: Iterable[str], watcher: t.Watcher) -> None:
        """Listen for peers that connect to these addresses. If another process has the name, peers use ZeroMQ."""
        self._poll = select.epoll()
        self._watcher = watcher
        self._listening: dict[int, socket.socket] = {}
        self._transports: dict[int, LocalTransport] = {}
        self._memory = PartialBytes()
        self._starved: list[socket.socket] = []
        for name in {local_name(address) for address in addresses}:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listening.bind(name)  # type: ignore[arg-type]
                listening.listen(BACKLOG)
            except OSError:
                listening.close()
                continue
            listening.setblocking(False)
            self._listening[listening.fileno()] = listening
            # Edge-triggered: a peer that cannot be accepted, because no descriptor is free, must not keep the loop
            # busy. The next event retries.
            self._poll.register(listening, select.EPOLLIN | select.EPOLLET)
        watcher.watch(self._poll.fileno())

    def receive(self, inputs: list[t.Input]) -> None:
        starved, self._starved = self._starved, []
        for listening in starved:
            self._accept(listening, inputs)
        for descriptor, _ in self._poll.poll(0):
            transport = self._transports.get(descriptor)
            if transport is not None:
                transport.receive(inputs)
            elif descriptor in self._listening:
                self._accept(self._listening[descriptor], inputs)

    def _accept(self, listening: socket.socket, inputs: list[t.Input]) -> None:
        for _ in range(MAX_ACCEPTED_PER_ITERATION):
            try:
                accepted, _ = listening.accept()
            except OSError as error:  # no pending connection, or no free descriptor
                if error.errno in {errno.EMFILE, errno.ENFILE} and listening not in self._starved:
                    self._starved.append(listening)
                return
            descriptor = accepted.fileno()
            transport = _to_same_user(accepted, self, self._memory)
            if transport is not None:
                self._transports[descriptor] = transport
                inputs.append(t.LinkOpened(transport, "this host", is_scarce(descriptor)))
        self._poll.modify(listening, select.EPOLLIN | select.EPOLLET)  # re-arms pending events

    def watch(self, descriptor: int) -> None:
        self._poll.register(descriptor, select.EPOLLIN)

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None:
        self._poll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT if is_wanted else select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        del self._transports[descriptor]
        self._poll.unregister(descriptor)

    def close(self, linger_seconds: float) -> None:
        """Wait up to `linger_seconds` in total for delivery, then close everything."""
        until = time.monotonic() + linger_seconds
        for listening in self._listening.values():
            listening.close()
        for transport in list(self._transports.values()):
            transport.close(max(0.0, until - time.monotonic()))
        self._poll.close()

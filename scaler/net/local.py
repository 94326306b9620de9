"""Envelopes over a unix socket: peers of one user on one host speak to each other without ZeroMQ's thread between.

A server that listens at an address also opens a *door* for it: a socket in the kernel's abstract namespace, whose name
follows from the address and the user. It is no file, and gone with its process. Connectors try the door first. Anybody
on the host may take any name, so both sides ask the kernel who the other one is, and want the same user.

An envelope on the stream: size of the body (u32), number of attachments (u32), the 40 bytes of the header, the size of
each attachment (u32), the body, the attachments. In the byte order of the machine, which both ends share.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from scaler.config.addresses import local_address
from scaler.errors import ProtocolError
from scaler.net.address import split_tcp
from scaler.net.connection import Buffer
from scaler.net.envelopes import Taken
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_CHUNK_BYTES
from scaler.protocol.session import HEADER_BYTES, MAX_ATTACHMENTS

READ_BYTES = 64 * 1024
"""What is read at once; an envelope that is not whole then gets memory of its own."""
SEND_BUFFER_BYTES = 1024 * 1024
"""What the kernel may keep for a connection in each direction; it gives less where it is told to."""
_JOIN_BYTES = 16 * 1024
"""Up to this size a body is joined with its head: cheaper than to hand two pieces to the kernel."""
_MAX_PIECES = 64
"""Pieces that the kernel is handed at once."""
_HEAD = struct.Struct(f"=II{HEADER_BYTES}s")
_CREDENTIALS = struct.Struct("=iii")
_HAS_DOORS = sys.platform == "linux"


class Parts(NamedTuple):
    """One received envelope."""

    header: bytes
    body: bytes
    attachments: Sequence[memoryview]


def door_of(address: str) -> str | None:
    """Return the name of the door of an address, None where there are none.

    Who writes the address in another way, such as by the name of the host, does not find it, and uses ZeroMQ.
    """
    if not _HAS_DOORS:
        return None
    found = split_tcp(local_address(address))
    if found is None:
        where = str(Path(address.removeprefix("ipc://")).absolute())
    else:
        where = f"{'127.0.0.1' if found[0] == 'localhost' else found[0]}:{found[1]}"
    return f"\0scaler-{os.geteuid()}-{blake2b(where.encode(), digest_size=16).hexdigest()}"


def connect(door: str) -> Stream | None:
    """Return a connection through a door, or None when it is closed, or opened by another user.

    Raises OSError when this process has no descriptor for it.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(False)
    try:
        link.connect(door)
    except OSError:
        link.close()
        return None
    return stream_to_same_user(link)


def stream_to_same_user(link: socket.socket) -> Stream | None:
    """Return the stream over a connection; close it and return None when its other end belongs to another user."""
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        link.close()
        return None
    return Stream(link)


class Stream:
    """One connection, which never waits. Of an envelope that the kernel takes a part of, it keeps the rest."""

    __slots__ = ("_left", "_partial", "_socket", "_tail")

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket = link
        self._left = b""
        """The beginning of a head."""
        self._partial: _Partial | None = None
        self._tail: list[memoryview] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_tail(self) -> bool:
        """True while a part of an envelope waits to be sent: `push` it when the connection is writable."""
        return bool(self._tail)

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, into: list[Parts]) -> bool:
        """Add envelopes that have come, up to a limit; False when the connection is over.

        Raises ProtocolError for what no peer of ours sends; nothing more can be read then.
        """
        partial = self._partial
        try:
            if partial is None:
                data = self._socket.recv(READ_BYTES)
                if data:
                    self._cut(self._left + data if self._left else data, into)
                return bool(data)
            count = self._socket.recv_into(partial.room())
        except BlockingIOError:
            return True
        except OSError:
            return False
        if count and partial.fill(count):
            self._partial = None
            into.append(partial.whole())
        return bool(count)

    def _cut(self, data: bytes, into: list[Parts]) -> None:
        """Cut envelopes off what was read."""
        at, size = 0, len(data)
        while size - at >= _HEAD.size:
            body_bytes, count, header = _HEAD.unpack_from(data, at)
            if body_bytes > MAX_BATCH_BYTES or count > MAX_ATTACHMENTS:
                raise ProtocolError(f"an envelope with a body of {body_bytes} bytes and {count} attachments")
            begin = at + _HEAD.size
            frames: tuple[int, ...] = (body_bytes,)
            if count:
                sizes = struct.Struct(f"={count}I")
                if begin + sizes.size > size:
                    break
                frames += sizes.unpack_from(data, begin)
                begin += sizes.size
                if max(frames) > MAX_CHUNK_BYTES:
                    raise ProtocolError(f"an attachment of {max(frames)} bytes")
            if begin + sum(frames) > size:
                self._left = b""
                self._partial = _Partial(header, frames, memoryview(data)[begin:])
                return
            at = begin + body_bytes
            body = data[begin:at]
            attachments = []
            for length in frames[1:]:
                attachments.append(memoryview(data[at : at + length]))
                at += length
            into.append(Parts(header, body, attachments or ()))
        self._left = data[at:]

    # -- sending -------------------------------------------------------------------------------------------------

    def transmit(self, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        """Send an envelope. One that has begun to be sent counts as sent, though a part of it waits."""
        if self._tail and not self.push():
            return Taken.BLOCKED
        head = _HEAD.pack(len(body), len(attachments), header)
        if attachments:
            views = [memoryview(attachment).cast("B") for attachment in attachments if len(attachment)]
            head += struct.pack(f"={len(attachments)}I", *map(_size_of, attachments))
            pieces = [memoryview(head), memoryview(body), *views]
        elif len(body) > _JOIN_BYTES:
            pieces = [memoryview(head), memoryview(body)]
        else:
            pieces = [memoryview(head + body)]
        try:
            sent = self._socket.sendmsg(pieces[:_MAX_PIECES]) if len(pieces) > 1 else self._socket.send(pieces[0])
        except BlockingIOError:
            return Taken.BLOCKED
        except OSError:
            return Taken.GONE
        self._tail = pieces
        self._drop(sent)
        return Taken.SENT

    def push(self) -> bool:
        """Send what waits; True when nothing does any more."""
        try:
            while self._tail:
                self._drop(self._socket.sendmsg(self._tail[:_MAX_PIECES]))
        except BlockingIOError:
            return False
        except OSError:
            self._tail.clear()  # that the connection is over shows when it is read
        return True

    def _drop(self, sent: int) -> None:
        tail = self._tail
        done = 0
        while done < len(tail) and sent >= len(tail[done]):
            sent -= len(tail[done])
            done += 1
        del tail[:done]
        if sent:
            tail[0] = tail[0][sent:]

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, timeout_seconds: float) -> None:
        """Send what waits, for no longer than this, and close."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(timeout_seconds)
            for piece in self._tail:
                self._socket.sendall(piece)
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


class _Partial:
    """An envelope of which the head has come. Each of its frames gets its memory when those before it are full."""

    __slots__ = ("_filled", "_frames", "_header", "_sizes")

    def __init__(self, header: bytes, sizes: Sequence[int], begin: memoryview) -> None:
        self._header = header
        self._sizes = sizes
        self._frames = [bytearray(sizes[0])]
        self._filled = 0
        self.fill(0)
        while begin:
            room = self.room()
            count = min(len(room), len(begin))
            room[:count] = begin[:count]
            begin = begin[count:]
            self.fill(count)

    def room(self) -> memoryview:
        """Return the rest of the frame that comes now."""
        return memoryview(self._frames[-1])[self._filled :]

    def fill(self, count: int) -> bool:
        """Note that so many bytes have come into the room; True when they were the last ones."""
        self._filled += count
        while self._filled == len(self._frames[-1]):
            if len(self._frames) == len(self._sizes):
                return True
            self._frames.append(bytearray(self._sizes[len(self._frames)]))
            self._filled = 0
        return False

    def whole(self) -> Parts:
        body, *attachments = self._frames
        views = [memoryview(attachment).toreadonly() for attachment in attachments]
        return Parts(self._header, bytes(body), views or ())


def _size_of(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)

"""A listener's doors for peers of its own host and user (see `local`): all connections behind one descriptor."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Iterable, Sequence

from scaler.errors import ProtocolError
from scaler.net.connection import Buffer
from scaler.net.envelopes import SILENCE_SECONDS, Taken
from scaler.net.listener_core import ListenerCore
from scaler.net.local import Parts, Stream, stream_to_same_user
from scaler.net.repeats import Repeats

BACKLOG = 1024
LINK_BYTES = 256
"""Length of a link's name: one more than a peer that speaks ZeroMQ can choose."""
_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT


class Door:
    """The connections through the doors of one listener. What they bring goes to the listener's core."""

    def __init__(self, names: Iterable[str], core: ListenerCore, strangers: Repeats) -> None:
        """Open the doors. One whose name is taken stays closed, and peers come over ZeroMQ."""
        self._core = core
        self._strangers = strangers
        self._poll = select.epoll()
        self._numbers = itertools.count(1)
        self._doors: dict[int, socket.socket] = {}
        self._streams: dict[bytes, Stream] = {}
        self._links: dict[int, bytes] = {}
        self._silent: dict[bytes, float] = {}
        self._unheard: set[bytes] = set()
        """Links over which no envelope has come."""
        for name in names:
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                door.bind(name)
                door.listen(BACKLOG)
            except OSError:
                door.close()
                continue
            door.setblocking(False)
            self._doors[door.fileno()] = door
            # At its edge: who cannot be accepted for want of descriptors must not keep the loop busy.
            self._poll.register(door, _READ | select.EPOLLET)

    def fileno(self) -> int:
        """Return what is readable while `visit` has something to do."""
        return self._poll.fileno()

    def visit(self, now: float) -> None:
        """Give the core what has come, up to a limit for each connection."""
        for descriptor, event in self._poll.poll(0):
            link = self._links.get(descriptor)
            if link is None:
                self._accept(self._doors[descriptor], now)
                continue
            if event & _WRITE and self._streams[link].push():
                self._poll.modify(descriptor, _READ)
            if event != _WRITE:
                self._read(link, now)

    def _accept(self, door: socket.socket, now: float) -> None:
        while True:
            try:
                accepted, _ = door.accept()
            except OSError:  # there is nobody else, or no descriptor for one more
                return
            stream = stream_to_same_user(accepted)
            if stream is not None:
                link = next(self._numbers).to_bytes(LINK_BYTES, "big")
                self._streams[link] = stream
                self._links[stream.fileno()] = link
                self._silent[link] = now
                self._unheard.add(link)
                self._poll.register(stream, _READ)

    def _read(self, link: bytes, now: float) -> None:
        core = self._core
        arrived: list[Parts] = []
        problem, is_over = "", True
        try:
            is_over = not self._streams[link].receive(arrived)
        except ProtocolError as error:
            problem = str(error)
        if arrived:
            self._unheard.discard(link)
        for parts in arrived:
            core.receive(link, parts.header, parts.body, parts.attachments, now)
        if problem:
            core.malformed(link, problem, now)
        if is_over:
            # The core knows nothing of a link any more whose peer has said goodbye.
            if link in self._unheard and core.is_stranger(link):
                self._strangers.add("a connection of this host ended before anything of this protocol came", now)
            self.cut(link)

    def transmit(self, link: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        """Send an envelope over a connection."""
        stream = self._streams.get(link)
        if stream is None:
            return Taken.GONE
        taken = stream.transmit(header, body, attachments)
        if stream.has_tail or taken is Taken.BLOCKED:
            self._poll.modify(stream, _READ | _WRITE)
        return taken

    def cut(self, link: bytes) -> None:
        """Close a connection, and tell the core."""
        stream = self._streams.pop(link, None)
        if stream is not None:
            self._silent.pop(link, None)
            self._unheard.discard(link)
            del self._links[stream.fileno()]
            self._poll.unregister(stream)
            stream.close()
            self._core.broken(link)

    def cut_silent(self, now: float) -> None:
        """Close connections that have brought no session for too long."""
        while self._silent and (at := self.next_at()) is not None and at <= now:
            link = next(iter(self._silent))
            del self._silent[link]
            if not self._core.has_session(link):
                self.cut(link)

    def next_at(self) -> float | None:
        """Return when `cut_silent` has something to do."""
        return next((since + SILENCE_SECONDS for since in self._silent.values()), None)

    def close(self, linger_seconds: float) -> None:
        """Send what waits, for no longer than this in all, and close everything."""
        until = time.monotonic() + linger_seconds
        for door in self._doors.values():
            door.close()
        for stream in self._streams.values():
            stream.finish(max(0.0, until - time.monotonic()))
        self._poll.close()

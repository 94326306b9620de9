"""How descriptors of shared memory travel: beside the messages, over a unix socket in the abstract namespace.

So nothing lies in a file system, whoever dies. A peer is let in when it can connect at all, has the storage's user id,
and says the word that the storage told it in its Welcome. Whoever cannot do that puts and gets frames. Each descriptor
goes ahead of the message that is about it, under the same request number; when one is not there as its message comes,
it was lost, and frames are used instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import struct
import sys
import weakref
from collections.abc import Sequence

from scaler.object_storage.shared_memory import SharedMemory, is_supported

if sys.platform == "linux":
    import resource

MAX_MEMORIES = 30_000
"""Memory files of a storage; then it takes frames. It may have to map each of them: Linux allows 65,530 mappings."""
MAX_UNTAKEN = 1_000
"""Descriptors of one peer whose messages have not come yet."""
MOST_AT_THE_DOOR = 4096
"""Peers that have not been let in yet; the system may allow less."""
BUFFER_BYTES = 1024 * 1024
"""Room for descriptors that wait in a socket, some hundred bytes each; the system may allow less."""
_REQUEST_BYTES = 8
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_PEER_BYTES = 8
_WORD_BYTES = 16


class DescriptorChannel:
    """One end of a peer's connection for descriptors. Never waits."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.is_open = True
        self._received: dict[int, int] = {}  # descriptors by request
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def give(self, request: int, memory: SharedMemory) -> None:
        """Send a descriptor. One that does not go through at once is left out: the other side uses frames then."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.end, [request.to_bytes(_REQUEST_BYTES, "little")], [memory.descriptor])

    def take(self, request: int, sizes: Sequence[int]) -> SharedMemory | None:
        """Return the memory that came under this request; None when none did, or not one of such parts."""
        self.drain()
        descriptor = self._received.pop(request, None)
        try:
            return None if descriptor is None else SharedMemory(descriptor, sizes)
        except ValueError:
            return None

    def drain(self) -> None:
        """Take in the descriptors that have come; see whether the other end is still there."""
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        while self.is_open:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.end, _REQUEST_BYTES, 1, flags)
            except BlockingIOError:
                return
            except ConnectionError:
                data, descriptors = b"", []
            self.is_open = bool(data)
            request = int.from_bytes(data, "little")
            for descriptor in descriptors:
                if request in self._received or len(self._received) >= MAX_UNTAKEN:
                    os.close(descriptor)
                else:
                    self._received[request] = descriptor

    def close(self) -> None:
        """Close it with what has come and was not taken. Harmless when repeated."""
        self.is_open = False
        self.end.close()
        received, self._received = self._received, {}
        for descriptor in received.values():
            os.close(descriptor)


def join(invitation: str, peer: bytes) -> DescriptorChannel | None:
    """Return this peer's channel to the storage that so invited it in its Welcome; None when that is out of reach."""
    name, _, word = invitation.partition("/")
    if not name or not is_supported():
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError, ValueError):  # it is on another host or in another container, or has no room
        end.setblocking(False)
        end.connect("\0" + name)
        end.send(peer + bytes.fromhex(word))
        if _user_of(end) == os.geteuid():
            return DescriptorChannel(end)
    end.close()
    return None


def _user_of(end: socket.socket) -> int:
    user: int = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return user


class DescriptorDoor:
    """The storage's end: the channels of all peers that came in. Belongs to the running loop.

    A peer is let in when a message comes for which that matters, or another peer. It has at most one channel, its last.
    Half of the descriptors that the process may have are left for connections.
    """

    def __init__(self) -> None:
        """Raises OSError when there can be no such socket."""
        self._loop = asyncio.get_running_loop()
        self._key = secrets.token_bytes(_WORD_BYTES)
        self._name = f"scaler-{secrets.token_hex(_WORD_BYTES)}"
        self._strangers: list[socket.socket] = []
        self._channels: dict[bytes, DescriptorChannel] = {}
        self._memories: weakref.WeakSet[SharedMemory] = weakref.WeakSet()
        self._most_memories = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, MAX_MEMORIES)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listening.setblocking(False)
            self._listening.bind("\0" + self._name)
            self._listening.listen(MOST_AT_THE_DOOR)
        except BaseException:
            self._listening.close()
            raise

    def invite(self, peer: bytes) -> str:
        """Return what a peer needs to come in: for its Welcome."""
        self._let_in()  # those before it, so that the ones that left again do not fill the queue at the door
        return f"{self._name}/{self._word(peer).hex()}"

    def give(self, peer: bytes, request: int, memory: SharedMemory) -> None:
        """Send a peer the descriptor of what it asked for in this request, if it is here."""
        channel = self._channel(peer)
        if channel is not None:
            channel.give(request, memory)

    def take(self, peer: bytes, request: int, sizes: Sequence[int]) -> SharedMemory | None:
        """Return the memory that a peer puts with this request; None when it did not come, or there is no room."""
        channel = self._channel(peer)
        memory = None if channel is None else channel.take(request, sizes)
        if memory is None or len(self._memories) >= self._most_memories:
            return None
        self._memories.add(memory)
        return memory

    def dismiss(self, peer: bytes) -> None:
        """Close a peer's channel."""
        channel = self._channels.pop(peer, None)
        if channel is not None:
            self._loop.remove_reader(channel.end)
            channel.close()

    def close(self) -> None:
        """Close everything. Harmless when repeated."""
        self._listening.close()
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()
        for peer in list(self._channels):
            self.dismiss(peer)

    def _word(self, peer: bytes) -> bytes:
        return hashlib.blake2b(peer, digest_size=_WORD_BYTES, key=self._key).digest()

    def _channel(self, peer: bytes) -> DescriptorChannel | None:
        self._let_in()  # it spoke at the door, perhaps for a second time, before it said the message that is at hand
        return self._channels.get(peer)

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # nobody is left, or there are no descriptors: they wait, and use frames
            while True:
                self._strangers.append(self._listening.accept()[0])
        self._strangers = [stranger for stranger in self._strangers if not self._introduce(stranger)]

    def _introduce(self, stranger: socket.socket) -> bool:
        """Let a stranger in, or send it away; False: it has said nothing yet."""
        stranger.setblocking(False)
        if _user_of(stranger) != os.geteuid():  # before it says anything: one that never does would stay
            stranger.close()
            return True
        try:
            said = stranger.recv(_PEER_BYTES + _WORD_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        peer, word = said[:_PEER_BYTES], said[_PEER_BYTES:]
        if not hmac.compare_digest(word, self._word(peer)):
            stranger.close()
            return True
        self.dismiss(peer)
        channel = self._channels[peer] = DescriptorChannel(stranger)
        self._loop.add_reader(stranger, self._readable, peer, channel)
        return True

    def _readable(self, peer: bytes, channel: DescriptorChannel) -> None:
        channel.drain()
        if not channel.is_open:
            self.dismiss(peer)

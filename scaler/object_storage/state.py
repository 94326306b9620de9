"""What the storage knows of objects, uploads, waiting gets and peers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scaler.net.connection import Received
from scaler.protocol.messages import MAX_CHUNK_BYTES, Message, Role


class Memory(Protocol):
    """All of an object in shared memory: `shared_memory.SharedMemory` is one. Freed with its last reference."""

    def pieces(self) -> list[memoryview]:
        """Return the bytes as pieces for messages."""


@dataclass(frozen=True, slots=True)
class ReceivedMemory(Received):
    """A shared PutObject whose descriptor has come: memory holds the very parts that the message names."""

    memory: Memory | None = None


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one object. names: how many ids stand for them; at zero they are freed.

    What is in shared memory has its pieces from the first reader on that cannot share it.
    """

    parts: list[int]
    pieces: list[memoryview]
    size_bytes: int
    memory: Memory | None = None
    names: int = 0

    def free(self) -> None:
        """Let go of the bytes, although the body itself may still wait to be sent."""
        self.pieces = []
        self.memory = None


@dataclass(slots=True, eq=False)
class Stored:
    """An id that stands for a whole object. putter: the peer that put or linked it."""

    body: Body
    putter: bytes


@dataclass(slots=True, eq=False)
class Upload:
    """An object that is not whole yet, of one peer. Its whole size counts as used memory from its first piece on."""

    parts: list[int]
    size_bytes: int
    pieces: list[memoryview] = field(default_factory=list)
    received_bytes: int = 0


@dataclass(slots=True, eq=False)
class WaitingGet:
    """A get of an object that is not whole yet."""

    peer: bytes
    request: int
    id: bytes
    deadline: float
    shared: bool = False
    answered: bool = False


@dataclass(slots=True, eq=False)
class Sending:
    """An object on its way to one reader."""

    request: int
    body: Body
    shared: bool = False
    next_piece: int = 0
    offset: int = 0

    def next_pieces(self, most_pieces: int) -> list[memoryview]:
        """Return the pieces of the next message: as many as fit into one."""
        taken: list[memoryview] = []
        size = 0
        if self.body.memory is not None and not self.body.pieces:
            self.body.pieces = self.body.memory.pieces()
        for piece in self.body.pieces[self.next_piece : self.next_piece + most_pieces]:
            if taken and size + piece.nbytes > MAX_CHUNK_BYTES:
                break
            taken.append(piece)
            size += piece.nbytes
        return taken


@dataclass(slots=True, eq=False)
class Peer:
    """A session. heard: when it last said anything, on the core's own clock."""

    role: Role
    heard: float
    waiting: dict[WaitingGet, None] = field(default_factory=dict)
    sending: deque[Sending] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Send:
    """Command: send this to a peer, the descriptor of the memory first."""

    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Expire:
    """Command: end the session of a peer that has been silent for longer than its lease."""

    peer: bytes
    text: str


Command = Send | Expire

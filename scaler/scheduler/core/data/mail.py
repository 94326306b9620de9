"""Messages to stores, in the order of decision. Rows of one kind that follow each other share a message."""

from __future__ import annotations

from typing import TypeVar

from scaler.protocol.codec import split
from scaler.protocol.messages import (
    CopyObjects,
    FetchChunks,
    ForgetObjects,
    Message,
    ObjectsUnavailable,
    PushObjects,
    SoleCopies,
)

_Kind = TypeVar("_Kind", bound=Message)
_Ids = TypeVar("_Ids", SoleCopies, PushObjects, ForgetObjects)


class StoreMail:
    """Collects what the stores are to be sent, by their numbers."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Message]] = {}
        """By store."""

    def fetch(self, store: int, identifier: bytes, size_bytes: int, first: int, count: int, source: int) -> None:
        """Have a store fetch a run of chunks from another one."""
        message = self._last(store, FetchChunks)
        if message is None:
            message = FetchChunks([], [], [], [], [])
            self.send(store, message)
        message.ids.append(identifier)
        message.sizes.append(size_bytes)
        message.firsts.append(first)
        message.counts.append(count)
        message.sources.append(source)

    def copy(self, store: int, identifier: bytes, size_bytes: int) -> None:
        """Have a store get a copy of an object, and keep it."""
        message = self._last(store, CopyObjects)
        if message is None:
            message = CopyObjects([], [])
            self.send(store, message)
        message.ids.append(identifier)
        message.sizes.append(size_bytes)

    def unavailable(self, store: int, identifier: bytes, host: str) -> None:
        """Tell a store that no store has an object. host: that with which the last copy was lost, or empty."""
        message = self._last(store, ObjectsUnavailable)
        if message is None or message.host != host:
            message = ObjectsUnavailable([], host)
            self.send(store, message)
        message.ids.append(identifier)

    def name(self, kind: type[_Ids], store: int, identifier: bytes) -> None:
        """Name an object in the next message of this kind to a store."""
        message = self._last(store, kind)
        if message is None:
            message = kind([])
            self.send(store, message)
        message.ids.append(identifier)

    def send(self, store: int, message: Message) -> None:
        self.messages.setdefault(store, []).append(message)

    def _last(self, store: int, kind: type[_Kind]) -> _Kind | None:
        messages = self.messages.get(store)
        last = messages[-1] if messages else None
        return last if isinstance(last, kind) else None

    def drop(self, store: int) -> None:
        """Drop what is meant for a store that has gone."""
        self.messages.pop(store, None)

    def take(self) -> list[tuple[int, Message]]:
        """Return all messages, each small enough to be sent, with the numbers of their stores."""
        collected, self.messages = self.messages, {}
        return [
            (store, part)
            for store, messages in collected.items()
            for message in messages
            for part in (split(message) if hasattr(message, "ids") else (message,))
        ]

"""Messages to stores, in order of decision. Consecutive rows of one type share a message."""

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
    def __init__(self) -> None:
        self.messages: dict[int, list[Message]] = {}

    def fetch(self, store: int, identifier: bytes, size_bytes: int, first: int, count: int, source: int) -> None:
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
        """Make a store fetch a copy of an object and keep it."""
        message = self._last(store, CopyObjects)
        if message is None:
            message = CopyObjects([], [])
            self.send(store, message)
        message.ids.append(identifier)
        message.sizes.append(size_bytes)

    def unavailable(self, store: int, identifier: bytes, host: str) -> None:
        """Report an object as unavailable. host: the host that had the last copy, or empty."""
        message = self._last(store, ObjectsUnavailable)
        if message is None or message.host != host:
            message = ObjectsUnavailable([], host)
            self.send(store, message)
        message.ids.append(identifier)

    def name(self, kind: type[_Ids], store: int, identifier: bytes) -> None:
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
        self.messages.pop(store, None)

    def take(self) -> list[tuple[int, Message]]:
        """Return all messages, split to size, with the numbers of their stores."""
        collected, self.messages = self.messages, {}
        return [
            (store, part)
            for store, messages in collected.items()
            for message in messages
            for part in (split(message) if hasattr(message, "ids") else (message,))
        ]

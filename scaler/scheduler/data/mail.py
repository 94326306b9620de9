"""Messages to stores, in order of decision. Consecutive rows of one type share a message."""

from __future__ import annotations

from scaler.protocol.messages import Message, ObjectsUnavailable, split


class StoreMail:
    def __init__(self) -> None:
        self.messages: dict[int, list[Message]] = {}

    def add(self, kind: type[Message], store: int, *row: bytes | int) -> None:
        """Add a row to the columns of a store's last message, or to a new one if that is of another type."""
        messages = self.messages.setdefault(store, [])
        if not messages or type(messages[-1]) is not kind:
            messages.append(kind(*([] for _ in row)))
        for name, value in zip(kind.__match_args__, row, strict=True):
            getattr(messages[-1], name).append(value)

    def unavailable(self, store: int, identifier: bytes, host: str) -> None:
        """Report an object as unavailable. host: the host that had the last copy, or empty."""
        match self.messages.get(store):
            case [*_, ObjectsUnavailable(ids, last)] if last == host:
                ids.append(identifier)
            case _:
                self.send(store, ObjectsUnavailable([identifier], host))

    def send(self, store: int, message: Message) -> None:
        self.messages.setdefault(store, []).append(message)

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

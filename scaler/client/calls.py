"""What a `map` or `imap` calls with each item: its function as tasks run it, and its arguments as they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaler.client.chunks import Chunk, SerializedChunk
from scaler.errors import ScalerError, SerializationError, UsageError
from scaler.serialization import Serializer, dump_arguments, dump_function, dump_value, load_value, name_of


class Call:
    """What is called with each item. function: what the tasks run, on a chunk of items each. name: what people see."""

    def __init__(self, function: Callable[..., Any], spread: bool, serializer: Serializer | None, verb: str) -> None:
        """Raises UsageError or SerializationError."""
        if not callable(function):
            raise UsageError(f"{verb} needs something to call, and {function!r} is not")
        self.name = name_of(function)
        self.verb = verb
        self.function: Chunk | SerializedChunk
        if serializer is None:
            self.function = Chunk(function, spread)
        else:
            self.function = SerializedChunk(bytes(dump_function(function, serializer)[0]), serializer)
        self.is_plain = serializer is None
        self._spread = spread
        self._serializer = serializer

    def arguments(self, items: list[Any]) -> list[Any]:
        """Return what a chunk's function takes. Raises SerializationError of the user's serializer."""
        if self._serializer is None:
            return items
        return [
            [
                bytes(dump_value(argument, self._serializer, f"argument {position} of {self.name}")[0])
                for position, argument in enumerate(self._spread_out(item), 1)
            ]
            for item in items
        ]

    def blame(self, item: Any, owner: object, error: Exception) -> Exception:
        """Return the error of an item that cannot be sent: the one that a single call with it would meet."""
        try:
            dump_arguments(tuple(self._spread_out(item)), {}, self._serializer, owner, self.name)
        except SerializationError as found:
            return found
        except ScalerError:  # the item came to refer to something that has failed meanwhile
            pass
        return error

    def load(self, value: Any) -> Any:
        """Return an item's value. Raises SerializationError of the user's serializer."""
        return value if self._serializer is None else load_value([value], self._serializer)

    def _spread_out(self, item: Any) -> Any:
        return item if self._spread else (item,)

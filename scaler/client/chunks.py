"""How `map` and `imap` put many small calls into chunks, each of which is one task, and what runs in that task. Pure.

An explicit size is kept. Otherwise the size grows with measurements: a chunk should take about `TARGET_SECONDS`, which
costs no more than that at the end and makes the cost per task small beside it. The size is at most `GROWTH` times a
proven one, so that one quick item does not put a thousand slow ones in a chunk, and few chunks are in flight while the
size is unproven. When no result comes for a while, more are sent: slow items, or many workers, must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scaler.client.chunk_calls import ChunkCalls, ChunkResults, call_each, checked
from scaler.client.item_limits import ItemLimits, call_limited
from scaler.errors import ScalerError, SerializationError, UsageError
from scaler.serialization import (
    Serializer,
    dump_function,
    dump_value,
    load_value,
    name_of,
)
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.separate import Items, PickledFunction
from scaler.serialization.snapshot import Unchanging

TARGET_SECONDS = 0.01
GROWTH = 8
UNPROVEN_CHUNKS = 16
PROBE_TIMEOUT_SECONDS = 0.05
"""After this long without a result, more chunks of an unproven size are sent."""
MAX_CHUNK_ITEMS = 4096
"""More would seldom fit in a message, and the way through the object storage is longer."""


class Chunking:
    """Decides the size of each next chunk of one map or imap."""

    def __init__(self, fixed_size: int | None, now: float) -> None:
        self._fixed = fixed_size
        self._size = 1
        self._proven = 0
        self._seconds_per_item: float | None = None
        self._in_flight = 0
        self._limit = UNPROVEN_CHUNKS
        self.wake_at = now + PROBE_TIMEOUT_SECONDS
        """When to ask again if no result comes."""

    def next_size(self, now: float) -> int:
        """Return how many items the next chunk may have; 0: wait for a result, or until `wake_at`."""
        if self._fixed is not None:
            return self._fixed
        if self._size > self._proven and self._in_flight >= self._limit:
            if now < self.wake_at:
                return 0
            self._limit *= 2
            self.wake_at = now + PROBE_TIMEOUT_SECONDS
        return self._size

    def sent(self) -> None:
        self._in_flight += 1

    def ended(self, items: int, seconds: float | None, now: float) -> None:
        """Learn from a chunk that ended. seconds: what it took on its worker, None when it failed as a whole."""
        self._in_flight -= 1
        self.wake_at = now + PROBE_TIMEOUT_SECONDS
        if seconds is None:
            return
        measured = seconds / items
        old = self._seconds_per_item
        self._seconds_per_item = measured if old is None else max(measured, 0.8 * old + 0.2 * measured)
        fitting = max(1, min(MAX_CHUNK_ITEMS, int(TARGET_SECONDS / max(self._seconds_per_item, 1e-9))))
        self._proven = min(max(self._proven, items), fitting)
        self._size = min(fitting, GROWTH * self._proven)


class MapFunction(Unchanging):
    """The function of a chunk's task: calls a function, pickled when this is made, with each item."""

    def __init__(self, function: PickledFunction, name: str, spread: bool, limits: ItemLimits | None = None) -> None:
        """spread: each item is a tuple of arguments. With a user's serializer, items are lists of serialized ones."""
        self.function = function
        self.__qualname__ = self.name = name
        self.functions: list[Callable[..., Any]] = []
        """The function itself, in the client."""
        self.spread = spread
        self.limits = limits

    def __reduce__(self) -> tuple[Any, ...]:
        return MapFunction, (self.function, self.name, self.spread, self.limits)

    def __call__(self, items: Sequence[Any]) -> ChunkResults:
        """Return the results of a chunk. Raises ItemsFailedError."""
        calls = ChunkCalls(self.function, self.spread, items)
        if self.limits is None or len(items) == 1:  # a call alone has the limits of its task
            return checked(call_each(calls))
        return checked(call_limited(calls, self.limits))

    def calls(self, items: Sequence[Any]) -> Iterator[tuple[Callable[..., Any], Sequence[Any]]]:
        """Return function and arguments of each call, for those who make the calls themselves."""
        calls = ChunkCalls(self.function, self.spread, items)
        return (calls.prepare(position) for position in range(len(items)))

    def without_leaving(self) -> MapFunction:
        """Return the same for a chunk whose limits leave no items to the client."""
        limits = self.limits and self.limits._replace(leaves=False)
        return MapFunction(self.function, self.name, self.spread, limits)


class ItemCall:
    """The call for each item of a `map` or `imap`. function: runs chunks. name: of the user's function."""

    def __init__(
        self,
        function: Callable[..., Any],
        spread: bool,
        serializer: Serializer | None,
        verb: str,
        limits: ItemLimits | None = None,
    ) -> None:
        """spread: each item is a tuple of arguments. limits: of each call. Raises UsageError or SerializationError."""
        if not callable(function):
            raise UsageError(f"{verb} needs something to call, and {function!r} is not")
        self.name = name_of(function)
        self.verb = verb
        pickled = PickledFunction(dump_function(function, serializer), serializer)
        self.function = MapFunction(pickled, self.name, spread, limits)
        self.function.functions.append(function)
        self.has_limits = limits is not None
        self.is_plain = serializer is None
        self._spread = spread
        self._serializer = serializer

    def arguments(self, items: list[Any]) -> Items | list[Any]:
        """Return the argument of a chunk's function. Raises SerializationError of the user's serializer."""
        if self._serializer is None:
            return Items(items) if len(items) > 1 else items
        return [
            [
                bytes(dump_value(argument, self._serializer, f"argument {position} of {self.name}")[0])
                for position, argument in enumerate(self._spread_out(item), 1)
            ]
            for item in items
        ]

    def error_of(self, item: Any, owner: object, error: Exception) -> Exception:
        """Return the error of an item that cannot be sent: the one that a single call with it would raise."""
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

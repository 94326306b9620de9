"""How `map` and `imap` cut many small calls into tasks. Pure; time is an argument.

An explicit size is kept. Otherwise the size grows with what was measured: a chunk should take about
`TARGET_SECONDS`, which costs no more than that at the end and makes the cost per task small beside it. The size is at
most `GROWTH` times one that was seen to be fine, so that one quick item does not put a thousand slow ones in a chunk,
and few chunks are out while their size is unproven. When nothing comes back for a while, more are let out:
slow items, or many workers, must not wait for a measurement.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from scaler.errors import SerializationError
from scaler.serialization import Divisible, Serializer, dump_exception, dump_value, load_function
from scaler.serialization.arguments import check_bytes
from scaler.worker.processor.calling import finish

TARGET_SECONDS = 0.01
GROWTH = 8
UNPROVEN_CHUNKS = 16
PATIENCE_SECONDS = 0.05
MAX_CHUNK_ITEMS = 4096
"""More would seldom fit in a message, and the way through the object storage is longer."""


class Chunker:
    """Decides the size of each next chunk of one map or imap."""

    __slots__ = ("_fixed", "_limit", "_outstanding", "_patience_ends", "_proven", "_seconds_per_item", "_size")

    def __init__(self, fixed_size: int | None, now: float) -> None:
        self._fixed = fixed_size
        self._size = 1
        self._proven = 0
        self._seconds_per_item: float | None = None
        self._outstanding = 0
        self._limit = UNPROVEN_CHUNKS
        self._patience_ends = now + PATIENCE_SECONDS

    def next_size(self, now: float) -> int:
        """Return how many items the next chunk may have; 0: wait for a result, or until `wake_at`."""
        if self._fixed is not None:
            return self._fixed
        if self._size > self._proven and self._outstanding >= self._limit:
            if now < self._patience_ends:
                return 0
            self._limit *= 2
            self._patience_ends = now + PATIENCE_SECONDS
        return self._size

    @property
    def wake_at(self) -> float:
        """When to ask again if nothing came back."""
        return self._patience_ends

    def sent(self) -> None:
        """A chunk went out."""
        self._outstanding += 1

    def ended(self, items: int, seconds: float | None, now: float) -> None:
        """A chunk of so many items came back; seconds: what it took on its worker, None when it failed as a whole."""
        self._outstanding -= 1
        self._patience_ends = now + PATIENCE_SECONDS
        if seconds is None:
            return
        measured = seconds / items
        old = self._seconds_per_item
        self._seconds_per_item = measured if old is None else max(measured, 0.8 * old + 0.2 * measured)
        fitting = self._fitting(self._seconds_per_item)
        self._proven = min(max(self._proven, items), fitting)
        self._size = min(fitting, GROWTH * self._proven)

    def _fitting(self, seconds_per_item: float) -> int:
        return max(1, min(MAX_CHUNK_ITEMS, int(TARGET_SECONDS / max(seconds_per_item, 1e-9))))


class Results(Divisible):
    """What a chunk returns: one value per item; failures: position to payload of the exception, where one raised."""

    __slots__ = ("failures", "values")

    def __init__(self, values: list[Any], failures: dict[int, bytes]) -> None:
        self.values = values
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return Results, (self.values, self.failures)

    def serializable(self) -> Results:
        """Return the same with a failure in place of every value that cannot be serialized."""
        values, failures = self.values.copy(), self.failures.copy()
        for position, value in enumerate(values):
            try:
                dump_value(value)
            except SerializationError as error:
                values[position] = None
                failures[position] = dump_exception(error, traceback.format_exc())
        return Results(values, failures)


class Chunk:
    """The function of a chunk's task: calls the user's function with every item, and goes on when one raises.

    spread: each item is a tuple of arguments.
    """

    __slots__ = ("function", "spread")

    def __init__(self, function: Callable[..., Any], spread: bool) -> None:
        self.function = function
        self.spread = spread

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, (self.function, self.spread)

    def __call__(self, items: Sequence[Any]) -> Results:
        return _call_each(self.function, items, self.spread)


class SerializedChunk:
    """A chunk whose function, arguments and results are each made by the user's serializer."""

    __slots__ = ("_function", "function", "serializer")

    def __init__(self, function: bytes, serializer: Serializer) -> None:
        self.function = function
        self.serializer = serializer
        self._function: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SerializedChunk, (self.function, self.serializer)

    def __call__(self, items: Sequence[Sequence[bytes]]) -> Results:
        if self._function is None:
            self._function = load_function([self.function], self.serializer)
        return _call_each(self._call, items, spread=True)

    def _call(self, *arguments: bytes) -> bytes:
        function = self._function
        assert function is not None, "it was loaded before the first item"
        deserialize = self.serializer.deserialize
        result = finish(function(*(deserialize(argument) for argument in arguments)))
        return bytes(check_bytes(self.serializer, self.serializer.serialize(result)))


def _call_each(function: Callable[..., Any], items: Sequence[Any], spread: bool) -> Results:
    done: list[Any] = []
    failures: dict[int, bytes] = {}
    iterator = iter(items)
    while True:
        try:
            if spread:
                for item in iterator:
                    done.append(finish(function(*item)))  # noqa: PERF401 (what is done must be known when one raises)
            else:
                for item in iterator:
                    done.append(finish(function(item)))  # noqa: PERF401
        except BaseException as error:  # noqa: BLE001 (whatever an item raises, sys.exit() too, is that item's outcome)
            failures[len(done)] = dump_exception(error, traceback.format_exc())
            done.append(None)
        else:
            return Results(done, failures)

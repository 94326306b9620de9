"""How `map` and `imap` put many small calls into chunks, each of which is one task, and what runs in that task. Pure.

An explicit size is kept. Otherwise the size grows with measurements: a chunk should take about `TARGET_SECONDS`, which
costs no more than that at the end and makes the cost per task small beside it. The size is at most `GROWTH` times a
proven one, so that one quick item does not put a thousand slow ones in a chunk, and few chunks are in flight while the
size is unproven. When no result comes for a while, more are sent: slow items, or many workers, must not wait.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from scaler.errors import ScalerError, SerializationError, UsageError
from scaler.grammar import counted
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    Divisible,
    Serializer,
    check_bytes,
    dump_function,
    dump_value,
    load_function,
    load_value,
    name_of,
    size_of,
)
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exception_graph import assign
from scaler.serialization.exceptions import (
    ShownAsError,
    dump_exception,
    failure_texts,
    pack_exception,
    unpack_exception,
)
from scaler.serialization.tracebacks import user_traceback
from scaler.worker.processor.calling import finish

TARGET_SECONDS = 0.01
GROWTH = 8
UNPROVEN_CHUNKS = 16
PROBE_TIMEOUT_SECONDS = 0.05
"""After this long without a result, more chunks of an unproven size are sent."""
MAX_FAILED_BYTES = 256 * 1024
MAX_CHUNK_ITEMS = 4096
"""More would seldom fit in a message, and the way through the object storage is longer."""


Run = Callable[..., "ChunkResults"]
"""Runs a chunk, as `run_chunk` does."""
NONE_LEFT: Mapping[int, bool] = MappingProxyType({})


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


class ItemCall:
    """What a `map` or `imap` calls with each item: its function as tasks run it, and its arguments as they are sent.

    function: what the tasks run, on a chunk of items each. name: the function's, for display.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        spread: bool,
        serializer: Serializer | None,
        verb: str,
        limited: Run | None = None,
    ) -> None:
        """spread: each item is a tuple of arguments. limited: runs a chunk whose calls have limits of their own.

        Raises UsageError or SerializationError.
        """
        if not callable(function):
            raise UsageError(f"{verb} needs something to call, and {function!r} is not")
        self.name = name_of(function)
        self.verb = verb
        self.function: Callable[[Sequence[Any]], ChunkResults]
        if serializer is None:
            self.function = partial(limited or run_chunk, function, spread)
        else:
            pickled = bytes(dump_function(function, serializer)[0])
            self.function = SerializedChunkFunction(pickled, serializer, limited)
        self.has_limits = limited is not None
        self.is_plain = serializer is None
        self._spread = spread
        self._serializer = serializer

    def arguments(self, items: list[Any]) -> list[Any]:
        """Return the argument of a chunk's function. Raises SerializationError of the user's serializer."""
        if self._serializer is None:
            return items
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


class ChunkResults(list[Any], Divisible):
    """The result of a chunk: one value per item; failures: position to payload of the exception, where one raised.

    left: positions of items that the client sends again, and whether such an item was called, and is tried again.
    only: the exception of a chunk of one item, which is in this process.
    """

    __slots__ = ("failures", "left", "only")

    def __init__(self, values: list[Any], failures: dict[int, bytes], left: Mapping[int, bool] = NONE_LEFT) -> None:
        super().__init__(values)
        self.failures = failures
        self.left = left
        self.only: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        values = list(self), self.failures
        return ChunkResults, (*values, dict(self.left)) if self.left else values

    @property
    def calls(self) -> tuple[int, int]:
        """How many calls ended, and how many of these failed."""
        return len(self) - len(self.left), len(self.failures)

    def part(self, begin: int, end: int) -> ChunkResults:
        """Return the results of these positions, of which none is left."""
        failures = {position - begin: each for position, each in self.failures.items() if begin <= position < end}
        return ChunkResults(self[begin:end], failures)

    def serializable(self) -> ChunkResults:
        """Return the same with a failure in place of every value that cannot be serialized."""
        values, failures = list(self), self.failures.copy()
        for position, value in enumerate(values):
            try:
                dump_value(value)
            except SerializationError as error:
                values[position] = None
                failures[position] = dump_exception(error, f"\n{user_traceback(error)}")
        found = ChunkResults(values, failures, self.left)
        found.only = self.only
        return found


class ItemsFailedError(ShownAsError):
    """Items of a chunk raised: its results, shown as the exception of the first of these items."""

    def __init__(self, results: ChunkResults) -> None:
        super().__init__(results)
        self.results = results
        kind, text, trace, _ = unpack_exception(results.failures[min(results.failures)])
        failed = len(results.failures)
        text = f"{text} ({failed} of {counted(len(results), 'item')} failed)" if failed > 1 else text
        self.shown = pack_exception(kind, text, trace, b"")

    @property
    def only(self) -> BaseException | None:
        return self.results.only

    def __str__(self) -> str:
        return failure_texts(Outcome.EXCEPTION, self.shown).text


class SerializedChunkFunction:
    """A chunk's function where the user's serializer makes the user's function, each argument and each result."""

    __slots__ = ("_function", "function", "limited", "serializer")

    def __init__(self, function: bytes, serializer: Serializer, limited: Run | None = None) -> None:
        self.function = function
        self.serializer = serializer
        self.limited = limited
        self._function: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SerializedChunkFunction, (self.function, self.serializer, self.limited)

    def __call__(self, items: Sequence[Sequence[bytes]]) -> ChunkResults:
        if self._function is None:
            self._function = load_function([self.function], self.serializer)
        return (self.limited or run_chunk)(self._call, True, items, show=lambda _: "")

    def _call(self, *arguments: bytes) -> bytes:
        function = self._function
        assert function is not None, "it was loaded before the first item"
        deserialize = self.serializer.deserialize
        result = finish(function(*(deserialize(argument) for argument in arguments)))
        return bytes(check_bytes(self.serializer, self.serializer.serialize(result)))


def show_item(item: Any) -> str:
    """Return a line that shows an item in an error."""
    return " ".join(reprlib.repr(item).split())


def run_chunk(
    function: Callable[..., Any], spread: bool, items: Sequence[Any], show: Callable[[Any], str] = show_item
) -> ChunkResults:
    """Return the results of a chunk. show: as in `call_each`. Raises ItemsFailedError."""
    return checked(call_each(function, spread, items, show))


def checked(results: ChunkResults) -> ChunkResults:
    """Return the results of a chunk; raise them when an item failed, so that the task is listed among the failures.

    Results beyond MAX_FAILED_BYTES are returned all the same: an exception travels inline.
    """
    if results.failures:
        results = results.serializable()
        if size_of(dump_value(results)) <= MAX_FAILED_BYTES:
            raise ItemsFailedError(results)
    return results


def call_each(
    function: Callable[..., Any], spread: bool, items: Sequence[Any], show: Callable[[Any], str] = show_item
) -> ChunkResults:
    """Call a function with every item, and go on when one raises: what a chunk's task runs.

    spread: each item is a tuple of arguments. show: returns the text of an item, the first line of its traceback.
    """
    done: list[Any] = []
    failures: dict[int, bytes] = {}
    only: BaseException | None = None
    iterator = iter(items)
    while True:
        try:
            if spread:
                for item in iterator:
                    done.append(finish(function(*item)))  # noqa: PERF401 (the count must be known when one raises)
            else:
                for item in iterator:
                    done.append(finish(function(item)))
        except BaseException as error:  # noqa: BLE001 (whatever an item raises, sys.exit() too, is that item's outcome)
            failures[len(done)] = dump_exception(error, f"item: {show(item)}\n{user_traceback(error)}")
            done.append(None)
            if len(items) == 1:
                assign(error, "__traceback__", None)  # it would keep this frame, which keeps the exception
                only = error
        else:
            results = ChunkResults(done, failures)
            results.only = only
            return results

"""How `map` and `imap` put many small calls into chunks, each of which is one task, and what runs in that task. Pure.

An explicit size is kept. Otherwise the size grows with measurements: a chunk should take about `TARGET_SECONDS`, which
costs no more than that at the end and makes the cost per task small beside it. The size is at most `GROWTH` times a
proven one, so that one quick item does not put a thousand slow ones in a chunk, and few chunks are in flight while the
size is unproven. When no result comes for a while, more are sent: slow items, or many workers, must not wait.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from scaler.errors import ObjectLostError, ScalerError, SerializationError, UsageError
from scaler.grammar import counted
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    Buffer,
    Divisible,
    Serializer,
    check_bytes,
    describe,
    dump_function,
    dump_value,
    load_function,
    load_value,
    name_of,
    size_of,
    unpicklable,
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
from scaler.serialization.loading import loading
from scaler.serialization.separate import ATOMS, Items, Packed, Packer, outside, untouched
from scaler.serialization.snapshot import Fresh, Unchanging
from scaler.serialization.tracebacks import is_raised_by_user, user_traceback
from scaler.worker.processor.calling import finish

TARGET_SECONDS = 0.01
GROWTH = 8
UNPROVEN_CHUNKS = 16
PROBE_TIMEOUT_SECONDS = 0.05
"""After this long without a result, more chunks of an unproven size are sent."""
MAX_FAILED_BYTES = 256 * 1024
MAX_CHUNK_ITEMS = 4096
"""More would seldom fit in a message, and the way through the object storage is longer."""


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


class ItemLimits(NamedTuple):
    """Options of each call of a chunk. retry_on: as in a Spec."""

    timeout_seconds: float
    retry_on: bytes
    leaves: bool = True
    """The client sends again what the chunk leaves to it; otherwise every item is called, and has an outcome."""


class MapFunction(Unchanging):
    """What the task of a chunk runs: a function, called with each item.

    The function is pickled when this is made, and every call gets it as it was then.
    """

    def __init__(
        self,
        parts: Sequence[Buffer],
        name: str,
        spread: bool,
        serializer: Serializer | None,
        limits: ItemLimits | None = None,
    ) -> None:
        """parts: the function's. spread: each item is a tuple of arguments. serializer: makes function, arguments, and
        results; then each item is a list of serialized arguments. limits: None where no call has limits of its own.
        """
        self.parts = parts = untouched(parts)
        self.__qualname__ = self.name = name
        self.functions: list[Callable[..., Any]] = []
        """The function itself, in the client."""
        self.spread = spread
        self.serializer = serializer
        self.limits = limits
        self.function = Fresh(lambda: load_function(parts, serializer))

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        parts = [outside(part, protocol) for part in self.parts]
        return MapFunction, (parts, self.name, self.spread, self.serializer, self.limits)

    def __call__(self, items: Sequence[Any]) -> ChunkResults:
        """Return the results of a chunk. Raises ItemsFailedError."""
        if self.limits is None or len(items) == 1:  # a call alone has the limits of its task
            return checked(call_each(self, items))
        from scaler.client.item_limits import call_limited  # noqa: PLC0415 (most processes never need it)

        return checked(call_limited(self, items, self.limits))

    def without_leaving(self) -> MapFunction:
        """Return the same for a chunk whose limits leave no items to the client."""
        limits = self.limits and self.limits._replace(leaves=False)
        return MapFunction(self.parts, self.name, self.spread, self.serializer, limits)

    def prepare(self, items: Sequence[Any], position: int) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return the function and the arguments of one call, which share nothing with those of others.

        Raises SerializationError, and ObjectLostError when an input of the chunk is lost.
        """
        loading.begin()
        try:
            function = self.function.get()
            item = items[position]
            if self.serializer is not None:
                return function, [load_value([each], self.serializer, "an argument") for each in item]
        except ScalerError:
            raise
        except Exception as error:
            raise SerializationError(f"the arguments cannot be loaded: {describe(error)}") from error
        finally:
            loading.is_active = False
        return function, item if self.spread else (item,)

    def show(self, items: Sequence[Any], position: int) -> str:
        """Return the text of an item as it was before its call; empty if it cannot be shown."""
        if self.serializer is not None:
            return ""
        try:
            return show_item(items[position])
        except Exception:  # noqa: BLE001 (the user's code may raise anything when it is loaded)
            return ""


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
        limits: ItemLimits | None = None,
    ) -> None:
        """spread: each item is a tuple of arguments. limits: of each call.

        Raises UsageError or SerializationError.
        """
        if not callable(function):
            raise UsageError(f"{verb} needs something to call, and {function!r} is not")
        self.name = name_of(function)
        self.verb = verb
        self.function = MapFunction(dump_function(function, serializer), self.name, spread, serializer, limits)
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


class ChunkResults(Sequence[Any], Divisible):
    """The result of a chunk: one value per item; failures: position to payload of the exception, where one raised.

    left: positions of items that the client sends again, and whether such an item was called, and is tried again.
    only: the exception of a chunk of one item, which is in this process.
    """

    __slots__ = ("failures", "left", "only", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, values: Packer | Sequence[Any], failures: dict[int, bytes], left: Mapping[int, bool] = NONE_LEFT
    ) -> None:
        """values: a sequence once they have arrived."""
        self.values = values
        self.failures = failures
        self.left = left
        self.only: BaseException | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.values, self.failures
        return ChunkResults, (*values, dict(self.left)) if self.left else values

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    def __repr__(self) -> str:
        return repr(list(self))

    def __getitem__(self, position: Any) -> Any:
        """Return the value of an item, None for one that raised. Raises SerializationError."""
        assert not isinstance(self.values, Packer), "it has arrived"
        try:
            return self.values[position]
        except ScalerError:
            raise
        except Exception as error:
            raise SerializationError(f"the result cannot be loaded: {describe(error)}") from error

    @property
    def calls(self) -> tuple[int, int]:
        """How many calls ended, and how many of these failed."""
        return len(self) - len(self.left), len(self.failures)

    def part(self, begin: int, end: int) -> ChunkResults:
        """Return the results of these positions, of which none is left."""
        failures = {position - begin: each for position, each in self.failures.items() if begin <= position < end}
        return ChunkResults(self[begin:end], failures)

    def add(self, value: Any) -> None:
        """Take the value of the next item as it is now; one that cannot be pickled is a failure."""
        assert isinstance(self.values, Packer), "it is being made"
        try:
            self.values.add(value)
        except Exception as error:  # noqa: BLE001 (a user's pickling may raise anything)
            found = error if isinstance(error, ScalerError) else unpicklable("the result", value, error)
            self.fail(dump_exception(found, f"\n{user_traceback(found)}"))

    def fail(self, exception: bytes) -> None:
        """Take the exception of the next item, as `dump_exception` returns it."""
        assert isinstance(self.values, Packer), "it is being made"
        self.failures[len(self.values)] = exception
        self.values.add(None)


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


def show_item(item: Any) -> str:
    """Return a line that shows an item in an error."""
    return " ".join(reprlib.repr(item).split())


def checked(results: ChunkResults) -> ChunkResults:
    """Return the results of a chunk; raise them when an item failed, so that the task is listed among the failures.

    Results beyond MAX_FAILED_BYTES are returned all the same: an exception travels inline.
    """
    if results.failures and size_of(dump_value(results)) <= MAX_FAILED_BYTES:
        raise ItemsFailedError(results)
    return results


def call_each(chunk: MapFunction, items: Sequence[Any]) -> ChunkResults:
    """Call a chunk's function with every item, and go on when one raises: what a chunk's task runs.

    Each call gets a function and an item of its own, and its value is pickled before the next call.
    """
    results = ChunkResults(Packer(), {})
    done = _call_atoms(chunk, items, results)
    for position in range(done, len(items)):
        try:
            function, arguments = chunk.prepare(items, position)
            value = finish(function(*arguments))
            if chunk.serializer is not None:
                value = bytes(check_bytes(chunk.serializer, chunk.serializer.serialize(value)))
        except ObjectLostError as error:
            if error.object_id and not is_raised_by_user(error):
                raise  # the chunk runs again when its input is there again
            _note_failure(chunk, items, position, error, results)
        except BaseException as error:  # noqa: BLE001 (whatever an item raises, sys.exit() too, is that item's outcome)
            _note_failure(chunk, items, position, error, results)
        else:
            results.add(value)
    return results


def _call_atoms(chunk: MapFunction, items: Sequence[Any], results: ChunkResults) -> int:
    """Call a function that no call can change with items that none can change, until one raises or returns more.

    Returns how many items have an outcome.
    """
    packer = results.values
    atoms = items.atoms if isinstance(items, Packed) else ()
    if not atoms or chunk.serializer is not None:
        return 0
    function, _ = chunk.prepare(items, 0)
    if not chunk.function.is_fixed:
        return 0
    assert isinstance(packer, Packer), "it is being made"
    done, spread, kinds = packer.atoms, chunk.spread, ATOMS
    position = -1
    try:
        for position, item in enumerate(atoms):
            value = function(*item) if spread else function(item)
            if type(value) not in kinds:
                results.add(finish(value))
                return position + 1
            done.append(value)
    except BaseException as error:  # noqa: BLE001 (see above)
        _note_failure(chunk, items, position, error, results)
    return position + 1


def _note_failure(
    chunk: MapFunction, items: Sequence[Any], position: int, error: BaseException, results: ChunkResults
) -> None:
    results.fail(dump_exception(error, f"item: {chunk.show(items, position)}\n{user_traceback(error)}"))
    if len(items) == 1:
        assign(error, "__traceback__", None)  # it would keep this frame, which keeps the exception
        results.only = error

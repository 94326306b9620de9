"""What runs in the task of a chunk: the calls of a `map` or `imap`, which share nothing, and their results."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from scaler.errors import ObjectLostError, ScalerError
from scaler.grammar import counted
from scaler.protocol.failures import failure_texts, pack_exception, unpack_exception
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    ManyCalls,
    cannot_load,
    check_bytes,
    dump_value,
    load_value,
    size_of,
    unpicklable,
)
from scaler.serialization.exception_graph import assign
from scaler.serialization.exceptions import ShownAsError, dump_exception
from scaler.serialization.loading import loading
from scaler.serialization.separate import ATOMS, PackedValues, PickledFunction, ValuePacker
from scaler.serialization.tracebacks import is_raised_by_user, user_traceback
from scaler.worker.processor.calling import finish

MAX_FAILED_BYTES = 256 * 1024
NONE_LEFT: Mapping[int, bool] = MappingProxyType({})


class ChunkCalls:
    """The calls of one chunk, by position."""

    def __init__(self, function: PickledFunction, spread: bool, items: Sequence[Any]) -> None:
        """spread: each item is a tuple of arguments. With a user's serializer, each is a list of serialized ones."""
        self.function = function.fresh
        self.serializer = function.serializer
        self.spread = spread
        self.items = items

    def prepare(self, position: int) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return the function and arguments of one call, unshared. Raises SerializationError, ObjectLostError."""
        loading.begin()
        try:
            function = self.function.get()
            item = self.items[position]
            if self.serializer is not None:
                return function, [load_value([each], self.serializer, "an argument") for each in item]
        except ScalerError:
            raise
        except Exception as error:
            raise cannot_load("the arguments", error) from error
        finally:
            loading.is_active = False
        return function, item if self.spread else (item,)

    def returned(self, value: Any) -> Any:
        """Return what a call has returned as it is sent. Raises whatever the user's serializer raises."""
        if self.serializer is None:
            return value
        return bytes(check_bytes(self.serializer, self.serializer.serialize(value)))

    def show(self, position: int) -> str:
        """Return the text of an item as it was before its call; empty if it cannot be shown."""
        if self.serializer is not None:
            return ""
        try:
            return show_item(self.items[position])
        except Exception:  # noqa: BLE001 (the user's code may raise anything when it is loaded)
            return ""


class ChunkResults(Sequence[Any], ManyCalls):
    """The values of a chunk. failures: pickled exceptions by position. left: positions that the client sends again.

    left also has whether such an item was called. only: the exception of a chunk of one item, in this process.
    """

    __slots__ = ("failures", "left", "only", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, values: ValuePacker | Sequence[Any], failures: dict[int, bytes], left: Mapping[int, bool] = NONE_LEFT
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
        assert not isinstance(self.values, ValuePacker), "it has arrived"
        try:
            return self.values[position]
        except ScalerError:
            raise
        except Exception as error:
            raise cannot_load("the result", error) from error

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
        assert isinstance(self.values, ValuePacker), "it is being made"
        try:
            self.values.add(value)
        except Exception as error:  # noqa: BLE001 (a user's pickling may raise anything)
            found = error if isinstance(error, ScalerError) else unpicklable("the result", value, error)
            self.fail(dump_exception(found, f"\n{user_traceback(found)}"))

    def fail(self, exception: bytes) -> None:
        """Take the exception of the next item, as `dump_exception` returns it."""
        assert isinstance(self.values, ValuePacker), "it is being made"
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
    """Return the results of a chunk, or raise them if an item failed, unless they exceed MAX_FAILED_BYTES."""
    if results.failures and size_of(dump_value(results)) <= MAX_FAILED_BYTES:
        raise ItemsFailedError(results)
    return results


def call_each(calls: ChunkCalls) -> ChunkResults:
    """Make all calls of a chunk, also after one raises, each with its own copy of the function and the item."""
    results = ChunkResults(ValuePacker(), {})
    done = _call_plain(calls, results)
    for position in range(done, len(calls.items)):
        try:
            function, arguments = calls.prepare(position)
            value = calls.returned(finish(function(*arguments)))
        except ObjectLostError as error:
            if error.object_id and not is_raised_by_user(error):
                raise  # the chunk runs again when its input is there again
            _note_failure(calls, position, error, results)
        except BaseException as error:  # noqa: BLE001 (whatever an item raises, sys.exit() too, is that item's outcome)
            _note_failure(calls, position, error, results)
        else:
            results.add(value)
    return results


def _call_plain(calls: ChunkCalls, results: ChunkResults) -> int:
    """Make all calls at once if they are independent and items share nothing. Return the number of outcomes."""
    packer, items = results.values, calls.items
    if not isinstance(items, PackedValues) or not items.is_plain or calls.serializer is not None:
        return 0
    try:
        function, _ = calls.prepare(0)
        if not calls.function.is_fixed:
            return 0
        values = items.all()
    except Exception:  # noqa: BLE001 (it is raised again by each item at fault)
        return 0
    assert isinstance(packer, ValuePacker), "it is being made"
    spread, kinds, done = calls.spread, ATOMS, packer.plain
    for position, item in enumerate(values):
        try:
            value = function(*item) if spread else function(item)
            if type(value) in kinds:
                done.append(value)
            else:
                results.add(finish(value))
        except BaseException as error:  # noqa: BLE001 (see above)
            _note_failure(calls, position, error, results)
    return len(values)


def _note_failure(calls: ChunkCalls, position: int, error: BaseException, results: ChunkResults) -> None:
    results.fail(dump_exception(error, f"item: {calls.show(position)}\n{user_traceback(error)}"))
    if len(calls.items) == 1:
        assign(error, "__traceback__", None)  # it would keep this frame, which keeps the exception
        results.only = error

"""Worker side of `map` and `imap` chunks, and of pools: isolated calls, their results, and initializers."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from scaler import serialization
from scaler.errors import ObjectLostError, ScalerError, SerializationError
from scaler.extensions.maps.values import PackedValues, ValuePacker
from scaler.grammar import counted
from scaler.protocol.failures import pack_exception, unpack_exception
from scaler.serialization import ATOMS, ManyCalls, ManyCallsFunction, PickledFunction
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exceptions import ShownAsError, dump_exception, is_raised_by_user, user_traceback
from scaler.worker.processor.calling import finish

MAX_FAILED_BYTES = 256 * 1024


class ChunkResults(Sequence[Any], ManyCalls):
    """The values of a chunk. failures: pickled exceptions by position."""

    __slots__ = ("failures", "values")

    def __init__(self, values: ValuePacker | Sequence[Any], failures: dict[int, bytes]) -> None:
        """values: a sequence after unpickling."""
        self.values = values
        self.failures = failures

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkResults, (self.values, self.failures)

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: Any) -> Any:
        """Return the value of an item, None if the item failed. Raises SerializationError."""
        assert not isinstance(self.values, ValuePacker), "it has arrived"
        try:
            return self.values[position]
        except ScalerError:
            raise
        except Exception as error:
            raise serialization.cannot_load("the result", error) from error

    @property
    def calls(self) -> tuple[int, int]:
        """Numbers of finished and failed calls."""
        return len(self), len(self.failures)

    def add(self, value: Any) -> None:
        """Pack the current value of the next item; a value that cannot be pickled becomes a failure."""
        assert isinstance(self.values, ValuePacker), "the value is being created"
        try:
            self.values.add(value)
        except Exception as error:  # noqa: BLE001 (pickling runs user code)
            found = error if isinstance(error, ScalerError) else serialization.unpicklable("the result", value, error)
            self.fail(dump_exception(found, f"\n{user_traceback(found)}"))

    def fail(self, exception: bytes) -> None:
        assert isinstance(self.values, ValuePacker), "it is being made"
        self.failures[len(self.values)] = exception
        self.values.add(None)


class ItemsFailedError(ShownAsError, ManyCalls):
    def __init__(self, results: ChunkResults) -> None:
        super().__init__(results)
        self.results = results
        kind, text, trace, _ = unpack_exception(results.failures[min(results.failures)])
        failed = len(results.failures)
        text = f"{text} ({failed} of {counted(len(results), 'item')} failed)" if failed > 1 else text
        self.shown = pack_exception(kind, text, trace, b"")

    @property
    def calls(self) -> tuple[int, int]:
        return self.results.calls


def show_item(item: Any) -> str:
    return " ".join(reprlib.repr(item).split())


def call_each(function: MapFunction, items: Sequence[Any]) -> ChunkResults:
    """Make all calls of a chunk, even after a failure, each with its own copy of the function and the item."""
    packer = ValuePacker()
    results = ChunkResults(packer, {})
    separate = partial(function.call, items), range(len(items)), False
    called, values, spread = _plain_calls(function, items) or separate
    kinds, done, calls, position = ATOMS, packer.plain, enumerate(values), -1
    while len(results) < len(items):
        try:
            for position, item in calls:  # noqa: B007 (used below)
                value = called(*item) if spread else called(item)
                if type(value) in kinds:
                    done.append(value)
                else:
                    results.add(finish(value))
        except BaseException as error:
            if len(results) != position:
                raise  # from outside the calls, such as by a signal handler
            if isinstance(error, ObjectLostError) and error.object_id and not is_raised_by_user(error):
                raise  # the chunk runs again once its input is available
            _note_failure(items, position, error, results)
    return results


def _plain_calls(function: MapFunction, items: Sequence[Any]) -> tuple[Callable[..., Any], Sequence[Any], bool] | None:
    """Return the function and the items if no call can change them."""
    if isinstance(items, PackedValues) and items.is_plain:
        with suppress(Exception):  # each failing item raises it again
            called, _ = function.prepare(items.__getitem__, 0)
            if function.fresh.is_fixed:
                return called, items.all(), function.spread
    return None


def _note_failure(items: Sequence[Any], position: int, error: BaseException, results: ChunkResults) -> None:
    try:
        shown = show_item(items[position])
    except Exception:  # noqa: BLE001 (loading runs user code)
        shown = ""
    results.fail(dump_exception(error, f"item: {shown}\n{user_traceback(error)}"))


class MapFunction(PickledFunction, ManyCallsFunction):
    """The function of a chunk's task: calls a function, pickled at construction, with each item."""

    def __init__(self, parts: Sequence[serialization.Buffer], name: str, spread: bool) -> None:
        """name: name of the user's function. spread: each item is a tuple of arguments."""
        super().__init__(parts)
        self.__qualname__ = self.name = name
        self.functions: list[Callable[..., Any]] = []
        self.spread = spread

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        return MapFunction, (*super().__reduce_ex__(protocol)[1], self.name, self.spread)

    # -- on a worker

    def __call__(self, items: Sequence[Any]) -> ChunkResults:
        """Raises ItemsFailedError if an item failed and the results fit MAX_FAILED_BYTES."""
        results = call_each(self, items)
        if results.failures and serialization.size_of(serialization.dump_value(results)) <= MAX_FAILED_BYTES:
            raise ItemsFailedError(results)
        return results

    def replay(self, *args: Any) -> list[Any]:
        [items] = args
        return [finish(self.call(items, position)) for position in range(len(items))]

    def call(self, items: Sequence[Any], position: int) -> Any:
        called, item = self.prepare(items.__getitem__, position)
        return called(*item) if self.spread else called(item)

    # -- in the client

    def error_of(self, item: Any, owner: object, error: Exception) -> Exception:
        """Return the error that a single call with this unsendable item would raise."""
        try:
            dump_arguments(tuple(item) if self.spread else (item,), {}, None, owner, self.name)
        except SerializationError as found:
            return found
        except ScalerError:  # a future in the item has failed in the meantime
            pass
        return error


@dataclass(frozen=True, slots=True, repr=False)
class Setup:
    """A pool, and the arguments of its initializer."""

    key: str
    initargs: tuple[Any, ...]

    def __repr__(self) -> str:
        return "initargs"


_prepared: dict[tuple[str, int], object] = {}
"""Initializers that have run in this process, by pool key and initializer id."""


class Prepared:
    """Calls a function after the pool's initializer has run in this process.

    Functions of `__main__` are pickled by value and share the globals of their pickle, so the initializer is pickled
    with the function and runs once per copy. An imported initializer is the same object in every pickle, and runs once.
    """

    def __init__(self, func: Callable[..., Any], initializer: Callable[..., object], spread: bool) -> None:
        self.func = func
        self.initializer = initializer
        self.spread = spread

    def __call__(self, with_setup: tuple[Setup, Any], **kwds: Any) -> Any:
        setup, item = with_setup
        copy = setup.key, id(self.initializer)
        if copy not in _prepared:
            self.initializer(*setup.initargs)
            _prepared[copy] = self.initializer
        return self.func(*item, **kwds) if self.spread else self.func(item)

"""Worker side of `map` and `imap` chunks: isolated calls, and their results.

A signal interrupts a call that exceeds its time limit. A call stuck in C code ends with its process, at the chunk's own
limit. The chunk leaves retries and calls without remaining time to the client, which sends each as a task.
"""

from __future__ import annotations

import reprlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

from scaler import serialization
from scaler.errors import ObjectLostError, ScalerError, SerializationError, TaskTimeoutError, UsageError
from scaler.grammar import counted
from scaler.protocol.failures import failure_texts, pack_exception, unpack_exception
from scaler.protocol.messages import Outcome
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exception_graph import assign
from scaler.serialization.exceptions import ShownAsError, dump_exception
from scaler.serialization.loading import loading
from scaler.serialization.separate import ATOMS, Items, PackedValues, PickledFunction, ValuePacker
from scaler.serialization.snapshot import Unchanging
from scaler.serialization.tracebacks import is_raised_by_user, user_traceback
from scaler.worker.processor.calling import asks_to_retry, finish

MAX_FAILED_BYTES = 256 * 1024
REPEAT_SECONDS = 1.0
NONE_LEFT: Mapping[int, bool] = MappingProxyType({})


class ItemLimits(NamedTuple):
    timeout_seconds: float
    retry_on: bytes


NO_LIMITS = ItemLimits(0.0, b"")


class ChunkResults(Sequence[Any], serialization.ManyCalls):
    """The values of a chunk.

    failures: pickled exceptions by position. left: positions to resend, with whether the item was called. only: the
    exception of a chunk of one item, in this process.
    """

    __slots__ = ("failures", "left", "only", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, values: ValuePacker | Sequence[Any], failures: dict[int, bytes], left: Mapping[int, bool] = NONE_LEFT
    ) -> None:
        """values: a sequence after unpickling."""
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
        """Numbers of finished and of failed calls."""
        return len(self) - len(self.left), len(self.failures)

    def part(self, begin: int, end: int) -> ChunkResults:
        failures = {position - begin: each for position, each in self.failures.items() if begin <= position < end}
        return ChunkResults(self[begin:end], failures)

    def add(self, value: Any) -> None:
        """Pack the current value of the next item; a value that cannot be pickled becomes a failure."""
        assert isinstance(self.values, ValuePacker), "it is being made"
        try:
            self.values.add(value)
        except Exception as error:  # noqa: BLE001 (pickling runs user code)
            found = error if isinstance(error, ScalerError) else serialization.unpicklable("the result", value, error)
            self.fail(dump_exception(found, f"\n{user_traceback(found)}"))

    def fail(self, exception: bytes) -> None:
        assert isinstance(self.values, ValuePacker), "it is being made"
        self.failures[len(self.values)] = exception
        self.values.add(None)


class ItemsFailedError(ShownAsError):
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
    return " ".join(reprlib.repr(item).split())


def checked(results: ChunkResults) -> ChunkResults:
    """Return the results of a chunk. Raises ItemsFailedError if an item failed and the results fit MAX_FAILED_BYTES."""
    if results.failures and serialization.size_of(serialization.dump_value(results)) <= MAX_FAILED_BYTES:
        raise ItemsFailedError(results)
    return results


class _Interrupted(BaseException):
    """Raised in a call that exceeds its time limit. A BaseException, so that few calls catch it."""


class _Alarm:
    """Context that interrupts calls that run longer than `seconds` between `start` and `stop`.

    Has no effect for 0 seconds, or outside of the main thread, which alone receives signals.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds if threading.current_thread() is threading.main_thread() else 0.0
        self._is_armed = False

    def __enter__(self) -> _Alarm:
        if self._seconds:
            self._before = signal.signal(signal.SIGALRM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._seconds:
            signal.signal(signal.SIGALRM, self._before)

    def start(self) -> None:
        if self._seconds:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, self._seconds, REPEAT_SECONDS)

    def stop(self) -> None:
        if self._seconds:
            self._is_armed = False  # first: a pending signal must not raise later
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_armed:
            raise _Interrupted


def call_each(function: MapFunction, items: Sequence[Any], limits: ItemLimits = NO_LIMITS) -> ChunkResults:
    """Make all calls of a chunk, even after a failure, each with its own copy of the function and the item."""
    left: dict[int, bool] = {}
    results = ChunkResults(ValuePacker(), {}, left)
    seconds, retry_on = limits.timeout_seconds, limits.retry_on
    done = _call_plain(function, items, results) if limits is NO_LIMITS else 0
    began = time.monotonic()
    with _Alarm(seconds) as alarm:
        for position in range(done, len(items)):
            if seconds and time.monotonic() - began >= seconds:
                left[position] = False
                results.add(None)
                continue
            try:
                called, arguments = function.prepare(items, position)
                try:
                    alarm.start()
                    value = finish(called(*arguments))
                finally:
                    alarm.stop()
                value = function.returned(value)
            except BaseException as error:
                if isinstance(error, ObjectLostError) and error.object_id and not is_raised_by_user(error):
                    raise  # the chunk runs again once its input is available
                if retry_on and asks_to_retry(error, lambda error: serialization.load_retry_on(retry_on)(error)):  # noqa: PLW0108
                    left[position] = True
                    results.add(None)
                else:
                    _note_failure(function, items, position, error, results, seconds)
            else:
                results.add(value)
    return results


def _call_plain(function: MapFunction, items: Sequence[Any], results: ChunkResults) -> int:
    """Fast path: call all independent items that share no objects. Return the number of outcomes."""
    packer = results.values
    if not isinstance(items, PackedValues) or not items.is_plain or function.serializer is not None:
        return 0
    try:
        called, _ = function.prepare(items, 0)
        if not function.fresh.is_fixed:
            return 0
        values = items.all()
    except Exception:  # noqa: BLE001 (each failing item raises it again)
        return 0
    assert isinstance(packer, ValuePacker), "it is being made"
    spread, kinds, done = function.spread, ATOMS, packer.plain
    for position, item in enumerate(values):
        try:
            value = called(*item) if spread else called(item)
            if type(value) in kinds:
                done.append(value)
            else:
                results.add(finish(value))
        except BaseException as error:  # noqa: BLE001 (recorded as the item's failure)
            _note_failure(function, items, position, error, results)
    return len(values)


def _note_failure(
    function: MapFunction,
    items: Sequence[Any],
    position: int,
    error: BaseException,
    results: ChunkResults,
    seconds: float = 0.0,
) -> None:
    shown = error
    if isinstance(error, _Interrupted):
        shown = TaskTimeoutError(f"the call ran longer than its time limit of {seconds:g} s and was interrupted")
    results.fail(dump_exception(shown, f"item: {function.show(items, position)}\n{user_traceback(error)}"))
    if len(items) == 1:
        assign(error, "__traceback__", None)  # it would keep this frame, which keeps the exception
        results.only = error


class MapFunction(Unchanging):
    """The function of a chunk's task: calls a function, pickled at construction, with each item."""

    def __init__(self, function: PickledFunction, name: str, spread: bool, limits: ItemLimits | None = None) -> None:
        """name: of the user's function. spread: each item is a tuple of arguments. limits: of each call."""
        self._function = function
        self.fresh = function.fresh
        self.serializer = function.serializer
        self.__qualname__ = self.name = name
        self.functions: list[Callable[..., Any]] = []
        self.spread = spread
        self.limits = limits

    def __reduce__(self) -> tuple[Any, ...]:
        return MapFunction, (self._function, self.name, self.spread, self.limits)

    # -- on a worker

    def __call__(self, items: Sequence[Any]) -> ChunkResults:
        # A single call has the limits of its task.
        limits = NO_LIMITS if self.limits is None or len(items) == 1 else self.limits
        return checked(call_each(self, items, limits))

    def prepare(self, items: Sequence[Any], position: int) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return an unshared function and arguments for one call. Raises SerializationError, ObjectLostError."""
        try:
            with loading:
                function = self.fresh.get()
                item = items[position]
                if self.serializer is not None:  # the item is a list of serialized arguments
                    return function, [serialization.load_value([each], self.serializer, "an argument") for each in item]
        except ScalerError:
            raise
        except Exception as error:
            raise serialization.cannot_load("the arguments", error) from error
        return function, self._spread_out(item)

    def returned(self, value: Any) -> Any:
        if self.serializer is None:
            return value
        return bytes(serialization.check_bytes(self.serializer, self.serializer.serialize(value)))

    def show(self, items: Sequence[Any], position: int) -> str:
        if self.serializer is not None:
            return ""
        try:
            return show_item(items[position])
        except Exception:  # noqa: BLE001 (loading runs user code)
            return ""

    # -- in the client

    def arguments(self, items: list[Any]) -> Items | list[Any]:
        """Return the argument of a task. Raises SerializationError of the user's serializer."""
        if self.serializer is None:
            return Items(items) if len(items) > 1 else items
        return [
            [
                bytes(serialization.dump_value(argument, self.serializer, f"argument {position} of {self.name}")[0])
                for position, argument in enumerate(self._spread_out(item), 1)
            ]
            for item in items
        ]

    def error_of(self, item: Any, owner: object, error: Exception) -> Exception:
        """Return the error that a single call with this unsendable item would raise."""
        try:
            dump_arguments(tuple(self._spread_out(item)), {}, self.serializer, owner, self.name)
        except SerializationError as found:
            return found
        except ScalerError:  # a reference in the item has failed in the meantime
            pass
        return error

    def load(self, value: Any) -> Any:
        return value if self.serializer is None else serialization.load_value([value], self.serializer)

    def _spread_out(self, item: Any) -> Any:
        return item if self.spread else (item,)


def map_function(
    function: Callable[..., Any],
    spread: bool,
    serializer: serialization.Serializer | None,
    verb: str,
    limits: ItemLimits | None = None,
) -> MapFunction:
    """Return the function of the tasks of a `map` or `imap`. Raises UsageError or SerializationError."""
    if not callable(function):
        raise UsageError(f"{verb} needs a callable, not {function!r}")
    pickled = PickledFunction(serialization.dump_function(function, serializer), serializer)
    made = MapFunction(pickled, serialization.name_of(function), spread, limits)
    made.functions.append(function)
    return made

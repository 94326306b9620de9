"""One run of `map` or `starmap`: cuts items into chunks, submits them, and puts the results in order."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from operator import length_hint
from typing import Any

from scaler.client.chunks import Chunk, Chunker, SerializedChunk, load_results
from scaler.client.future import ScalerFuture
from scaler.errors import UsageError
from scaler.serialization import Serializer, dump_function, load_exception, name_of
from scaler.serialization.arguments import check_bytes

Submit = Callable[[list[Any]], ScalerFuture]
Waiting = Callable[[], AbstractContextManager[object]]
Advance = Callable[[int], object]


class MapRun:
    """One run. function: what its tasks run, on a chunk of items each. name: what people see."""

    def __init__(
        self, function: Callable[..., Any], spread: bool, chunk_size: int | None, serializer: Serializer | None
    ) -> None:
        """Raises UsageError or SerializationError."""
        if chunk_size is not None and (isinstance(chunk_size, bool) or chunk_size < 1):
            raise UsageError(f"chunk_size is {chunk_size!r}, and must be at least 1")
        if not callable(function):
            raise UsageError(f"map needs something to call, and {function!r} is not")
        self.name = name_of(function)
        self.function: Callable[..., Any]
        if serializer is None:
            self.function = Chunk(function, spread)
        else:
            self.function = SerializedChunk(bytes(dump_function(function, serializer)[0]), serializer)
        self._spread = spread
        self._serializer = serializer
        self._chunker = Chunker(chunk_size, time.monotonic())
        self._chunks: list[tuple[ScalerFuture, int]] = []
        self._collected = 0
        self._results: list[Any] = []
        self._return_exceptions = False
        self._changed = threading.Condition()
        self._ended: list[tuple[ScalerFuture, int]] = []

    def run(
        self, items: Iterable[Any], submit: Submit, waiting: Waiting, return_exceptions: bool, progress: bool
    ) -> list[Any]:
        """Submit all and wait for all; results in order. When it raises, what has not ended is cancelled."""
        self._return_exceptions = return_exceptions
        try:
            with _bar(items, progress, self.name) as advance:
                self._submit_all(iter(items), submit, waiting, advance)
                while self._collected < len(self._chunks):
                    self._take_ended(waiting, advance, None)
        except BaseException:
            for future, _ in self._chunks:
                future.cancel()
            raise
        return self._results

    def _submit_all(self, items: Iterator[Any], submit: Submit, waiting: Waiting, advance: Advance) -> None:
        chunker = self._chunker
        while True:
            now = time.monotonic()
            size = chunker.next_size(now)
            if not size:
                self._take_ended(waiting, advance, chunker.wake_at - now)
                continue
            chunk = list(itertools.islice(items, size))
            if not chunk:
                return
            future = submit(chunk if self._serializer is None else self._serialize(chunk, self._serializer))
            chunker.sent()
            self._chunks.append((future, len(chunk)))
            future.add_done_callback(self._on_ended(len(chunk)))
            if self._ended:
                self._take_ended(waiting, advance, 0.0)

    def _serialize(self, chunk: list[Any], serializer: Serializer) -> list[list[bytes]]:
        return [
            [bytes(check_bytes(serializer, serializer.serialize(argument))) for argument in item]
            for item in (chunk if self._spread else zip(chunk, strict=True))
        ]

    def _on_ended(self, count: int) -> Callable[[ScalerFuture], None]:
        def ended(future: ScalerFuture) -> None:
            with self._changed:
                self._ended.append((future, count))
                self._changed.notify()

        return ended

    def _take_ended(self, waiting: Waiting, advance: Advance, timeout_seconds: float | None) -> None:
        """Note what has ended; when nothing has, wait for it. Raises the exception of an item, if that is asked for."""
        if not self._ended and (timeout_seconds is None or timeout_seconds > 0):
            with waiting(), self._changed:
                self._changed.wait_for(lambda: self._ended, timeout_seconds)
        with self._changed:
            ended, self._ended = self._ended, []
        now = time.monotonic()
        for future, count in ended:
            advance(count)
            if not future.cancelled() and future.exception() is None:
                self._chunker.ended(count, future.profiling_info().duration_s, now)
        while self._collected < len(self._chunks) and self._chunks[self._collected][0].done():
            self._collect(*self._chunks[self._collected])
            self._collected += 1

    def _collect(self, future: ScalerFuture, count: int) -> None:
        first = len(self._results)
        failure = CancelledError() if future.cancelled() else future.exception()
        if failure is not None:
            if not self._return_exceptions:
                raise _with_index(failure, self.name, first, count)
            self._results.extend([failure] * count)
            return
        values, failures = load_results(future.result(), self._serializer)
        for position, payload in failures.items():
            exception = load_exception(payload)
            if not self._return_exceptions:
                raise _with_index(exception, self.name, first + position, 1)
            values[position] = exception
        self._results.extend(values)


def _with_index(exception: BaseException, name: str, first: int, count: int) -> BaseException:
    """Say which item an exception is of: in a note, and as `item_index`."""
    where = f"item {first}" if count == 1 else f"items {first} to {first + count - 1}"
    exception.add_note(f"in {where} of map over {name}")
    with contextlib.suppress(AttributeError):  # an exception with slots
        exception.item_index = first  # type: ignore[attr-defined]
    return exception


@contextlib.contextmanager
def _bar(items: Iterable[Any], progress: bool, name: str) -> Iterator[Advance]:
    if not progress:
        yield int
        return
    from tqdm.auto import tqdm  # noqa: PLC0415 (it takes a while to import, and few need it)

    total = length_hint(items, -1)
    with tqdm(total=total if total >= 0 else None, desc=name) as bar:
        yield bar.update

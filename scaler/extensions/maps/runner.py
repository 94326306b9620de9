"""Submits the chunks of a `map` or `imap`, and collects the outcomes of their items.

If a whole chunk fails (lost worker or process, memory limit, missing argument), its items are resent one by one, and
only the faulty item fails. A chunk may use half of its items' attempts. The other half remains for the resent items.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any

from scaler import errors
from scaler.client.future import error_of
from scaler.client.options import MAX_SECONDS, Options
from scaler.client.task_calls import DISCONNECTED, TaskCalls
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import Reference, TaskTemplate
from scaler.extensions.chunk_options import why_alone
from scaler.extensions.maps.chunks import ChunkResults, ItemsFailedError, MapFunction, show_item
from scaler.extensions.maps.values import Items, PackedValues
from scaler.extensions.maps.window import Chunking
from scaler.grammar import counted
from scaler.protocol.messages import CallReport, is_stored
from scaler.serialization import dump_function, name_of, parts_of
from scaler.serialization.arguments import load_arguments
from scaler.serialization.exception_graph import assign, copy_of
from scaler.serialization.exceptions import annotate, load_exception, locate, remote_traceback

WAIT_STEP_SECONDS = 1.0
_OF_ONE_ITEM = (errors.ProcessorDiedError, errors.WorkerLostError, errors.MemoryLimitError, errors.ObjectLostError)
"""Failures of a chunk after which its items are resent one by one."""


def carry_through(function: Callable[[], object]) -> None:
    """Call an idempotent function. If Ctrl-C (often the second one) interrupts it, a new thread calls it again."""
    try:
        function()
    except Exception:
        raise
    except BaseException:
        threading.Thread(target=function, name="scaler-cancel", daemon=True).start()
        raise


@dataclass(slots=True, eq=False)
class FailedItem:
    exception: BaseException
    index: int


def failed_item(exception: BaseException, index: int, where: str) -> FailedItem:
    """Return the outcome of an item, and name the item in its exception."""
    locate(exception, where)
    with contextlib.suppress(AttributeError):  # the class has its own item_index
        assign(exception, "item_index", index)
    return FailedItem(exception, index)


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive items, from number `first` on, that are sent together."""

    first: int
    items: list[Any]
    """Kept after the submission only if nothing was sent because a future among the items had failed."""
    count: int
    payload: bytes = b""
    """Kept to resend and show items. In memory anyway or, if large, in the object storage."""
    references: tuple[Reference, ...] = ()
    parts: list[Chunk] = field(default_factory=list)
    """The items that were resent one by one, after a split."""
    future: TaskFuture | None = None
    error: BaseException | None = None
    """Why the whole chunk failed."""
    results: Any = None
    """ChunkResults, or the value of a single call."""
    shown: str = ""
    has_ended: bool = False
    earlier: int = 0
    """Number of attempts of the chunk that contained this single item."""
    ran_seconds: float | None = None
    """Run time on the worker once the chunk has ended; None if it failed."""
    sent_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0

    def settle(self) -> None:
        """Take the outcome of the ended task: the error of the whole chunk, or the results of its items."""
        if self.future is None:
            return
        error = error_of(self.future)
        if error is None:
            self.results = self.future.result()
        elif isinstance(error, ItemsFailedError):
            self.results = error.results
        else:
            self.error = error
            return
        self.ran_seconds = self.future.profiling_info().duration_s

    @property
    def failed(self) -> int:
        """The number of failed items, once all have ended."""
        if self.error is not None:
            return self.count
        return len(self.results.failures) if type(self.results) is ChunkResults else 0


def why_one(options: Options, serializer: object) -> str:
    """Return the reason why each item needs its own task, or "". losses=0: items of a lost chunk cannot be resent."""
    return why_alone(options, serializer) or ("" if options.max_losses else "losses=0")


class ChunkRunner:
    """Sends chunks and waits for them. `cancel` is thread-safe; all other methods run in one thread at a time."""

    def __init__(
        self,
        client: TaskCalls,
        fn: Callable[..., Any],
        options: Options,
        chunk_size: int | None,
        progress: CallReport,
        *,
        is_spread: bool,
    ) -> None:
        """is_spread: whether each item is a tuple of arguments."""
        self.chunk_size = chunk_size
        self.chunking = Chunking(chunk_size, time.monotonic())
        self.progress = progress
        self._client, self._fn, self._is_spread = client, fn, is_spread
        self._futures = client._futures
        self._function: MapFunction | None = None  # if each task is a single call
        if chunk_size != 1:
            self._function = MapFunction(dump_function(fn), name_of(fn), is_spread)
            self._function.functions.append(fn)
        self._chunk_attempts = (options.max_losses + 1) // 2
        """Maximum number of starts of a chunk whose processes die."""
        self._parent = client._parent()
        self._one = self._template(options)
        self._options = options._replace(context=self._one.spec.context)
        self._ended: SimpleQueue[Chunk] = SimpleQueue()
        self._in_flight: set[Chunk] = set()
        self._is_cancelled = False
        self._sent_items = 0

    @cached_property
    def _several(self) -> TaskTemplate:
        """The template of a chunk. Chunks of automatic size begin with one item."""
        seconds = min(self._options.expected_seconds * min(self.chunk_size or 1, MAX_SECONDS), MAX_SECONDS)
        return self._template(self._options._replace(losses=self._chunk_attempts, expected_seconds=seconds))

    @cached_property
    def _one_of_lost(self) -> TaskTemplate:
        """The template of an item whose chunk has started, with the chunk's remaining attempts."""
        left = self._options.max_losses - self._chunk_attempts
        return self._template(self._options._replace(losses=left + 1))

    def _template(self, options: Options) -> TaskTemplate:
        return self._client._templates.template(self._function or self._fn, options, self._parent)

    def send(self, items: list[Any]) -> Chunk:
        """Submit the next items together. Raises LimitError or ClientClosedError; an unsendable chunk fails."""
        chunk = Chunk(self._sent_items, items, len(items))
        self._send(chunk, self._one if chunk.count == 1 else self._several)
        self._sent_items += len(items)
        self.progress.sent = self._sent_items
        return chunk

    def take_ended(self, timeout_seconds: float | None) -> list[Chunk]:
        """Return the finished chunks, waiting for at least one. Raises UsageError and ClientClosedError."""
        ended: list[Chunk] = []
        with contextlib.suppress(Empty):
            if self._ended.empty() and (timeout_seconds is None or timeout_seconds > 0):
                self._futures.check_waitable()
                with self._futures.blocked():
                    ended.append(self._wait(timeout_seconds))
            while True:
                ended.append(self._ended.get_nowait())
        self._in_flight.difference_update(ended)
        now = time.monotonic()
        for chunk in ended:
            chunk.settle()
            self.chunking.ended(chunk.count, chunk.ran_seconds, now)
            self._take_apart(chunk)
            if chunk.count == 1 and chunk.error is not None:
                chunk.shown = "".join(map(show_item, self._items_sent(chunk)))
            chunk.has_ended = not chunk.parts
            chunk.items, chunk.payload, chunk.references = [], b"", ()
            if chunk.has_ended:
                self.progress.ended += chunk.count
                self.progress.failed += chunk.failed
        return [chunk for chunk in ended if chunk.has_ended]

    def _wait(self, timeout_seconds: float | None) -> Chunk:
        """Wait for a finished chunk, in steps that let Python handle signals in between. Raises Empty."""
        rest = math.inf if timeout_seconds is None else timeout_seconds
        while rest > WAIT_STEP_SECONDS:
            with contextlib.suppress(Empty):
                return self._ended.get(timeout=WAIT_STEP_SECONDS)
            rest -= WAIT_STEP_SECONDS
        return self._ended.get(timeout=rest)

    def cancel(self) -> None:
        self._is_cancelled = self.progress.is_over = True
        # Copying the set is atomic, so other threads may change it.
        carry_through(lambda: [chunk.future.cancel() for chunk in list(self._in_flight) if chunk.future is not None])

    def why_late(self, chunk: Chunk, timeout_seconds: float) -> str:
        assert chunk.future is not None, "a chunk that was never sent has ended"
        why = self._futures.why_late(chunk.future, timeout_seconds)
        return f"item {chunk.first} of {self.progress.verb} over {self.progress.name} has not ended: {why}"

    def explain(self) -> str:
        sent = [each for each in list(self._in_flight) if each.future is not None and not each.has_ended]
        if not sent:
            return f"all items of {self.progress.verb} over {self.progress.name} sent so far have ended"
        chunk = min(sent, key=lambda each: each.first)
        assert chunk.future is not None
        return f"item {chunk.first} of {self.progress.verb} over {self.progress.name}: {chunk.future.explain()}"

    def outcomes(self, chunk: Chunk) -> tuple[list[Any], bool]:
        """Return the values of a chunk's items, with `FailedItem` for a failed one, and whether any failed."""
        error, results = chunk.error, chunk.results
        if error is not None:
            failed = (self._failed(copy_of(error), chunk, each, shown=chunk.shown) for each in range(chunk.count))
            return list(failed), True
        if self._function is None:
            return [results], False
        values = results.values
        if not results.failures and isinstance(values, PackedValues):
            with contextlib.suppress(Exception):  # each faulty item raises it again below
                return values.all(), False
        outcomes = [self._outcome(chunk, position, results) for position in range(len(results))]
        return outcomes, any(type(outcome) is FailedItem for outcome in outcomes)

    def _outcome(self, chunk: Chunk, position: int, results: ChunkResults) -> Any:
        if position in results.failures:
            exception = load_exception(results.failures[position])
            trace = remote_traceback(exception)
            assert trace is not None, "the error came from a worker"
            shown, _, trace.text = trace.text.partition("\n")
            return self._failed(exception, chunk, position, is_own=True, shown=shown.removeprefix("item: "))
        try:
            return results[position]
        except errors.SerializationError as error:
            return self._failed(error, chunk, position, is_own=True)

    def _failed(
        self, exception: BaseException, chunk: Chunk, position: int, is_own: bool = False, shown: str = ""
    ) -> FailedItem:
        index = chunk.first + position
        where = f"item {index}"
        if not is_own and chunk.count > 1:
            where = f"items {chunk.first} to {chunk.first + chunk.count - 1}"
        where += f" of {self.progress.verb} over {self.progress.name}{shown and f': {shown}'}"
        failed = failed_item(exception, index, where)
        if chunk.earlier and isinstance(exception, _OF_ONE_ITEM):
            annotate(
                exception, f"{counted(chunk.earlier, 'earlier attempt')} ended with a chunk that contained other items"
            )
        return failed

    def _items_sent(self, chunk: Chunk) -> list[Any]:
        """Return the items that were sent; empty if they cannot be loaded outside a task."""
        if not chunk.payload:
            return []
        try:
            args, _ = load_arguments(parts_of(chunk.payload), chunk.references.__getitem__, self._client._serializer)
        except Exception:  # noqa: BLE001 (loading runs user code)
            return []
        if self._function is not None:
            return list(args[0])
        return [args if self._is_spread else args[0]]

    def _send(self, chunk: Chunk, template: TaskTemplate) -> None:
        items = chunk.items
        self.chunking.sent()
        self._in_flight.add(chunk)  # before sending, because `cancel` must find it
        try:
            if self._client._is_closed:
                raise errors.ClientClosedError(DISCONNECTED)
            args: tuple[Any, ...] = (Items(items) if len(items) > 1 else items,)
            if self._function is None:
                args = items[0] if self._is_spread else (items[0],)
            chunk.future = future = self._futures.submit(template, args, {})
        except (errors.SerializationError, errors.UsageError) as error:
            chunk.error = error
            if chunk.count == 1:
                chunk.items = []
                if self._function is not None:
                    chunk.error = self._function.error_of(items[0], self._futures, error)
            self._note_end(chunk)
            return
        if not is_stored(future.payload):
            chunk.payload, chunk.references = future.payload, future.references
        if chunk.count == 1 or not future.done():
            chunk.items = []
        future.add_done_callback(lambda _: self._note_end(chunk))
        if self._is_cancelled:
            future.cancel()

    def _take_apart(self, chunk: Chunk) -> None:
        if chunk.count == 1:
            return
        template, attempts = self._one, 0
        if chunk.future is not None and (chunk.error is None or remote_traceback(chunk.error) is None):
            # Without a remote traceback, the chunk had its arguments and may have called items.
            if not isinstance(chunk.error, _OF_ONE_ITEM):
                return
            template, attempts = self._one_of_lost, self._chunk_attempts
        for number, item in enumerate(chunk.items or self._items_sent(chunk), chunk.first):
            part = Chunk(number, [item], 1, earlier=attempts)
            chunk.parts.append(part)
            try:
                self._send(part, template)
            except errors.ScalerError as error:  # a limit or a closed client is the outcome of this item
                part.error, part.items = error, []
                self._note_end(part)

    def _note_end(self, chunk: Chunk) -> None:
        chunk.ended_at = time.monotonic()
        self._ended.put(chunk)

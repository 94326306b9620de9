"""The chunks of one `map` or `imap` on their way: sent, taken apart when they fail as a whole, and what they became.

A failure of a whole chunk says nothing about most of its items. When the process of a chunk died, when it took too
long, or when an argument was the reason, its items are sent again one by one, so that only the one at fault fails.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from scaler.client.calls import Call
from scaler.client.checks import check_integer
from scaler.client.chunks import Chunker
from scaler.client.future import ScalerFuture
from scaler.client.future_table import FutureTable
from scaler.client.locks import SteadyCondition, carry_through
from scaler.client.outcomes import copy_of
from scaler.client.tasks import Reference
from scaler.errors import (
    ProcessorDiedError,
    RemoteTraceback,
    ScalerError,
    SerializationError,
    TaskTimeoutError,
    UsageError,
)
from scaler.protocol.messages import is_stored
from scaler.serialization import (
    load_arguments,
    load_exception,
    parts_of,
)
from scaler.serialization.exceptions import annotate, assign

Submit = Callable[[list[Any]], ScalerFuture]


class Failed:
    """Stands among the values for an item that raised."""

    __slots__ = ("exception", "index")

    def __init__(self, exception: BaseException, index: int) -> None:
        self.exception = exception
        self.index = index


class Piece:
    """Consecutive items, from number `first` on, that travel together.

    parts: its items one by one, when it was taken apart. For that it keeps the payload of several items, not the items:
    it is in memory anyway. What has gone through the object storage is not kept, it could be large.
    """

    __slots__ = (
        "count",
        "ended_at",
        "error",
        "first",
        "future",
        "has_ended",
        "items",
        "parts",
        "payload",
        "references",
        "sent_at",
    )

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first = first
        self.count = len(items)
        self.items = items
        """Empty when they were sent."""
        self.payload = b""
        self.references: tuple[Reference, ...] = ()
        self.parts: list[Piece] = []
        self.future: ScalerFuture | None = None
        self.error: BaseException | None = None
        """Why it could not be sent."""
        self.has_ended = False
        self.sent_at = self.ended_at = time.monotonic()

    def failure(self) -> BaseException | None:
        """Return why the whole has failed, None when it has not. Called when it has ended."""
        if self.future is None:
            return self.error
        return CancelledError() if self.future.cancelled() else self.future.exception()

    def duration_seconds(self) -> float | None:
        """Return what it took on its worker, None when it failed."""
        if self.future is None or self.failure() is not None:
            return None
        return self.future.profiling_info().duration_s


class Pieces:
    """Sends chunks and waits for them. `cancel` may be called from any thread, the rest from one at a time."""

    def __init__(self, call: Call, submit: Submit, futures: FutureTable, chunk_size: int | None) -> None:
        """Raises UsageError."""
        if chunk_size is not None:
            check_integer("chunk_size", chunk_size, 1)
        self.chunker = Chunker(chunk_size, time.monotonic())
        self._call = call
        self._submit = submit
        self._futures = futures
        self._changed = SteadyCondition()
        self._ended: list[Piece] = []
        self._in_flight: set[Piece] = set()
        self._is_cancelled = False
        self._sent_items = 0

    def send(self, items: list[Any]) -> Piece:
        """Submit the next items together. Raises LimitError or ClientClosedError; what cannot be sent has failed."""
        piece = self._send(items, self._sent_items)
        self._sent_items += len(items)
        return piece

    def take_ended(self, timeout_seconds: float | None) -> list[Piece]:
        """Return the pieces that have ended since the last call; when there is none, wait for one.

        Raises UsageError in a thread that must not wait, and ClientClosedError.
        """
        if not self._ended and (timeout_seconds is None or timeout_seconds > 0):
            self._futures.check_waitable()
            with self._futures.waiting(), self._changed:
                self._changed.wait_for(lambda: self._ended, timeout_seconds)
        if not self._ended:
            return []
        with self._changed:
            ended, self._ended = self._ended, []
            self._in_flight.difference_update(ended)
        now = time.monotonic()
        whole = []
        for piece in ended:
            self.chunker.ended(piece.count, piece.duration_seconds(), now)
            self._take_apart(piece)
            if not piece.parts:
                piece.has_ended = True
                whole.append(piece)
            piece.items, piece.payload, piece.references = [], b"", ()
        return whole

    def cancel(self) -> None:
        """Cancel all that has not ended, and all that is sent from now on."""
        carry_through(self._cancel)

    def _cancel(self) -> None:
        with self._changed:
            self._is_cancelled = True
            pieces = list(self._in_flight)
        for piece in pieces:
            if piece.future is not None:
                piece.future.cancel()

    def outcomes(self, piece: Piece) -> tuple[list[Any], bool]:
        """Return what the items of a piece that has ended became: values, and `Failed` for those that raised.

        And whether any has raised.
        """
        failure = piece.failure()
        if failure is not None:
            return [self._failed(copy_of(failure), piece, position) for position in range(piece.count)], True
        assert piece.future is not None, "what was not sent has failed"
        results = piece.future.result()
        values: list[Any] = results.values
        if self._call.is_plain and not results.failures:
            return values, False
        outcomes = [self._outcome(piece, position, value, results.failures) for position, value in enumerate(values)]
        return outcomes, any(type(outcome) is Failed for outcome in outcomes)

    def count_failed(self, piece: Piece) -> int:
        """Return how many items of a piece that has ended failed, before any value of it is loaded."""
        if piece.failure() is not None:
            return piece.count
        assert piece.future is not None, "what was not sent has failed"
        return len(piece.future.result().failures)

    def _outcome(self, piece: Piece, position: int, value: Any, failures: dict[int, bytes]) -> Any:
        if position in failures:
            return self._failed(load_exception(failures[position]), piece, position, is_own=True)
        try:
            return self._call.load(value)
        except SerializationError as error:
            return self._failed(error, piece, position, is_own=True)

    def _failed(self, exception: BaseException, piece: Piece, position: int, is_own: bool = False) -> Failed:
        """Say which item an exception is of: in a note, and as `item_index`."""
        index = piece.first + position
        where = f"item {index}"
        if not is_own and piece.count > 1:
            where = f"items {piece.first} to {piece.first + piece.count - 1}"
        annotate(exception, f"in {where} of {self._call.verb} over {self._call.name}")
        with contextlib.suppress(AttributeError):  # its class has one of its own
            assign(exception, "item_index", index)
        return Failed(exception, index)

    def _send(self, items: list[Any], first: int, is_made: bool = False) -> Piece:
        """is_made: the items are what `Call.arguments` made of them."""
        piece = Piece(first, items)
        self.chunker.sent()
        with self._changed:  # before it is sent, and its future noted first of all: a Ctrl-C must find it to cancel it
            self._in_flight.add(piece)
        try:
            piece.future = future = self._submit(items if is_made else self._call.arguments(items))
        except (SerializationError, UsageError) as error:
            piece.error = error
            if piece.count == 1:
                piece.error = error if is_made else self._call.blame(items[0], self._futures, error)
                piece.items = []
            self._note_end(piece)
            return piece
        if piece.count > 1 and not is_stored(future.payload):
            piece.payload, piece.references = future.payload, future.references
        if piece.count == 1 or not future.done():  # otherwise a future among them has failed, and nothing was sent
            piece.items = []
        future.add_done_callback(lambda _: self._note_end(piece))
        if self._is_cancelled:
            future.cancel()
        return piece

    def _take_apart(self, piece: Piece) -> None:
        """Send the items of a piece one by one, if it is one of several and that is of use."""
        if piece.future is not None and not _is_to_take_apart(piece.failure()):
            return
        is_made = not piece.items
        for number, item in enumerate(piece.items or _items_sent(piece), piece.first):
            try:
                part = self._send([item], number, is_made)
            except ScalerError as error:  # a limit, or the client was closed: the outcome of that item
                part = Piece(number, [item])
                part.items = []
                part.error = error
                self._note_end(part)
            piece.parts.append(part)

    def _note_end(self, piece: Piece) -> None:
        piece.ended_at = time.monotonic()
        with self._changed:
            self._ended.append(piece)
            self._changed.notify()


def ended_first(waiting: deque[Piece]) -> Iterator[Piece]:
    """Take the pieces at the front that have ended; the parts of one that was taken apart stand in its place."""
    while waiting and (waiting[0].has_ended or waiting[0].parts):
        piece = waiting.popleft()
        if piece.parts:
            waiting.extendleft(reversed(piece.parts))
        else:
            yield piece


def _items_sent(piece: Piece) -> list[Any]:
    """Return what was sent of a piece's items, none when it is not there or cannot be loaded outside of a task."""
    if not piece.payload:
        return []
    try:
        (items,), _ = load_arguments(parts_of(piece.payload), piece.references.__getitem__)
    except Exception:  # noqa: BLE001 (what the user's code does when it is loaded)
        return []
    return list(items)


def _is_to_take_apart(failure: BaseException | None) -> bool:
    """Tell whether to send the items of a chunk one by one, given why the whole has failed.

    A remote traceback means that no item was called: arguments could not be had, or a future among them has failed.
    """
    if isinstance(failure, ProcessorDiedError | TaskTimeoutError):
        return True
    return failure is not None and isinstance(failure.__cause__, RemoteTraceback)

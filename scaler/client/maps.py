"""One run of `map` or `starmap`: cuts items into chunks, submits them, and puts the results in order."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import length_hint
from typing import Any

from scaler.client.pieces import Failed, Piece, Pieces, ended_first
from scaler.errors import UsageError

Advance = Callable[[int], object]


def side_by_side(iterables: Sequence[Iterable[Any]], verb: str) -> Iterator[Any]:
    """Return the items of one iterable, or tuples of those of several. Raises UsageError or TypeError."""
    if not iterables:
        raise UsageError(f"{verb} needs at least one iterable")
    return zip(*iterables, strict=False) if len(iterables) > 1 else iter(iterables[0])


def as_tuples(items: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return the items of a starmap. Raises UsageError at one that is not an iterable of arguments."""
    for index, item in enumerate(items):
        try:
            yield tuple(item)
        except TypeError:
            if isinstance(item, Iterable):
                raise
            raise UsageError(
                f"item {index} of starmap is {item!r}, and must be an iterable of arguments, such as a tuple"
            ) from None


def count_of(iterables: Sequence[Iterable[Any]]) -> int | None:
    """Return how many items the iterables have side by side, or None when one does not say."""
    counts = [length_hint(iterable, -1) for iterable in iterables]
    return None if -1 in counts else min(counts)


class MapRun:
    """One run. return_exceptions: exceptions stand among the results instead of being raised."""

    def __init__(self, pieces: Pieces, return_exceptions: bool) -> None:
        self._pieces = pieces
        self._return_exceptions = return_exceptions
        self._waiting: deque[Piece] = deque()
        self._results: list[Any] = []

    def run(self, items: Iterator[Any], total: int | None, progress_of: str | None) -> list[Any]:
        """Submit all and wait for all; results in order. When it raises, what has not ended is cancelled.

        total: how many items there are, if known. progress_of: show a bar with this name.
        """
        try:
            bar, advance = _bar(total, progress_of)
            with bar:
                self._submit_all(items, advance)
                while self._waiting:
                    self._take_ended(advance, None)
        except BaseException:
            self._pieces.cancel()
            raise
        return self._results

    def _submit_all(self, items: Iterator[Any], advance: Advance) -> None:
        chunker = self._pieces.chunker
        while True:
            now = time.monotonic()
            size = chunker.next_size(now)
            if not size:
                self._take_ended(advance, chunker.wake_at - now)
                continue
            chunk = list(itertools.islice(items, size))
            if not chunk:
                return
            self._waiting.append(self._pieces.send(chunk))
            self._take_ended(advance, 0.0)

    def _take_ended(self, advance: Advance, timeout_seconds: float | None) -> None:
        """Note what has ended; when nothing has, wait for it. Raises the exception of an item, if that is asked for."""
        for piece in self._pieces.take_ended(timeout_seconds):
            advance(piece.count)
        for piece in ended_first(self._waiting):
            outcomes, has_failed = self._pieces.outcomes(piece)
            self._results += [self._result(outcome) for outcome in outcomes] if has_failed else outcomes

    def _result(self, outcome: Any) -> Any:
        if type(outcome) is not Failed:
            return outcome
        if not self._return_exceptions:
            raise outcome.exception
        return outcome.exception


def _bar(total: int | None, name: str | None) -> tuple[AbstractContextManager[object], Advance]:
    if name is None:
        return contextlib.nullcontext(), int
    from tqdm.auto import tqdm  # noqa: PLC0415 (it takes a while to import, and few need it)

    bar = tqdm(total=total, desc=name)
    return bar, bar.update

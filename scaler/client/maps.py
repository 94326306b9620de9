"""One run of `map` or `starmap`: cuts items into chunks, submits them, and puts the results in order."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from operator import length_hint
from typing import Any

from scaler.client.pieces import Failed, Piece, Pieces, ended_first
from scaler.client.progress import Progress
from scaler.errors import UsageError


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

    def run(self, items: Iterator[Any], progress: Progress | None) -> list[Any]:
        """Submit all and wait for all; results in order. When it raises, what has not ended is cancelled.

        progress: is told what has ended, and closed.
        """
        try:
            with progress or nullcontext():
                self._submit_all(items, progress)
                while self._waiting:
                    self._take_ended(progress, None)
        except BaseException:
            self._pieces.cancel()
            raise
        return self._results

    def _submit_all(self, items: Iterator[Any], progress: Progress | None) -> None:
        chunker = self._pieces.chunker
        while True:
            now = time.monotonic()
            size = chunker.next_size(now)
            if not size:
                self._take_ended(progress, chunker.wake_at - now)
                continue
            chunk = list(itertools.islice(items, size))
            if not chunk:
                return
            self._waiting.append(self._pieces.send(chunk))
            self._take_ended(progress, 0.0)

    def _take_ended(self, progress: Progress | None, timeout_seconds: float | None) -> None:
        """Note what has ended; when nothing has, wait for it. Raises the exception of an item, if that is asked for."""
        ended = self._pieces.take_ended(timeout_seconds)
        if progress is not None:
            progress.ended(ended)
        for piece in ended_first(self._waiting):
            outcomes, has_failed = self._pieces.outcomes(piece)
            self._results += [self._result(outcome) for outcome in outcomes] if has_failed else outcomes

    def _result(self, outcome: Any) -> Any:
        if type(outcome) is not Failed:
            return outcome
        if not self._return_exceptions:
            raise outcome.exception
        return outcome.exception

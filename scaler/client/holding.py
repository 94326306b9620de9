"""A chunk of items that grows while their iterable is asked for the next one, which may depend on their results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from scaler.errors import ScalerError

HELD_SECONDS = 0.01
"""So long, and no more than twice that, items wait for the next one of their chunk."""


class Holding:
    """Has another thread send what was held for too long. It looks as long as something is held now and then."""

    __slots__ = ("_call_later", "_chunk", "_is_watched", "_send", "_since", "lock")

    def __init__(
        self,
        send: WeakMethod[Callable[[list[Any]], None]],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """send: is called in the other thread, under `lock`; of an iterator that nobody has any more there is none.

        call_later: calls something in the other thread after so many seconds.
        """
        self.lock = threading.Lock()
        """Take it to send items."""
        self._send = send
        self._call_later = call_later
        self._chunk: list[Any] | None = None
        self._since = 0.0
        self._is_watched = False

    def begin(self, chunk: list[Any]) -> None:
        """Hold a list to which items are added. Those that are sent are taken off."""
        with self.lock:
            self._chunk, self._since = chunk, time.monotonic()
            if self._is_watched:
                return
            self._is_watched = True
        self._call_later(HELD_SECONDS, self._look)

    def end(self) -> None:
        """The list is complete: what is left in it is sent by whoever takes the lock next."""
        self._chunk = None

    def _look(self) -> None:
        if self.lock.acquire(blocking=False):  # otherwise somebody is sending
            try:
                chunk = self._chunk  # `end` may come at any moment
                if chunk is None:
                    self._is_watched = False
                    return
                if chunk and time.monotonic() - self._since >= HELD_SECONDS:
                    self._let_go(chunk)
            finally:
                self.lock.release()
        self._call_later(HELD_SECONDS, self._look)

    def _let_go(self, held: list[Any]) -> None:
        send = self._send()
        if send is None:
            return
        items = held[:]  # what comes meanwhile is added behind
        try:
            send(items)
        except ScalerError:
            return  # who takes the results will meet it
        del held[: len(items)]

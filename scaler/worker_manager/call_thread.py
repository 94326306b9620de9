"""A thread for blocking backend calls that does not delay a manager's exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

FIRST_ANSWER_SECONDS = 0.75  # a stopping process waits this long to create the backend, and this long to list units

_Result = TypeVar("_Result")
_threads: WeakSet[CallThread] = WeakSet()


class CallThread:
    """Makes calls one at a time. A daemon thread, so that a hanging call does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished: list[Future[object]] = []
        _threads.add(self)
        threading.Thread(target=self._run, name="backend", daemon=True).start()

    def call(self, function: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Make a call and return its result on the running loop. Skips calls cancelled in the queue."""
        answer: Future[_Result] = Future()

        def make() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001 (raised again where the result is awaited)
                    answer.set_exception(error)

        self._unfinished = [each for each in self._unfinished if not each.done()] + [answer]  # type: ignore[list-item]
        self._calls.put(make)
        return asyncio.wrap_future(answer)

    @property
    def is_busy(self) -> bool:
        return any(not each.done() for each in self._unfinished)

    def shutdown(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (make := self._calls.get()) is not None:
            make()


def has_calls_left() -> bool:
    return any(thread.is_busy for thread in list(_threads))


async def answered_before(call: asyncio.Future[Any], end: asyncio.Event) -> bool:
    """Wait for a call. If the process is stopped first, cancel the call and return False."""
    ending = asyncio.create_task(end.wait())
    try:
        await asyncio.wait({call, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            await asyncio.wait({call}, timeout=FIRST_ANSWER_SECONDS)
        return not call.cancel()
    finally:
        ending.cancel()

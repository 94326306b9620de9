"""The thread that calls an executor, so that nothing the agent does waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaler.errors import ScalerError
from scaler.worker.call import Call
from scaler.worker.executor import CallKey, Executor, ExecutorError, Report

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """The executor has started."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The executor took what it was given, or some of it."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The executor did not take these."""

    keys: Sequence[CallKey]
    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The executor raised what it must not: the agent ends with it."""

    error: BaseException


News = Report | Ready | Taken | NotTaken | Broken


class Hands:
    """Gives calls to an executor. Belongs to the running loop; on_news is called there with all that has come."""

    def __init__(self, executor: Executor, on_news: Callable[[list[News]], None]) -> None:
        self._executor = executor
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._news: deque[News] = deque()
        self._is_due = False
        self._is_closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._changed = threading.Condition()
        self._calls: dict[CallKey, Call] = {}
        self._cancels: list[CallKey] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="executor")
        self._thread.start()

    def run(self, call: Call) -> None:
        """Have a call run. All that come while the executor is busy are handed on together."""
        with self._changed:
            self._calls[call.key] = call
            self._changed.notify()

    def cancel(self, key: CallKey) -> None:
        """Have a call ended, or not handed on any more."""
        with self._changed:
            if self._calls.pop(key, None) is None:
                self._cancels.append(key)
                self._changed.notify()

    async def close(self) -> None:
        """Have the executor end what is left, and wait until it has."""
        self._is_closed = True
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        try:
            await self._ended
        finally:
            self._thread.join()

    # -- in the thread

    def _work(self) -> None:
        try:
            self._executor.start(self._tell)
            self._tell(Ready())
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001 (the agent ends with it)
            self._tell(Broken(error))
        bug: BaseException | None = None
        try:
            self._executor.close()
        except ScalerError as error:
            _log.error("%s", error)  # it says what may be left, and how to end it
        except BaseException as error:  # noqa: BLE001 (raised where the agent waits for the end)
            bug = error
        self._loop.call_soon_threadsafe(self._end, bug)

    def _step(self) -> bool:
        with self._changed:
            while not (self._calls or self._cancels or self._is_closing):
                self._changed.wait()
            if self._is_closing:
                return False
            calls, self._calls = list(self._calls.values()), {}
            cancels, self._cancels = self._cancels, []
        if cancels:
            try:
                self._executor.cancel(cancels)
            except ExecutorError as error:
                _log.warning("%d cancelled tasks may still run: %s", len(cancels), error)
        if calls:
            try:
                self._executor.run(calls)
            except ExecutorError as error:
                taken = set(error.taken)
                left = [call.key for call in calls if call.key not in taken]
                with self._changed:
                    gone = set(left)
                    self._cancels = [key for key in self._cancels if key not in gone]
                if taken:
                    self._tell(Taken())
                self._tell(NotTaken(left, str(error)))
            else:
                self._tell(Taken())
        return True

    def _end(self, bug: BaseException | None) -> None:
        if bug is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(bug)

    # -- in any thread

    def _tell(self, news: News) -> None:
        """Pass on what the executor says. What comes after the end is dropped."""
        with self._changed:
            self._news.append(news)
            if self._is_due:
                return
            self._is_due = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: some services call back late
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._changed:
            self._is_due = False
            news = list(self._news)
            self._news.clear()
        if not self._is_closed:
            self._on_news(news)

"""ScalerFuture: a `concurrent.futures.Future` without its own lock and condition.

One lock per client serves all futures: a waiting thread adds its own lock to the future, and the client's thread
resolves a batch under one acquisition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from scaler.client.tasks import TaskSettled
from scaler.errors import UsageError
from scaler.ids import IdFactory
from scaler.protocol.messages import Spec
from scaler.serialization.exceptions import hide_frames, hiding_frames
from scaler.texts import escaped, shown

# The state names of concurrent.futures, which `wait`, `as_completed`, and asyncio compare.
PENDING: Final = "PENDING"
CANCELLED: Final = "CANCELLED_AND_NOTIFIED"
FINISHED: Final = "FINISHED"

MAX_NAME_CHARACTERS = 80
IN_CALLBACK = "a future's callback cannot wait for another future: both use the same thread"

_log = logging.getLogger(__name__)

Callback = Callable[["ScalerFuture"], object]


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """Measurements of a task. CPU time and memory are 0 unless the task was submitted with profiling."""

    duration_us: int
    """Wall time, microseconds."""
    cpu_time_us: int = 0
    peak_memory: int = 0
    """Bytes."""

    @property
    def duration_s(self) -> float:
        """Wall time, seconds."""
        return self.duration_us * 1e-6

    @property
    def cpu_time_s(self) -> float:
        """CPU time, seconds."""
        return self.cpu_time_us * 1e-6


class FutureOwner(Protocol):
    """What a future needs from its client's table of futures."""

    condition: SteadyCondition
    closed: str | None
    thread: threading.Thread | None
    ids: IdFactory
    read: tuple[bytes, bytes]
    blocked: Callable[[], AbstractContextManager[object]]
    why_late: Callable[[ScalerFuture, float], str]
    explain: Callable[[ScalerFuture], str]

    def check_open(self) -> None: ...
    def check_process(self) -> None: ...
    def may_wait(self) -> bool: ...
    def check_waitable(self) -> None: ...
    def put(self, occurred: TaskSettled) -> None: ...


class SteadyCondition(threading.Condition):
    """A condition with a re-entrant lock, whose `with` is safe against Ctrl-C.

    `threading.Condition` enters its lock in Python code, where Ctrl-C can leave the lock acquired forever. The lock's
    own methods never raise KeyboardInterrupt after acquiring it.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def wait(self, timeout: float | None = None) -> bool:
        """Like `threading.Condition.wait`, but always holds the lock at the end, even after Ctrl-C."""
        try:
            return super().wait(timeout)
        except BaseException:  # Ctrl-C may arrive just after the lock was released
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise

    if not TYPE_CHECKING:
        __enter__ = property(attrgetter("_lock.__enter__"))
        __exit__ = property(attrgetter("_lock.__exit__"))


class Unloaded:
    """A value loaded by its first reader, because loading may run slow user code and delay the client's thread."""

    __slots__ = ("load", "lock")

    def __init__(self, load: Callable[[], tuple[object, BaseException | None]]) -> None:
        self.load = load
        self.lock = threading.RLock()


def check_future(given: object) -> None:
    """Raise UsageError unless the argument is a client's future. Rejects mocks and proxies."""
    if not issubclass(type(given), ScalerFuture):
        raise UsageError(f"{shown(given)} is not a future of a client")


def error_of(future: Future[Any]) -> BaseException | None:
    """Wait for a future; return its exception, a CancelledError if it was cancelled, or None."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def end_of(future: ScalerFuture) -> asyncio.Event:
    ended = asyncio.Event()
    future.add_done_callback(CalledInLoop(asyncio.get_running_loop(), lambda _: ended.set()))
    return ended


@dataclass(frozen=True, slots=True)
class CalledInLoop:
    """A callback that runs in its event loop instead of the client's thread."""

    loop: asyncio.AbstractEventLoop
    function: Callback

    def __call__(self, future: ScalerFuture) -> None:
        if asyncio._get_running_loop() is self.loop:
            self.function(future)
            return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(self.function, future)


class ScalerFuture(Future[Any], ABC):
    """The future value of a task, with the methods of `concurrent.futures.Future`.

    A task that gets the future as an argument waits for its value. In an event loop, `await future` returns the value.

    Example:
        ```python
        future = client.submit(pow, 2, 10)
        client.submit(print, future)                     # a task that receives 1024
        print(future.result(timeout=5), future.explain())
        ```
    """

    __slots__ = ()
    task_id: bytes
    """The task's id in the scheduler and its monitors."""
    _owner: FutureOwner
    _spec: Spec
    _state: str
    _result: Any
    _exception: BaseException | None
    _profile: int | tuple[int, int, int]
    _has_started: bool
    _waiting: list[Any] | None
    _callbacks: list[Callback] | None

    # -- internals of Future that concurrent.futures uses on any future

    if not TYPE_CHECKING:  # typeshed declares them as attributes

        @property
        def _condition(self) -> threading.Condition:
            return self._owner.condition

        @property
        def _waiters(self) -> list[Any]:
            self._owner.check_process()
            if not self._owner.may_wait():
                raise UsageError(IN_CALLBACK)
            if self._waiting is None:
                self._waiting = []
            return self._waiting

    # -- public methods

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value and return it.

        Args:
            timeout: maximum wait in seconds. Default: no limit.

        Raises:
            Exception: The exception that the task raised.
            TaskError: The task did not complete, as with WorkerLostError.
            CancelledError: The task was cancelled.
            TimeoutError: The task has not ended. The message contains the reason. Querying
                the scheduler for the reason takes up to a tenth of the timeout, at most 1 s.
        """
        try:
            if self._state is PENDING:
                self._wait(timeout)
            if type(self._result) is Unloaded:
                self._load()
            if self._state is CANCELLED:
                raise CancelledError
            if self._exception is not None:
                raise self._exception.with_traceback(None)  # otherwise, each call would extend the traceback
        except BaseException as error:
            hide_frames(error)
            raise
        return self._result

    @hiding_frames
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the task, and return the exception that `result` would raise, or None.

        Args:
            timeout: maximum wait in seconds. Default: no limit.

        Raises:
            CancelledError: The task was cancelled.
            TimeoutError: The task has not ended.
        """
        if self._state is PENDING:
            self._wait(timeout)
        if self._state is CANCELLED:
            raise CancelledError
        if type(self._result) is Unloaded:
            self._load()
        return self._exception

    def cancel(self) -> bool:
        """Cancel the task, even if it is running. Returns False if the task had already ended."""
        self._owner.check_process()
        with self._owner.condition:
            if self._state is not PENDING:
                return self._state is CANCELLED
            self._cancel()
        self._run_callbacks()
        return True

    @abstractmethod
    def _load(self) -> None:
        """Load an unloaded value. Concurrent calls load it once."""

    @property
    @abstractmethod
    def _has_stayed(self) -> bool:
        """True if the value is fetched on demand and has not been fetched yet."""

    @property
    @abstractmethod
    def _label(self) -> str:
        """The name of the task for display."""

    @abstractmethod
    def _cancel(self) -> None:
        """End as cancelled, under the lock, and make the client cancel the task."""

    def cancelled(self) -> bool:
        """Return whether the task was cancelled."""
        return self._state is CANCELLED

    def running(self) -> bool:
        """Return whether the task is running. The client is informed after about 50 ms, so shorter tasks never count.

        A lost task that waits for a retry still counts as running.
        """
        return self._has_started and self._state is PENDING

    def done(self) -> bool:
        """Return whether the task has a value or an error, or was cancelled."""
        return self._state is not PENDING

    @hiding_frames
    def explain(self) -> str:
        """Explain in one sentence why the task is waiting, what it is doing, or how it ended.

        The scheduler retains the last few thousand finished tasks.

        Raises:
            UnreachableError: The scheduler does not answer.
            ClientClosedError: The client is closed.
        """
        self._owner.check_open()
        return self._owner.explain(self)

    def add_done_callback(self, fn: Callback) -> None:
        """Call `fn(future)` in the client's thread when the task ends, or immediately if it has ended."""
        self._owner.check_process()
        loop = asyncio._get_running_loop()
        if loop is not None and getattr(fn, "__module__", "") == "asyncio.tasks":  # `asyncio.wait` is not thread-safe
            fn = CalledInLoop(loop, fn)
        with self._owner.condition:
            if self._state is PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(fn)
                return
        self._call(fn)

    def remove_done_callback(self, fn: Callback) -> int:
        """Remove all pending callbacks `fn`; return their number. `asyncio.wait` calls this."""
        with self._owner.condition:
            callbacks = self._callbacks or []
            left = [each for each in callbacks if fn not in (each, getattr(each, "function", None))]
            self._callbacks = left or None
        return len(callbacks) - len(left)

    def profiling_info(self) -> ProfilingInfo:
        """Return the measurements of the task.

        Raises:
            UsageError: The task has not ended.
        """
        if self._state is PENDING:
            raise UsageError("the task has not ended: call result() before profiling_info()")
        if isinstance(self._profile, tuple):
            return ProfilingInfo(*self._profile)
        return ProfilingInfo(self._profile)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the value in an event loop. Cancelling the waiting coroutine cancels the task, as in asyncio."""
        try:
            yield from self._ended()
            return self.result()
        except BaseException as error:
            hide_frames(error)
            raise

    def _ended(self) -> Generator[Any, None, None]:
        if self._state is PENDING:
            self._owner.check_waitable()
            ended = end_of(self)
            with self._owner.blocked():
                try:
                    yield from ended.wait().__await__()
                except asyncio.CancelledError:
                    self.cancel()
                    raise
        if self._state is CANCELLED:
            raise asyncio.CancelledError
        if self._has_stayed:
            with self._owner.blocked():
                yield from asyncio.get_running_loop().run_in_executor(None, self._load).__await__()

    def __repr__(self) -> str:
        return f"<ScalerFuture {self.task_id.hex()} of {escaped(self._spec.name, MAX_NAME_CHARACTERS)} {self._shown()}>"

    def _shown(self) -> str:
        if self._state is PENDING:
            return "running" if self._has_started else "pending"
        if self._state is CANCELLED:
            return "cancelled"
        return "finished" if self._exception is None else f"raised {type(self._exception).__name__}"

    def set_running_or_notify_cancel(self) -> bool:
        """Refused: only the client sets the state."""
        raise InvalidStateError("only the client may set the state of a ScalerFuture")

    def set_result(self, result: Any) -> None:  # noqa: ARG002 (as in `Future`)
        """Refused: only the client sets the result."""
        raise InvalidStateError("only the client may set the result of a ScalerFuture")

    def set_exception(self, exception: BaseException | None) -> None:  # noqa: ARG002 (as in `Future`)
        """Refused: only the client sets the exception."""
        raise InvalidStateError("only the client may set the exception of a ScalerFuture")

    def _run_callbacks(self) -> None:
        """Call the callbacks of a future that has just ended. Called without the lock."""
        callbacks = self._callbacks
        self._callbacks = None
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self)
        except BaseException as error:
            _log.exception("exception calling callback for %r", self)
            # An error must not end the client's thread, but Ctrl-C in the main thread is meant for the program.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise

    def _wait(self, timeout: float | None) -> None:
        owner = self._owner
        if owner.closed is not None or threading.current_thread() is owner.thread:
            owner.check_waitable()
        owner.read = self.task_id, owner.ids.task()
        lock = threading.Lock()
        lock.acquire()
        with owner.condition:
            if self._state is not PENDING:
                return
            if self._waiting is None:
                self._waiting = [lock]
            else:
                self._waiting.append(lock)
        with owner.blocked():
            if lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return
            with owner.condition:
                if self._waiting is not None and lock in self._waiting:
                    self._waiting.remove(lock)
            why = owner.why_late(self, timeout or 0.0)
            if self._state is PENDING:
                raise TimeoutError(f"{self._label} has not ended: {why}")

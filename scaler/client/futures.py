"""The futures of one client, guarded by one lock, from the arguments of a call to the end of its task."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from scaler import errors
from scaler.client import tasks as t
from scaler.client.future import IN_CALLBACK, PENDING, ScalerFuture, SteadyCondition
from scaler.client.options import Options
from scaler.client.session import TaskSession
from scaler.client.task_future import TaskFuture
from scaler.grammar import counted
from scaler.ids import IdFactory
from scaler.protocol.messages import INLINE_LIMIT_BYTES, MAX_REFERENCES, Message, PayloadTag
from scaler.serialization import Parts, size_of, to_payload
from scaler.serialization.arguments import DependencyFailedError, dump_arguments
from scaler.serialization.exception_graph import copy_of

MAX_CACHED_PAYLOADS = 256
MAX_CACHED_BYTES = 1024
_IMMUTABLE = frozenset({int, bool, str, type(None)})
"""Types whose equal values have equal payloads. Excludes floats, because 0.0 equals -0.0."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Bytes of unsent tasks above which submit waits."""

_ENDED = "the client has ended"
_T = TypeVar("_T")
Profile = int | tuple[int, int, int]
"""Microseconds, or (microseconds, CPU microseconds, peak bytes)."""
Resolved = tuple[TaskFuture, Any, BaseException | None, Profile]


class Observer(Protocol):
    """An extension that observes tasks and sets their contexts."""

    def context(self, options: Options) -> str:
        """Return the `Spec.context` of tasks that this thread is about to submit with these options."""

    def submitting(self, futures: Sequence[TaskFuture]) -> None:
        """Called for each submission, under the lock and before the tasks can end. Must not raise."""


class FutureTable:
    """The futures of a client, with their lock and inbox, and the task session. Safe to use from any thread.

    Calls put inputs into the inbox and wake the client's thread at most once per idle period.
    """

    def __init__(
        self,
        ids: IdFactory,
        *,
        wake: Callable[[], object],
        upload: Callable[[Parts], t.ObjectUpload],
        blocked: Callable[[], AbstractContextManager[object]],
        why_late: Callable[[ScalerFuture, float], str],
        explain: Callable[[ScalerFuture], str],
        timeout_seconds: float,
    ) -> None:
        """wake: wake the client's thread. upload: store parts. blocked: return a context in which a waiting task lends
        its slot. why_late: return why a task missed a timeout. explain: return why a task waits or how it ended."""
        self.condition = SteadyCondition()
        self.blocked = blocked
        self.why_late = why_late
        self.explain = explain
        self.thread: threading.Thread | None = None
        """The client's own thread, which must not wait for itself."""
        self.event_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Event loops that run an AsyncClient, which submit must not block."""
        self.closed: str | None = None
        self.observer: Observer | None = None
        self.inbox: list[t.SessionInput] = []
        self.is_awake = False
        self.wake_thread = wake
        self._is_forked = False
        self.ids = ids
        self.session = TaskSession()
        self.upload = upload
        self.timeout_seconds = timeout_seconds
        self.max_pending_tasks = -1
        self.registered: WeakValueDictionary[bytes, t.FunctionReference] = WeakValueDictionary()
        """Functions and serializers that templates use, by id."""
        self.releases: deque[bytes] = deque()
        """Ids of unreferenced functions, objects, and results. Any thread may append."""
        self.released = 0
        self._inbox_bytes = 0
        self._payloads: dict[tuple[int | tuple[type, object], ...], bytes] = {}
        """Payloads of arguments that are futures and constants, by the futures' indexes and the constants' values."""
        self._waiting_threads = 0
        self._running: set[Future[Any]] = set()
        self.read = b"", b""
        """The task whose value was requested last, and the next task id at that time."""

    def check_open(self) -> None:
        """Raise ClientClosedError if the client was disconnected or belongs to the parent process."""
        if self.closed is not None:
            raise errors.ClientClosedError(self.closed)

    def check_process(self) -> None:
        """Raise ClientClosedError in a forked child, whose requests would be lost."""
        if self._is_forked:
            self.check_open()

    def check_waitable(self) -> None:
        """Raise ClientClosedError or UsageError if the thread may not wait."""
        self.check_open()
        if threading.current_thread() is self.thread:
            raise errors.UsageError(IN_CALLBACK)

    def may_wait(self) -> bool:
        return threading.current_thread() is not self.thread

    def may_block(self) -> bool:
        """Return whether submit may block this thread: not the client's own thread or an AsyncClient's event loop."""
        return self.may_wait() and (not self.event_loops or asyncio._get_running_loop() not in self.event_loops)

    def put(self, occurred: t.SessionInput) -> None:
        """Put an input into the inbox and wake the client's thread. Called under the lock."""
        self.inbox.append(occurred)
        self.wake()

    def wake(self) -> None:
        self.is_awake = True
        try:
            self.wake_thread()
        except RuntimeError:  # the loop and the client are closed
            pass
        except BaseException:  # Ctrl-C: the next submit must wake the thread
            self.is_awake = False
            raise

    def forked(self) -> None:
        """Close this copy of the client in a forked child, which has the client's locks but not its threads."""
        self.closed = "the client belongs to the parent process: create a new client after a fork"
        self.condition = SteadyCondition()
        self.thread = None
        self._is_forked = True

    def is_read_next(self, task_id: bytes) -> bool:
        """Return whether a task was submitted after the last requested task, but before that request."""
        first, last = self.read
        return first < task_id < last

    def has_unfinished(self) -> bool:
        return self.closed is None and bool(self.session.pending or self.inbox)

    def unfinished(self) -> list[TaskFuture]:
        with self.condition:
            added = [task for each in self.inbox if isinstance(each, t.TasksAdded) for task in each.tasks]
            futures = cast("list[TaskFuture]", [*self.session.pending.values(), *added])
            return [future for future in futures if not future.done()]

    def explain_oldest(self) -> str:
        self.step()
        with self.condition:
            pending = self.session.pending
            task, others = cast("TaskFuture | None", next(iter(pending.values()), None)), len(pending) - 1
        if task is None:
            return "all tasks of this client have ended"
        more = f"; {counted(others, 'other task')} of this client {'has' if others == 1 else 'have'} not ended"
        return f"{task._label}: {self.explain(task)}{more if others else ''}"

    # -- tasks

    def submit(
        self, template: t.TaskTemplate, args: tuple[Any, ...], kwargs: Mapping[str, Any], task_id: bytes = b""
    ) -> TaskFuture:
        """Submit a task and return its future, which has failed if an argument has failed. task_id: given in a durable
        session.

        May wait for a limit. Raises SerializationError, LimitError, ClientClosedError, or the error of a failed upload.
        """
        while True:
            future = self.prepare(template, args, kwargs, task_id)
            try:
                if future.template is None or self.add((future,)):
                    return future
            except Exception:
                raise
            except BaseException:  # Ctrl-C: the caller never gets the future, and could not cancel it
                future.cancel()
                raise

    def prepare(
        self,
        template: t.TaskTemplate,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        task_id: bytes = b"",
        node: tuple[Hashable, ...] | None = None,
    ) -> TaskFuture:
        """Return an unsubmitted future, or a failed future if an argument failed. node: the task's keys in a graph."""
        if args and template.serializer is None and not kwargs and type(args[0]) is TaskFuture and not task_id:
            future = self._prepare_for_futures(template, args)
            if future is not None:
                future.node = node
                return future
        try:
            parts, found = dump_arguments(args, kwargs, template.serializer, self, template.spec.name)
        except DependencyFailedError as error:
            return self._failed(error, template, node)
        uploads: tuple[t.ObjectUpload, ...] = ()
        references: tuple[t.Reference, ...] = ()
        if found:
            references = cast("tuple[t.Reference, ...]", tuple(found))
            if len(found) > MAX_REFERENCES:
                raise errors.LimitError(
                    f"{template.spec.name}: its arguments contain {len(found)} futures and objects, more than "
                    f"MAX_REFERENCES = {MAX_REFERENCES}: combine them in several tasks, then combine their results"
                )
            uploads = tuple(reference._upload for reference in found if isinstance(reference, t.ObjectReference))
        if template.serializer is None and len(parts) == 1 and len(parts[0]) <= INLINE_LIMIT_BYTES:
            payload = cast("bytes", parts[0])
        elif size_of(parts) <= INLINE_LIMIT_BYTES:
            payload = to_payload(parts, PayloadTag.PARTS if template.serializer is None else PayloadTag.ARGUMENTS)
        else:
            upload = self.upload(parts)
            payload = upload.payload
            uploads = (*uploads, upload)
            references = (*references, upload)
        future = TaskFuture(self, task_id or self.ids.task(), template, payload, references, uploads)
        future.node = node
        if template.has_chunks:
            future.calls = len(args[0])
        return future

    def _failed(
        self, error: DependencyFailedError, template: t.TaskTemplate, node: tuple[Hashable, ...] | None
    ) -> TaskFuture:
        reference = cast("TaskFuture | t.ObjectReference", error.reference)
        # The notes belong to the task that failed first, not to intermediate tasks.
        first = reference.failed_first if isinstance(reference, TaskFuture) else None
        failure = error.exception if first is None else first._exception
        why = CancelledError() if failure is None else copy_of(failure)
        return self.ended(template, None, why, (reference,), node)

    def _prepare_for_futures(self, template: t.TaskTemplate, args: tuple[Any, ...]) -> TaskFuture | None:
        """Fast path of `prepare` for unfinished futures of this client and small values, with cached payloads."""
        indexes: dict[TaskFuture, int] = {}
        order: list[int | tuple[type, object]] = []
        """Indexes of futures; types and values of constants, because 1 equals True."""
        for argument in args:
            kind = type(argument)
            if kind is TaskFuture:
                if argument._state is not PENDING or argument._owner is not self:  # tasks cannot reference it
                    return None
                order.append(indexes.setdefault(argument, len(indexes)))
            elif kind in _IMMUTABLE:
                order.append((kind, argument))
            else:
                return None
        if len(indexes) > MAX_REFERENCES:
            return None
        key = tuple(order)
        payload = self._payloads.get(key)
        if payload is None:
            parts, _ = dump_arguments(args, {}, None, self)
            if len(parts) > 1 or len(parts[0]) > MAX_CACHED_BYTES:
                return None
            if len(self._payloads) >= MAX_CACHED_PAYLOADS:
                self._payloads.clear()
            payload = self._payloads[key] = bytes(parts[0])
        return TaskFuture(self, self.ids.task(), template, payload, tuple(indexes))

    def ended(
        self,
        template: t.TaskTemplate,
        value: object,
        exception: BaseException | None = None,
        references: tuple[t.Reference, ...] = (),
        node: tuple[Hashable, ...] | None = None,
    ) -> TaskFuture:
        future = TaskFuture(self, self.ids.task(), template, b"", references)
        future.node = node
        future.template = None
        future.settle(value, exception)
        future.references = ()
        return future

    def add(self, futures: Sequence[TaskFuture]) -> bool:
        """Submit all prepared tasks or none, after a single wait, so a graph may exceed the limits by its own size.

        Returns False if a referenced future has ended, so that its value must be embedded.
        """
        with self.condition:
            if self.closed is not None:
                raise errors.ClientClosedError(self.closed)
            if self.max_pending_tasks >= 0 or self._inbox_bytes + self.session.unsent_bytes > MAX_UNSENT_BYTES:
                self.wait_for_room()
            size = 0
            for future in futures:
                size += len(future.payload)
                for reference in future.references:
                    if isinstance(reference, TaskFuture) and reference.must_embed:
                        return False
            if self.observer is not None:
                self.observer.submitting(futures)
            last = self.inbox[-1] if self.inbox else None
            if type(last) is t.TasksAdded:
                last.tasks.extend(futures)
            else:
                self.inbox.append(t.TasksAdded([*futures]))
            self._inbox_bytes += size
        if not self.is_awake:
            self.wake()
        return True

    # -- completion

    def step(self, *inputs: t.SessionInput, resolved: Iterable[Resolved] = ()) -> list[Message]:
        """End futures, step the session with the inbox and these inputs, and return the messages to send.

        resolved: futures with their outcomes. Calls callbacks last, without the lock.
        """
        to_call = []
        messages: list[Message] = []
        with self.condition:
            for future, value, exception, profile in resolved:
                if future.settle(value, exception, profile):
                    to_call.append(future)
            occurred, self.inbox, self._inbox_bytes = self.inbox, [], 0
            if self.releases:
                released = [self.releases.popleft() for _ in range(len(self.releases))]
                self.released += len(released)
                occurred.append(t.ReferencesReleased([each for each in released if each not in self.registered]))
            for command in self.session.step((*occurred, *inputs), time.monotonic()):
                if isinstance(command, t.DropTasks):
                    for dropped in cast("list[TaskFuture]", command.tasks):
                        # A separate copy for each future: a graph adds a note with the node's name.
                        error = CancelledError() if command.error is None else copy_of(command.error)
                        if dropped.settle(None, error):
                            to_call.append(dropped)
                else:
                    messages.append(command)
            if self._waiting_threads:
                self.condition.notify_all()
        for future in to_call:
            future._run_callbacks()
        return messages

    def started(self, ids: Iterable[bytes], *, has_started: bool) -> None:
        for identifier in ids:
            task = self.session.pending.get(identifier)
            if task is not None:
                cast("TaskFuture", task)._has_started = has_started

    def close(self, why: str, error: errors.ScalerError) -> None:
        """Refuse all further calls, and end all futures with an error. Idempotent."""
        with self.condition:
            if self.closed is not None:
                return
            self.closed = why
        self.step(t.ClientGaveUp(error, cancel=False))

    # -- waits

    def start(self, coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> Future[_T]:
        """Run a coroutine in the client's loop from another thread. Raises ClientClosedError, as does the future if the
        loop ends first."""
        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            coroutine.close()
            raise errors.ClientClosedError(self.closed or _ENDED) from None
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        if loop.is_closed():
            self.loop_ended()
        return running

    def run(self, coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> _T:
        """Run a coroutine as `start` does, and return its value."""
        running = self.start(coroutine, loop)
        try:
            return running.result()
        except CancelledError:
            raise errors.ClientClosedError(self.closed or _ENDED) from None
        except BaseException:  # Ctrl-C
            running.cancel()
            raise

    def loop_ended(self) -> None:
        for running in list(self._running):
            with contextlib.suppress(InvalidStateError):
                running.set_exception(errors.ClientClosedError(self.closed or _ENDED))

    def wait_for(self, condition: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait, under the lock, until a condition is true; return False on a timeout. Raises ClientClosedError.

        seconds: None: `timeout_seconds`.
        """
        self._waiting_threads += 1
        try:
            is_true = self.condition.wait_for(
                lambda: self.closed is not None or condition(), self.timeout_seconds if seconds is None else seconds
            )
        finally:
            self._waiting_threads -= 1
        self.check_open()
        return bool(is_true)

    def wait_ended(self, futures: Sequence[TaskFuture], seconds: float) -> None:
        """Wait until all these futures have ended, or for `seconds`. Raises UsageError in the client's thread."""
        self.check_waitable()
        left = list(futures)
        with self.blocked(), self.condition:
            self.wait_for(lambda: _drop_ended(left), seconds)

    def wait_for_room(self) -> None:
        """Wait, under the lock, until limits permit a task. Raises LimitError or ClientClosedError."""
        if self._reached() is None or not self.may_block():
            return
        if not self.wait_for(lambda: self._reached() is None):
            raise errors.LimitError(
                f"{self._reached() or 'a limit'} was reached, and too few tasks ended within "
                f"timeout_seconds={self.timeout_seconds:g}"
            )

    def _reached(self) -> str | None:
        session = self.session
        if self.max_pending_tasks >= 0:
            added = sum(len(each.tasks) for each in self.inbox if isinstance(each, t.TasksAdded))
            if self.max_pending_tasks <= added + len(session.pending) + len(session.cancelling):
                return f"max_number_of_tasks_waiting={self.max_pending_tasks}"
        if self._inbox_bytes + session.unsent_bytes > MAX_UNSENT_BYTES:
            return f"MAX_UNSENT_BYTES={MAX_UNSENT_BYTES}"
        return None


def _drop_ended(futures: list[TaskFuture]) -> bool:
    while futures and futures[-1].done():
        futures.pop()
    return not futures

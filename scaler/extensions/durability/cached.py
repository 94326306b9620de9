"""Results of earlier calls, cached in the object storage: `Client.cache`, and `cache=True`.

A result's id contains only part of the call's digest, so the object starts with the full digest for comparison."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scaler.client.future import ScalerFuture, Unloaded
from scaler.client.loop import ClientLoop
from scaler.client.options import Options
from scaler.client.task_calls import Call, TaskCalls, hiding_frames_of_methods
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.tasks import ObjectUpload, TasksAdded, TaskSettled, TaskTemplate, UploadEnded
from scaler.errors import ScalerError, UsageError
from scaler.extensions.durability.code_digest import code_digest
from scaler.ids import cached_id, content_id
from scaler.protocol.messages import Outcome
from scaler.serialization import Serializer
from scaler.serialization.arguments import dump_arguments

LOOK_UP_SECONDS = 2.0
"""Time (seconds) after which an unanswered look-up counts as a miss."""

StoredParts = list[memoryview]


@hiding_frames_of_methods()
class CachedCalls(TaskCalls):
    def cache(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)`, or return the result of an equal call that a client of this key has cached.

        The object storage keeps the result, up to its `cache_limit_bytes`, even after this client disconnects. Calls
        are equal if they have equal argument values and equal code: the function's code and all code that it refers to
        outside installed packages. The result must not depend on anything else. Exceptions are not cached.

        Returns:
            The future of the call.

        Raises:
            UsageError: An argument is a future, or was sent with `send_object`.
        """
        return self._cached(fn, [(args, kwargs)], self._options)[0]

    def _cached(self, fn: Callable[..., Any], calls: Sequence[Call], options: Options) -> list[TaskFuture]:
        self._check_open()
        if self._is_nested:
            raise UsageError("a client inside a task cannot cache calls: cache the call that submits the task")
        template = self._templates.template(fn, options, b"")
        if self._is_in_process:  # the cluster has no object storage, so results cannot be cached
            return [self._futures.submit(template, *call) for call in calls]
        return CachedResults(self._loop).submit(template, fn, calls)


class CachedResults:
    def __init__(self, loop: ClientLoop) -> None:
        self._owner = loop.cache_owner
        self._futures = loop.futures
        self._loop = loop._loop
        self._transfers = loop.transfers
        self._wanted = loop.wanted

    def submit(self, template: TaskTemplate, function: object, calls: Sequence[Call]) -> list[TaskFuture]:
        """Return the futures of calls. Tasks are sent only for calls without a cached result.

        Raises UsageError for references among arguments, and for functions without code.
        """
        code = code_digest(function)
        digests = [self._digest(template, code, *call) for call in calls]
        return [self._submit(template, *call, digest) for call, digest in zip(calls, digests, strict=True)]

    def _digest(self, template: TaskTemplate, code: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        parts, references = dump_arguments(args, kwargs, template.serializer, self._futures, template.spec.name)
        if references:
            raise UsageError(f"{references[0]!r} is an argument of a cached call: pass its value, such as its result()")
        sizes = b"".join(len(part).to_bytes(8, "little") for part in parts)
        return content_id(code, template.spec.serializer, template.spec.environment, b"|", sizes, *parts)

    def _submit(
        self, template: TaskTemplate, args: tuple[Any, ...], kwargs: Mapping[str, Any], digest: bytes
    ) -> TaskFuture:
        futures = self._futures
        future = futures.prepare(template, args, kwargs)
        task, answer = future.task_id, ObjectUpload(futures.ids.object(), futures.releases, b"")
        future.uploads = (*future.uploads, answer)
        futures.add((future,))  # the task is not sent until `answer` has ended
        self._wanted[task] = partial(self._put, digest)
        future.add_done_callback(lambda _: self._wanted.pop(task, None))
        settle = partial(self._settle, future, digest, answer, template.serializer)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the future has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(settle()))
        return future

    # -- in the client's loop

    async def _settle(
        self, future: TaskFuture, digest: bytes, answer: ObjectUpload, serializer: Serializer | None
    ) -> None:
        """Complete a future with its cached result, or send its task. answer: upload that delays the task."""
        try:
            parts = await self._get(digest)
            stored = None
            while parts is not None and not self._end(future, parts, serializer, stored):
                stored = await self._transfers.store([*parts])
                if stored.error is not None:
                    break
        finally:
            self._futures.step(UploadEnded(answer))
            self._futures.wake()

    def _end(
        self, future: TaskFuture, parts: StoredParts, serializer: Serializer | None, stored: ObjectUpload | None
    ) -> bool:
        """Complete a future with its result, after storing the value if tasks reference it."""
        load = partial(load_outcome, Outcome.SUCCESS, parts[0], serializer, parts)
        with self._futures.condition:
            added = (task for each in self._futures.inbox if isinstance(each, TasksAdded) for task in each.tasks)
            if stored is None and (future.has_users or any(future in task.references for task in added)):
                return False
            if has_callbacks := not future.done():
                future.stored = stored
                has_callbacks = future.settle(Unloaded(load), None)
                self._futures.put(TaskSettled(future))
        if has_callbacks:
            future._run_callbacks()
        return True

    async def _get(self, digest: bytes) -> StoredParts | None:
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                first, *parts = await self._transfers.storage().get(cached_id(self._owner, digest))
        except (ScalerError, TimeoutError, ValueError):
            return None
        return parts if bytes(first) == digest else None

    async def _put(self, digest: bytes, parts: StoredParts) -> None:
        with contextlib.suppress(ScalerError):  # for example, no space; the call runs again next time
            await self._transfers.storage().put(cached_id(self._owner, digest), [digest, *parts])

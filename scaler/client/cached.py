"""Results of earlier calls, cached in the object storage: `Client.cache`, and `cache=True`.

The id of a result contains only part of the call's digest, so the object begins with the full digest for comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from scaler.client.code_digest import code_digest
from scaler.client.future import Unloaded
from scaler.client.futures import FutureTable
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.tasks import ObjectUpload, TasksAdded, TaskSettled, TaskTemplate, UploadEnded
from scaler.client.transfers import ObjectTransfers
from scaler.errors import ScalerError, UsageError
from scaler.ids import cached_id, content_id
from scaler.protocol.messages import Outcome
from scaler.serialization import Serializer
from scaler.serialization.arguments import dump_arguments

LOOK_UP_SECONDS = 2.0
"""Time (seconds) after which a look-up without an answer counts as a miss."""

StoredParts = list[memoryview]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class CachedResults:
    def __init__(
        self,
        owner: bytes,
        futures: FutureTable,
        loop: asyncio.AbstractEventLoop,
        transfers: ObjectTransfers,
    ) -> None:
        """owner: prefix of the ids of cached results of the client's key."""
        self._owner = owner
        self._futures = futures
        self._loop = loop
        self._transfers = transfers
        self.wanted: dict[bytes, bytes] = {}

    def submit(self, template: TaskTemplate, function: object, calls: Sequence[Call]) -> list[TaskFuture]:
        """Return the futures of calls: cached calls already ended, all other calls submitted or waiting for the
        look-up.

        Raises UsageError for references among arguments, and for functions without code.
        """
        code = code_digest(function)
        digests = [self._digest(template, code, *call) for call in calls]
        if not self._futures.may_block():
            return [self._submit_early(template, *call, digest) for call, digest in zip(calls, digests, strict=True)]

        async def look_up() -> list[StoredParts | None]:
            return await asyncio.gather(*map(self._get, digests))

        found = self._futures.run(look_up(), self._loop)
        return [
            self._submit(template, *call, digest) if parts is None else self._ended(template, parts)
            for call, digest, parts in zip(calls, digests, found, strict=True)
        ]

    def _digest(self, template: TaskTemplate, code: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        parts, references = dump_arguments(args, kwargs, template.serializer, self._futures, template.spec.name)
        if references:
            raise UsageError(f"{references[0]!r} is an argument of a cached call: pass its value, such as its result()")
        sizes = b"".join(len(part).to_bytes(8, "little") for part in parts)
        return content_id(code, template.spec.serializer, b"|", sizes, *parts)

    def _submit(
        self, template: TaskTemplate, args: tuple[Any, ...], kwargs: Mapping[str, Any], digest: bytes
    ) -> TaskFuture:
        task = self._futures.ids.task()
        self.wanted[task] = digest
        try:
            future = self._futures.submit(template, args, kwargs, task)
        except BaseException:
            del self.wanted[task]
            raise
        future.add_done_callback(lambda _: self.wanted.pop(task, None))  # a cancelled task has no result
        return future

    def _submit_early(
        self, template: TaskTemplate, args: tuple[Any, ...], kwargs: Mapping[str, Any], digest: bytes
    ) -> TaskFuture:
        futures = self._futures
        future = futures.prepare(template, args, kwargs)
        task, answer = future.task_id, ObjectUpload(futures.ids.object(), futures.releases, b"")
        future.uploads = (*future.uploads, answer)
        futures.add((future,))  # its task is not sent until `answer` has ended
        self.wanted[task] = digest
        future.add_done_callback(lambda _: self.wanted.pop(task, None))
        settle = partial(self._settle, future, digest, answer, template.serializer)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the future has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(settle()))
        return future

    def _ended(self, template: TaskTemplate, parts: StoredParts) -> TaskFuture:
        return self._futures.ended(template, *load_outcome(Outcome.SUCCESS, parts[0], template.serializer, parts))

    # -- in the client's loop

    async def _settle(
        self, future: TaskFuture, digest: bytes, answer: ObjectUpload, serializer: Serializer | None
    ) -> None:
        """End a future with its cached result, or send its task. answer: upload that holds the task back until then."""
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
        """End a future with its result, unless tasks reference the value, which must then be stored first."""
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
                first, *parts = await self._transfers.storage().get(cached_id(self._owner, digest), 0.0)
        except (ScalerError, TimeoutError, ValueError):
            return None
        return parts if bytes(first) == digest else None

    def take(self, task: bytes, outcome: int) -> bytes | None:
        digest = self.wanted.pop(task, None)
        return digest if outcome == Outcome.SUCCESS else None

    async def put(self, digest: bytes, parts: StoredParts) -> None:
        with contextlib.suppress(ScalerError):  # such as no space; the call runs again next time
            await self._transfers.storage().put(cached_id(self._owner, digest), [digest, *parts])

"""Restores lost objects in the object storage: kept uploads, and results of rerun tasks.

The client stores an object again when the scheduler requests it (`ObjectsMissing`), or when a result cannot be fetched.
A rerun is a new task, whose value is stored under the id of the lost result. Belongs to the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from scaler.client.future import end_of
from scaler.client.futures import FutureTable
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectUpload, Reference, Stage, TaskTemplate
from scaler.client.transfers import ObjectTransfers
from scaler.errors import ObjectLostError
from scaler.grammar import counted
from scaler.ids import is_result, task_of
from scaler.protocol.messages import ObjectsRestored
from scaler.serialization import Serializer, dump_value

KEEP_ANOTHER = "replicas=2 or client.persist(future) keeps a second copy of such a result"
MAX_RUNS_AGAIN = 3


class Restoring:
    def __init__(
        self,
        futures: FutureTable,
        transfers: ObjectTransfers,
        answer: Callable[[ObjectsRestored], object],
        fetch: Callable[[TaskFuture], Awaitable[object]],
    ) -> None:
        self._futures = futures
        self._transfers = transfers
        self._answer = answer
        self._fetch = fetch
        self._again: dict[TaskFuture, asyncio.Task[TaskFuture]] = {}
        self._runs: dict[bytes, int] = {}

    def ask(self, ids: Iterable[bytes]) -> None:
        """Store these objects again, and report to the scheduler which ones are stored and which are lost."""
        wanted = list(ids)
        needed = self._needed_results({task_of(each) for each in wanted if is_result(each)})
        for identifier in wanted:
            asyncio.get_running_loop().create_task(self._restore(identifier, needed.get(task_of(identifier))))

    def _needed_results(self, tasks: set[bytes]) -> dict[bytes, tuple[TaskFuture, Serializer | None]]:
        """Return the futures of these tasks that pending tasks reference, with the serializer of a referencing task."""
        found: dict[bytes, tuple[TaskFuture, Serializer | None]] = {}
        if not tasks:
            return found
        with self._futures.condition:
            for task in self._futures.session.pending.values():
                for reference in task.references:
                    if isinstance(reference, TaskFuture) and reference.task_id in tasks and task.template is not None:
                        found[reference.task_id] = reference, task.template.serializer
        return found

    async def _restore(self, identifier: bytes, result: tuple[TaskFuture, Serializer | None] | None) -> None:
        try:
            upload = self._transfers.uploads.get(identifier)
            if upload is not None:
                parts = None if upload.kept is None else upload.kept.read()
            else:
                parts = None if result is None else dump_value(await self._value(result[0]), result[1])
            if parts is None:
                raise ObjectLostError("its client no longer has the value")
            await self._transfers.put_again(identifier, parts)
        except Exception as error:  # noqa: BLE001 (no memory, no disk, or not picklable: the object is lost)
            self._answer(ObjectsRestored([], [identifier], str(error)))
        else:
            self._answer(ObjectsRestored([identifier], []))

    async def _value(self, future: TaskFuture) -> object:
        if future.delivers and not future.done():
            await end_of(future).wait()
        if future.stage is Stage.KEPT and future.is_stored:
            return await self._fetch(future)
        if future.done() and future.delivers and future.stage is not Stage.KEPT:
            return future.result()
        return (await self.run_again(future)).result()

    async def run_again(self, lost: TaskFuture) -> TaskFuture:
        """Rerun a task with a lost value; return its ended future. Raises ObjectLostError."""
        running = self._again.get(lost)
        if running is None:
            running = self._again[lost] = asyncio.create_task(self._run_again(lost))
        return await asyncio.shield(running)

    async def _run_again(self, lost: TaskFuture) -> TaskFuture:
        try:
            again = await self._begin_again(lost)
            await end_of(again).wait()
            self._runs.pop(again.task_id, None)
            return again
        finally:
            del self._again[lost]

    async def _begin_again(self, lost: TaskFuture) -> TaskFuture:
        template, runs = lost.template, self._runs.get(lost.task_id, 0) + 1
        name = lost._label
        if template is None:
            raise ObjectLostError(f"the client no longer has the result of {name}")
        if lost.is_adopted:
            raise ObjectLostError(
                f"{name} does not run again, because another program submitted it: submit it again, with another key"
            )
        if template.spec.retries == 0:
            raise ObjectLostError(f"{name} has retries=0 and does not run again; {KEEP_ANOTHER}")
        if runs > MAX_RUNS_AGAIN:
            raise ObjectLostError(f"the result of {name} was lost again and again: {counted(runs, 'time')}")
        payload, uploads = lost.payload, list(lost.uploads)
        references: list[Reference] = []
        for reference in lost.references:
            stand_in = await self._stand_in(reference, template)
            references.append(reference if stand_in is None else stand_in)
            if stand_in is not None:
                uploads.append(stand_in)
        if not template.spec.deliver:
            template = replace(template, spec=replace(template.spec, deliver=True))
        again = TaskFuture(
            self._futures, self._futures.ids.task(), template, payload, tuple(references), tuple(uploads)
        )
        if getattr(lost, "is_persisted", False):
            again.is_persisted = True
        self._runs[again.task_id] = runs
        self._futures.add((again,))
        lost.add_done_callback(lambda future: again.cancel() if future.cancelled() else None)
        return again

    async def _stand_in(self, reference: Reference, template: TaskTemplate) -> ObjectUpload | None:
        """Return an upload of the value of a task that the scheduler may not know any more; None for anything else."""
        if not isinstance(reference, TaskFuture) or not reference.done() or reference.is_stored:
            return None
        return self._transfers.upload_again(dump_value(await self._value(reference), template.serializer))

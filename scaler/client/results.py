"""The stored results of a client, which remain in the cluster until the program requests them.

The client stores an upload or result again if the scheduler requests it (`ObjectsMissing`) or if a fetch fails. If the
value is gone, the task runs again as a new task, whose value is stored under the id of the lost result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

from scaler.client.future import Unloaded, end_of
from scaler.client.futures import FutureTable, Profile
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.tasks import ObjectUpload, Reference, RemoteReference, Stage, TaskSettled, TaskTemplate
from scaler.client.transfers import ObjectTransfers
from scaler.errors import ClientClosedError, ObjectLostError, ScalerError, UsageError
from scaler.grammar import counted
from scaler.ids import is_result, task_of
from scaler.protocol.messages import ObjectsRestored, Outcome, PersistResults, is_at_host
from scaler.serialization import Serializer, dump_value

GET_AGAIN_SECONDS = (0.5, 1.0)
"""Pauses (seconds) between requests for a missing result, before its task is rerun."""
MAX_ROWS = 10_000
"""Maximum number of results in one message."""
KEEP_ANOTHER = "client.persist(future) keeps a second copy of such a result"
MAX_RUNS_AGAIN = 3
_SUCCESS = Outcome.SUCCESS

_Loaded = tuple[object, BaseException | None]
Wanted = dict[bytes, Callable[[list[memoryview]], Coroutine[Any, Any, None]]]
"""For each task, a function that receives the parts of a successful result in the client's loop."""


@dataclass(slots=True, eq=False)
class _Rerun:
    task: asyncio.Task[TaskFuture]
    waiters: int = 0


class StoredResults:
    """The stored results of one client. Used in the client's thread, except `load`."""

    def __init__(
        self,
        futures: FutureTable,
        wanted: Wanted,
        loop: asyncio.AbstractEventLoop,
        transfers: ObjectTransfers,
        answer: Callable[[ObjectsRestored | PersistResults], object],
    ) -> None:
        self._futures = futures
        self._wanted = wanted
        self._loop = loop
        self._transfers = transfers
        self._answer = answer
        self._stored: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()
        self._rerunning: dict[TaskFuture, _Rerun] = {}
        self._restoring: dict[bytes, set[asyncio.Task[None]]] = {}
        """Restorations of each object. A scheduler that lost its state may request the same object again."""
        self._runs: dict[bytes, int] = {}

    def invalidate(self) -> None:
        for stored in list(self._stored.values()):
            stored.is_invalid = True

    def reference(self, payload: bytes) -> RemoteReference:
        """Return the reference to a stored result, which the scheduler releases when Python frees the reference."""
        identifier = payload[1:17]
        stored = self._stored.get(identifier)
        if stored is None:
            stored = self._stored[identifier] = RemoteReference(identifier, self._futures.releases)
        return stored

    def ended(
        self, future: TaskFuture, outcome: int, payload: bytes, profile: Profile, serializer: Serializer | None
    ) -> None:
        """End the future of a task with a stored result, which may stay in the cluster or has to be fetched first."""
        stored = self.reference(payload)
        stays = False
        with self._futures.condition:  # no callback may be added between check and settlement
            if outcome == _SUCCESS and not future.done():
                future.stored = stored
                stays = self._may_stay(future, payload)
                if stays:
                    future.stay()
                    future.settle(Unloaded(partial(self.load, future)), None, profile)
        if future.stored is stored and getattr(future, "is_persisted", False):
            self.persist([stored])
        if not stays:
            # The storage client keeps the awaited future, and therefore this task, alive. The loop has only a weak
            # reference.
            self._loop.create_task(self._fetch(future, outcome, stored, profile, serializer))

    def _may_stay(self, future: TaskFuture, payload: bytes) -> bool:
        if future._waiting is not None or future._callbacks is not None or self._wanted:
            return False
        return future.has_users or (is_at_host(payload) and not self._futures.is_read_next(future.task_id))

    # -- copies

    def persist(self, stored: Sequence[RemoteReference]) -> None:
        """Request that the object storage keep copies of these results."""
        for each in stored:
            each.is_persisted = True
            self._stored[each.id] = each
        self._tell(stored)

    def tell_again(self) -> None:
        """Resend all requests for copies to a scheduler that lost its state."""
        self._tell([each for each in list(self._stored.values()) if each.is_persisted])

    def _tell(self, stored: Sequence[RemoteReference]) -> None:
        """Send the ids of results. The caller's references keep the results alive until then."""
        for start in range(0, len(stored), MAX_ROWS):
            ids = [each.id for each in stored[start : start + MAX_ROWS] if not each.is_invalid]
            if ids:
                self._answer(PersistResults(ids))

    # -- results that stayed in the cluster

    def load(self, future: TaskFuture) -> _Loaded:
        """Return the value and exception of a future whose value stayed in the cluster. Runs in the requesting
        thread."""
        if not self._futures.may_wait():
            return None, UsageError("a callback cannot wait for a value in the cluster: fetch it outside the callback")
        try:
            self._futures.check_waitable()
            self._futures.read = future.task_id, self._futures.ids.task()
            return self._futures.run(self.fetch(future), self._loop), None
        except ClientClosedError:
            text = "its value stayed in the cluster: fetch it before the client is closed"
            return None, ClientClosedError(text)
        except Exception as error:  # noqa: BLE001 (raised by `result`)
            return None, error

    async def fetch(self, future: TaskFuture) -> object:
        """Return a value that stayed in the cluster. Raises ObjectLostError and loading errors."""
        assert future.stored is not None, "the future has a value"
        assert future.template is not None, "the task is kept as a whole"
        value, exception = await self._get_value(future, _SUCCESS, future.stored, future.template.serializer)
        if type(value) is Unloaded:
            value, exception = await self._loop.run_in_executor(None, value.load)
        if exception is not None:
            raise exception
        return value

    # -- from the storage

    async def _fetch(
        self, future: TaskFuture, outcome: int, stored: RemoteReference, profile: Profile, serializer: Serializer | None
    ) -> None:
        value, exception = await self._get_value(future, outcome, stored, serializer)
        self._futures.step(TaskSettled(future), resolved=[(future, value, exception, profile)])

    async def _get_value(
        self, future: TaskFuture, outcome: int, stored: RemoteReference, serializer: Serializer | None
    ) -> _Loaded:
        try:
            parts = await self._get_parts(stored.id)
            keep = self._wanted.pop(future.task_id, None)
            if keep is not None and outcome == _SUCCESS:
                await keep([*parts])  # before loading, because the user may modify the loaded value
            if outcome == _SUCCESS:
                return Unloaded(partial(load_outcome, outcome, parts[0], serializer, parts)), None
            return load_outcome(outcome, parts[0], serializer)
        except ScalerError as error:
            lost = ObjectLostError(f"the result of {future._label} is lost: {error}")
            if self._transfers.storage().connected:  # otherwise, a new result could not be stored
                return await self._load_again(future, lost)
            return None, lost
        except Exception as error:  # noqa: BLE001 (such as MemoryError: waiting threads must receive it)
            return None, ScalerError(f"the result of the task could not be loaded: {error!r}")

    async def _get_parts(self, identifier: bytes) -> list[memoryview]:
        """Get a stored result. Retries, because a restarted storage may not yet know which host has it."""
        for pause in GET_AGAIN_SECONDS:
            with contextlib.suppress(ObjectLostError):
                return await self._transfers.get(identifier)
            await asyncio.sleep(pause)
        return await self._transfers.get(identifier)

    async def _load_again(self, future: TaskFuture, lost: ObjectLostError) -> _Loaded:
        try:
            again = await self._run_again(future)
            future.stored = again.stored
            return again.result(), None
        except (ObjectLostError, ClientClosedError) as error:
            return None, ObjectLostError(f"{lost}; {error}")
        except Exception as error:  # noqa: BLE001 (the task failed or was cancelled this time)
            return None, error

    # -- lost objects

    def restore(self, ids: Iterable[bytes]) -> None:
        """Store these objects again, and report to the scheduler which are stored and which are lost."""
        wanted = list(ids)
        needed = self._needed_results({task_of(each) for each in wanted if is_result(each)})
        for identifier in wanted:
            restoring = self._restoring.setdefault(identifier, set())
            restoring.add(self._loop.create_task(self._restore(identifier, needed.get(task_of(identifier)))))

    def _needed_results(self, tasks: set[bytes]) -> dict[bytes, tuple[TaskFuture, Serializer | None]]:
        """Return the futures among these tasks that pending tasks reference, each with the serializer to store it."""
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
            for other in self._restoring[identifier] - {asyncio.current_task()}:
                other.cancel()
        finally:
            self._restoring[identifier].discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not self._restoring[identifier]:
                del self._restoring[identifier]

    async def _value(self, future: TaskFuture) -> object:
        if future.delivers and not future.done():
            await end_of(future).wait()
        if future.stage is Stage.KEPT and future.is_stored:
            return await self.fetch(future)
        if future.done() and future.delivers and future.stage is not Stage.KEPT:
            return future.result()
        return (await self._run_again(future)).result()

    async def _run_again(self, lost: TaskFuture) -> TaskFuture:
        """Rerun a task whose value was lost, and return its ended future. Raises ObjectLostError.

        The rerun is cancelled once nothing waits for it, for example after another restoration has succeeded.
        """
        rerun = self._rerunning.get(lost)
        if rerun is None:
            rerun = self._rerunning[lost] = _Rerun(self._loop.create_task(self._rerun(lost)))
        rerun.waiters += 1
        try:
            return await asyncio.shield(rerun.task)
        finally:
            rerun.waiters -= 1
            if not rerun.waiters and not rerun.task.done():
                self._rerunning.pop(lost, None)
                rerun.task.cancel()

    async def _rerun(self, lost: TaskFuture) -> TaskFuture:
        try:
            again = await self._begin_again(lost)
            try:
                await end_of(again).wait()
            except asyncio.CancelledError:
                again.cancel()
                raise
            finally:
                self._runs.pop(again.task_id, None)
            return again
        finally:
            rerun = self._rerunning.get(lost)
            if rerun is not None and rerun.task is asyncio.current_task():
                del self._rerunning[lost]

    async def _begin_again(self, lost: TaskFuture) -> TaskFuture:
        template, runs = lost.template, self._runs.get(lost.task_id, 0) + 1
        name = lost._label
        if template is None:
            raise ObjectLostError(f"the client no longer has the result of {name}")
        if lost.is_adopted:
            raise ObjectLostError(
                f"{name} does not run again, because another program submitted it: submit it again under another key"
            )
        if template.spec.retries == 0:
            raise ObjectLostError(f"{name} has retries=0 and does not run again; {KEEP_ANOTHER}")
        if runs > MAX_RUNS_AGAIN:
            raise ObjectLostError(f"the result of {name} was lost repeatedly: {counted(runs, 'time')}")
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
        """Return an upload of a task's value if the scheduler may have lost the task, or else None."""
        if not isinstance(reference, TaskFuture) or not reference.done() or reference.is_stored:
            return None
        return self._transfers.upload_again(dump_value(await self._value(reference), template.serializer))

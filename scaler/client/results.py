"""The stored results of a client: left in the cluster until the program requests them, or prefetched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary, WeakValueDictionary

from scaler.client.cached import CachedResults
from scaler.client.future import ScalerFuture, Unloaded
from scaler.client.futures import FutureTable, Profile
from scaler.client.restoring import Restoring
from scaler.client.session_events import TaskSettled
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.tasks import RemoteReference
from scaler.client.transfers import ObjectTransfers
from scaler.errors import ClientClosedError, ObjectLostError, ScalerError, UsageError
from scaler.ids import ids_after
from scaler.protocol.messages import ObjectsRestored, Outcome, ReplicateResults, is_at_host, stored_bytes
from scaler.serialization import Serializer, own_buffer

GET_AGAIN_SECONDS = (0.5, 1.0)
"""Pauses (seconds) before a missing result is requested again, before its task is rerun."""
TASKS_AHEAD = 64
BYTES_AHEAD = 64 * 1024 * 1024
"""Limits of prefetching: number of later tasks, and bytes of their values."""
MAX_ROWS = 10_000
"""Maximum number of results in one message."""
_IN_STORAGE = 0
MIN_RELEASED = 100
"""Minimum number of releases after which freed memory is returned to the system."""
TRIM_SECONDS = 5.0
"""Minimum interval between two returns of memory, seconds."""
BUSY_TRIM_SECONDS = 25.0
"""Additional seconds after which memory is returned despite few or continuing releases."""
_Target = tuple[RemoteReference, int]
_SUCCESS = Outcome.SUCCESS

_Loaded = tuple[object, BaseException | None]


class StoredResults:
    """The stored results of one client. Used in the client's thread, except `load`."""

    def __init__(
        self,
        futures: FutureTable,
        cached: CachedResults,
        loop: asyncio.AbstractEventLoop,
        transfers: ObjectTransfers,
        answer: Callable[[ObjectsRestored], object],
    ) -> None:
        self._futures = futures
        self._cached = cached
        self._loop = loop
        self._transfers = transfers
        self.restoring = Restoring(futures, transfers, answer, self.fetch)
        self._stored: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()
        self._away: WeakValueDictionary[bytes, TaskFuture] = WeakValueDictionary()
        """Futures by task whose values stayed in the cluster and were not requested."""
        self._sizes: WeakKeyDictionary[TaskFuture, int] = WeakKeyDictionary()
        self._ahead: WeakKeyDictionary[TaskFuture, asyncio.Task[_Loaded]] = WeakKeyDictionary()

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
        with self._futures.condition:  # no callback may be added between check and settlement
            if outcome == _SUCCESS and not future.done():
                future.stored = stored
                if self._may_stay(future, payload):
                    future.stay()
                    future.settle(Unloaded(partial(self.load, future)), None, profile)
                    self._away[future.task_id] = future
                    self._sizes[future] = stored_bytes(payload)
                    return
        # The storage client keeps the awaited future, and so this task, alive: the loop has only a weak reference.
        self._loop.create_task(self._fetch(future, outcome, stored, profile, serializer))

    def _may_stay(self, future: TaskFuture, payload: bytes) -> bool:
        if future.is_awaited or self._cached.wanted:
            return False
        return future.has_users or (is_at_host(payload) and not self._futures.is_read_next(future.task_id))

    # -- results that stayed in the cluster

    def load(self, future: TaskFuture) -> _Loaded:
        """Return value and exception of a future whose value stayed in the cluster. Runs in the requesting thread."""
        if not self._futures.may_wait():
            return None, UsageError("a callback cannot wait for a value that has stayed in the cluster: ask elsewhere")
        self._futures.asks_for(future.task_id)
        try:
            return self._futures.run(self.fetch(future), self._loop), None
        except ClientClosedError:
            text = "its value has stayed in the cluster: ask for it before the client is closed"
            return None, ClientClosedError(text)
        except Exception as error:  # noqa: BLE001 (raised by `result`)
            return None, error

    async def fetch(self, future: TaskFuture) -> object:
        """Return a value that stayed in the cluster. Raises ObjectLostError and loading errors."""
        fetching = self._begin(future)
        self._away.pop(future.task_id, None)
        self._fetch_ahead_of(future)
        try:
            value, exception = await asyncio.shield(fetching)
        finally:
            self._ahead.pop(future, None)
        if type(value) is Unloaded:
            value, exception = await self._loop.run_in_executor(None, value.load)
        if exception is not None:
            raise exception
        return value

    def _begin(self, future: TaskFuture) -> asyncio.Task[_Loaded]:
        fetching = self._ahead.get(future)
        if fetching is None:
            assert future.stored is not None, "it has a value"
            assert future.template is not None, "it is kept as a whole"
            fetching = self._ahead[future] = self._loop.create_task(
                self._get_value(future, _SUCCESS, future.stored, future.template.serializer)
            )
        return fetching

    def _fetch_ahead_of(self, asked: TaskFuture) -> None:
        if not self._away:
            return
        room = BYTES_AHEAD - sum(self._sizes.get(future, 0) for future in self._ahead if future is not asked)
        for identifier in ids_after(asked.task_id, TASKS_AHEAD):
            future = self._away.get(identifier)
            if future is None or future in self._ahead or future.has_users:
                continue
            if not self._futures.is_read_next(identifier):
                return
            room -= self._sizes.get(future, 0)
            if room < 0:
                return
            self._begin(future)

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
            if digest := self._cached.take(future.task_id, outcome):
                await self._cached.put(digest, [*parts])  # before loading: the user may write to the loaded value
            if outcome == _SUCCESS:
                return Unloaded(partial(_load_parts, parts, serializer)), None
            return load_outcome(outcome, parts[0], serializer, [own_buffer(part) for part in parts])
        except ScalerError as error:
            lost = ObjectLostError(f"the result of {future._label} is lost: {error}")
            if self._transfers.storage().connected:  # else a new result could not be stored either
                return await self._load_again(future, lost)
            return None, lost
        except Exception as error:  # noqa: BLE001 (such as MemoryError: waiting threads must receive it)
            return None, ScalerError(f"the result of the task could not be loaded: {error!r}")

    async def _get_parts(self, identifier: bytes) -> list[memoryview]:
        """Get a stored result. Retries, because a restarted storage may not know yet which host has it."""
        for pause in GET_AGAIN_SECONDS:
            with contextlib.suppress(ObjectLostError):
                return await self._transfers.get(identifier)
            await asyncio.sleep(pause)
        return await self._transfers.get(identifier)

    async def _load_again(self, future: TaskFuture, lost: ObjectLostError) -> _Loaded:
        try:
            again = await self.restoring.run_again(future)
            future.stored = again.stored
            return again.result(), None
        except (ObjectLostError, ClientClosedError) as error:
            return None, ObjectLostError(f"{lost}; {error}")
        except Exception as error:  # noqa: BLE001 (the task failed or was cancelled this time)
            return None, error


class ResultCopies:
    def __init__(
        self,
        futures: FutureTable,
        call: Callable[[Callable[[list[RemoteReference]], None], list[RemoteReference]], object],
        send: Callable[[ReplicateResults], object],
    ) -> None:
        self._futures = futures
        self._call = call
        self._send = send
        self._wanted: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()

    def persist(self, futures: Iterable[object]) -> None:
        """Keep a copy of each result in the object storage, now or once it is stored. Raises UsageError."""
        checked: list[TaskFuture] = []
        for future in futures:
            if not isinstance(future, TaskFuture) or future._owner is not self._futures:
                what = "a future of another client" if isinstance(future, ScalerFuture) else "no future"
                raise UsageError(f"{future!r} is {what}: persist takes futures of this client")
            checked.append(future)
        for future in checked:
            future.is_persisted = True  # before checking whether the result is stored: see `came`
        self._call(self._persist, [future.stored for future in checked if future.stored is not None])

    def came(self, future: TaskFuture) -> None:
        stored = future.stored
        if stored is not None:
            if future._spec.replicas > 1:
                stored.replicas = future._spec.replicas
                self._wanted[stored.id] = stored
            if getattr(future, "is_persisted", False):
                self._persist([stored])

    def tell_again(self) -> None:
        """Resend all requests to a scheduler that lost its state."""
        stored = list(self._wanted.values())
        targets = [(each, each.replicas) for each in stored if each.replicas > 1]
        self._tell(targets + [(each, _IN_STORAGE) for each in stored if each.is_persisted])

    def _persist(self, stored: list[RemoteReference]) -> None:
        for each in stored:
            each.is_persisted = True
            self._wanted[each.id] = each
        self._tell([(each, _IN_STORAGE) for each in stored])

    def _tell(self, targets: list[_Target]) -> None:
        """Send targets, whose references stay alive until then."""
        for start in range(0, len(targets), MAX_ROWS):
            rows = [(each.id, copies) for each, copies in targets[start : start + MAX_ROWS] if not each.is_invalid]
            if rows:
                self._send(ReplicateResults([row[0] for row in rows], [row[1] for row in rows]))


class FreedMemory:
    """Decides when to return freed memory to the system, which takes milliseconds per hundred megabytes."""

    def __init__(self, now: float) -> None:
        self._released = self._returned = 0
        self._next_at = now

    def is_due(self, released: int, now: float) -> bool:
        """released: number of releases so far. Called every second."""
        before, self._released = self._released, released
        is_overdue = before > self._returned and now >= self._next_at + BUSY_TRIM_SECONDS
        is_quiet = before == released and before - self._returned >= MIN_RELEASED and now >= self._next_at
        if is_overdue or is_quiet:
            self._returned = before
            self._next_at = now + TRIM_SECONDS
        return is_overdue or is_quiet


def _load_parts(parts: list[memoryview], serializer: Serializer | None) -> _Loaded:
    try:
        return load_outcome(_SUCCESS, parts[0], serializer, [own_buffer(part) for part in parts])
    except Exception as error:  # noqa: BLE001 (such as MemoryError)
        return None, ScalerError(f"the result of the task could not be loaded: {error!r}")

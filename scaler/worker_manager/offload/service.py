"""`python -m scaler.worker_manager.offload.service`: runs one agent whose tasks run remotely. Executes the commands of
the agent's core, loads stored objects, and calls the executor in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from scaler.component import report
from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WorkerConfig
from scaler.errors import ObjectLostError, ProtocolError, RefusedError, ScalerError
from scaler.ids import new_peer_id, result_id
from scaler.object_storage.client import StorageClient
from scaler.offload import calls as c
from scaler.offload.call import Call, CallKey, CallResult, Executor, ExecutorError, unpack_result
from scaler.processes import adopt_orphans, end_descendants
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Outcome, Output, Printed, Role, is_stored, stored_reference
from scaler.serialization import Buffer, size_of, to_payload
from scaler.worker.agent.events import AgentInput
from scaler.worker.agent.shell import Agent, MakeConnector, StatusFile, run_agent
from scaler.worker.credential import own_access, take_credential
from scaler.worker.processor.calling import failure_of
from scaler.worker.processor.capture import CHUNK_BYTES
from scaler.worker.processor.functions import CACHE_BYTES, NO_STORAGE
from scaler.worker.processor.storage import GET_TIMEOUT_SECONDS
from scaler.worker_manager.backend import CallThread, answered_before
from scaler.worker_manager.offload import OffloadConfig, load_executor

MAX_PRINTED_BYTES = 64 * 1024  # limit of printed text in a result, also on the remote side

_log = logging.getLogger(__name__)


class FetchedObjects:
    """Loads stored objects as inline payloads, with a cache. For use in one event loop."""

    def __init__(self, connect: Callable[[str], StorageClient], cache_bytes: int = CACHE_BYTES) -> None:
        self._connect = connect
        self._limit_bytes = cache_bytes
        self._address = ""
        self._storage: StorageClient | None = None
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._fetching: dict[bytes, asyncio.Task[bytes]] = {}

    def move(self, address: str) -> None:
        if address != self._address:
            self.close()
            self._address = address

    async def payload(self, payload: Buffer) -> Buffer:
        """Return the payload, loaded from storage if it is a reference. Raises errors of the storage client."""
        if not is_stored(payload):  # type: ignore[arg-type]
            return payload
        identifier = bytes(payload[1:17])
        found = self._cache.get(identifier)
        if found is not None:
            self._cache.move_to_end(identifier)
            return found
        task = self._fetching.get(identifier)
        if task is None:
            task = self._fetching[identifier] = asyncio.create_task(self._fetch(identifier))
            # Retrieve the exception even if no call waits for the object, so that asyncio does not log it.
            task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        # Other calls may still wait for this object if this call is cancelled.
        return await asyncio.shield(task)

    async def put(self, identifier: bytes, parts: Sequence[Buffer]) -> bytes:
        await self._open().put(identifier, parts)
        return stored_reference(identifier, size_of(parts))

    def close(self) -> None:
        """Disconnect from the storage; pending transfers fail. Idempotent."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    async def _fetch(self, identifier: bytes) -> bytes:
        try:
            parts = await self._open().get(identifier)
            # Copying a large object may take a long time, and the loop must send heartbeats.
            found = await asyncio.to_thread(to_payload, parts)
        finally:
            del self._fetching[identifier]
        if len(found) <= self._limit_bytes:
            self._cache[identifier] = found
            self._cached_bytes += len(found)
            while self._cached_bytes > self._limit_bytes:
                self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return found

    def _open(self) -> StorageClient:
        if self._storage is None:
            if not self._address:
                raise ObjectLostError(NO_STORAGE)
            self._storage = self._connect(self._address)
        return self._storage


class ServiceAgent(Agent):
    """An agent whose tasks run remotely. Calls that arrive while the executor is busy form a batch."""

    make_executor = c.ServiceCalls

    def __init__(
        self,
        config: WorkerConfig,
        make_connector: MakeConnector,
        executor: Executor,
        connect_storage: Callable[[str], StorageClient],
        show_degraded: Callable[[str], None],
    ) -> None:
        super().__init__(config, make_connector, show_degraded)
        if isinstance(config, OffloadConfig) and isinstance(self.executor, c.ServiceCalls):
            self.executor.paid.least_seconds = config.task_minimum_seconds
        self._executor = executor
        self._thread = CallThread()
        self._objects = FetchedObjects(connect_storage)
        self._changed = asyncio.Event()
        self._calls: dict[CallKey, Call] = {}
        self._cancels: list[CallKey] = []
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._puts: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._worker = asyncio.create_task(self._work())
        super().start()

    def _perform(self, command: c.CallCommand) -> None:
        match command:
            case c.StartCall(number, call):
                if any(map(is_stored, call.payloads)):  # type: ignore[arg-type]
                    self._fetches[number] = asyncio.create_task(self._fetch(number, call))
                else:
                    self._hand_on(call)
            case c.CancelCall(number, key):
                fetch = self._fetches.pop(number, None)
                if fetch is not None:
                    fetch.cancel()
                elif self._calls.pop(key, None) is None:
                    self._cancels.append(key)
                    self._changed.set()
            case c.DeliverResult():
                self._deliver(command)
            case c.UseStorage(address):
                self._objects.move(address)
            case _:
                assert_never(command)

    async def _end_tasks(self) -> None:
        self._changed.set()
        try:
            await self._worker
        finally:
            self._thread.shutdown()
            tasks = [*self._fetches.values(), *self._puts]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._objects.close()

    def _take_from_thread(self, report: AgentInput) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, because some services call back late
            self._loop.call_soon_threadsafe(self.take_soon, report)

    def _hand_on(self, call: Call) -> None:
        self._calls[call.key] = call
        self._changed.set()

    async def _work(self) -> None:
        in_thread = self._thread.call
        try:
            starting = in_thread(self._executor.start, self._take_from_thread)
            if not await answered_before(starting, self._changed):  # an unconnected agent gets no calls
                _log.warning("exiting before the service answered: nothing was sent")
                return
            starting.result()
            self.connect()
            while not self._is_closed:
                calls, self._calls = list(self._calls.values()), {}
                cancels, self._cancels = self._cancels, []
                if cancels:
                    try:
                        await in_thread(self._executor.cancel, cancels)
                    except ExecutorError as error:
                        _log.warning("cancelled tasks may still run: %s tasks=%d", error, len(cancels))
                if calls:
                    try:
                        await in_thread(self._executor.run, calls)
                    except ExecutorError as error:
                        taken = set(error.taken)
                        refused = [call.key for call in calls if call.key not in taken]
                        self._cancels = [key for key in self._cancels if key not in refused]
                        if taken:
                            self.take_soon(c.CallsAccepted())
                        self.take_soon(c.CallsRefused(refused, str(error)))
                    else:
                        self.take_soon(c.CallsAccepted())
                await self._changed.wait()
                self._changed.clear()
        except BaseException as error:  # noqa: BLE001 (the agent ends with it)
            self.fail(error)
        try:
            await in_thread(self._executor.close)
        except ScalerError as error:
            _log.error("%s", error)  # the error names possible leftovers and how to remove them

    async def _fetch(self, number: int, call: Call) -> None:
        try:
            call = call.with_payloads(await asyncio.gather(*map(self._objects.payload, call.payloads)))
        except ScalerError as error:
            del self._fetches[number]
            self.take_soon(c.CallCompleted(number, call.key, *failure_of(error)))
            return
        del self._fetches[number]
        self._hand_on(call)

    def _deliver(self, command: c.DeliverResult) -> None:
        number, key, stream_output, data = command
        try:
            result = unpack_result(data)
        except (ProtocolError, RefusedError) as error:
            self.take_soon(c.CallCompleted(number, key, *failure_of(error)))
            return
        for message in output_of(key[0], stream_output, result):
            self.send_output(message)
        if result.outcome is Outcome.SUCCESS and size_of(result.parts) > INLINE_LIMIT_BYTES:
            task = asyncio.create_task(self._store(number, key, result))
            self._puts.add(task)
            task.add_done_callback(self._puts.discard)
            return
        payload = to_payload(result.parts) if result.outcome is Outcome.SUCCESS else bytes(result.parts[0])
        self.take_soon(_ended(number, key, result, result.outcome, payload))

    async def _store(self, number: int, key: CallKey, result: CallResult) -> None:
        try:
            outcome, payload = result.outcome, await self._objects.put(result_id(*key), result.parts)
        except ScalerError as error:
            outcome, payload = failure_of(error)
        self.take_soon(_ended(number, key, result, outcome, payload))


def output_of(task: bytes, stream_output: bool, result: CallResult) -> Iterator[Output | Printed]:
    """Yield a task's output: in chunks if it is streamed, else as text to store."""
    for is_stderr, text in ((False, result.stdout), (True, result.stderr)):
        if text and not stream_output:
            yield Printed([task], [is_stderr], [0], [bytes(text[:MAX_PRINTED_BYTES])])
            continue
        for at in range(0, len(text), CHUNK_BYTES):
            yield Output(task, is_stderr, bytes(text[at : at + CHUNK_BYTES]))


def _ended(number: int, key: CallKey, result: CallResult, outcome: Outcome, payload: bytes) -> c.CallCompleted:
    return c.CallCompleted(number, key, outcome, payload, result.duration_us, result.cpu_us, result.peak_bytes)


def main() -> int:
    take_credential()
    adopt_orphans()
    status = StatusFile(os.environ.pop(LAST_WORDS_FD_VARIABLE, None))
    try:
        config = OffloadConfig.from_environment()
    except ScalerError as error:
        status.write_error(error)
        return report("worker", error)

    def connect_storage(address: str) -> StorageClient:
        access = own_access(config)
        return StorageClient(address, new_peer_id(), Role.WORKER, access, get_timeout_seconds=GET_TIMEOUT_SECONDS)

    def make_agent(make_connector: MakeConnector) -> Agent:
        return ServiceAgent(config, make_connector, load_executor(config), connect_storage, status.write)

    try:
        return run_agent(config, make_agent, status, runs_tasks=False)
    finally:
        end_descendants()  # local child processes of the executor


if __name__ == "__main__":
    sys.exit(main())

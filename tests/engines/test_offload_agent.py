"""The offload agent between a scripted scheduler and a scripted executor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from scaler.errors import ConfigError, ScalerError
from scaler.ids import result_id
from scaler.net.connection import ConnectorEvent, Welcomed
from scaler.object_storage.client import StorageClient
from scaler.object_storage.server import EmbeddedStorage
from scaler.offload.call import CallKey, ExecutorError
from scaler.protocol.messages import (
    Buffer,
    Done,
    Outcome,
    Output,
    Recall,
    Role,
    Shutdown,
    Welcome,
    WorkerHeartbeat,
    stored_reference,
)
from scaler.serialization import dump_function, dump_value, load_value, size_of, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.testing.executors import MemoryExecutor
from scaler.worker_manager.offload import OffloadConfig
from scaler.worker_manager.offload.service import ServiceAgent
from tests.integration.worker_rig import DEADLINE_SECONDS, AgentRig, PlayedScheduler


class Rig(AgentRig):
    def __init__(self, config: OffloadConfig, executor: MemoryExecutor, storage: EmbeddedStorage | None) -> None:
        super().__init__()
        self.executor = executor
        self.degraded: list[str] = []
        self.storage_address = "" if storage is None else storage.address
        self._connected: asyncio.Future[PlayedScheduler] = asyncio.get_running_loop().create_future()
        self.agent = ServiceAgent(config, self._connect, executor, connect_storage, self.degraded.append)
        self.agent.start()

    def _connect(self, on_events: Callable[[list[ConnectorEvent]], None]) -> PlayedScheduler:
        scheduler = PlayedScheduler(on_events)
        self._connected.set_result(scheduler)
        return scheduler

    async def welcome(self) -> None:
        self.scheduler = await asyncio.wait_for(asyncio.shield(self._connected), DEADLINE_SECONDS)
        self.scheduler.on_events([Welcomed(Welcome(False, 1, 60.0, 0.05, self.storage_address))])

    def submit(
        self, function: Callable[..., Any] | bytes, *payloads: bytes, inputs: Sequence[bytes] = (), **spec: Any
    ) -> list[CallKey]:
        """Send a Run with one task per payload, all with these inputs."""
        code = function if isinstance(function, bytes) else to_payload(dump_function(function))
        ids = self.submit_payloads(code, payloads, [tuple(inputs)] * len(payloads), **spec)
        return [(each, 1) for each in ids]

    async def handed_on(self, *keys: CallKey) -> None:
        await asyncio.to_thread(self.executor.until, lambda: set(keys) <= self.executor.calls.keys())

    async def outcome(self, key: CallKey) -> tuple[Outcome, bytes]:
        found: tuple[Outcome, bytes] = await self.until(lambda: self.results().get(key))
        return found


def connect_storage(address: str) -> StorageClient:
    return StorageClient(address, b"offload-", Role.WORKER)


def play(story: Callable[[Rig], Awaitable[None]], *, with_storage: bool = False, **settings: Any) -> MemoryExecutor:
    """Run a scenario with an agent; return the closed executor."""
    executor = MemoryExecutor()
    storage = EmbeddedStorage("tcp://127.0.0.1:0", 2**30) if with_storage else None
    values = {"slots": 4, "executor": "memory:memory", **settings}
    config = OffloadConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", unit_id="u", **values)

    async def run() -> None:
        rig = Rig(config, executor, storage)
        try:
            await rig.welcome()
            await story(rig)
        finally:
            executor.gate.set()
            await rig.close()

    try:
        asyncio.run(run())
    finally:
        if storage is not None:
            storage.close()
    assert executor.is_closed
    return executor


def arguments(*args: Any) -> bytes:
    return to_payload(dump_arguments(args, {})[0])


async def put(rig: Rig, value: object) -> bytes:
    """Store a value like a client; return its reference."""
    return await put_parts(rig, dump_value(value))


async def put_parts(rig: Rig, parts: Sequence[Buffer]) -> bytes:
    identifier = rig.ids.object()
    client = StorageClient(rig.storage_address, b"putter--", Role.CLIENT)
    try:
        await client.put(identifier, parts)
    finally:
        client.close()
    return stored_reference(identifier, size_of(parts))


def test_single_task_is_sent_at_once_and_tasks_while_busy_are_batched() -> None:
    async def story(rig: Rig) -> None:
        rig.executor.gate.clear()
        first = rig.submit(len, arguments("a"))
        await asyncio.to_thread(rig.executor.until, lambda: rig.executor.batches == [first])
        second = rig.submit(len, arguments("b"))
        third = rig.submit(len, arguments("c"), arguments("d"))
        rig.executor.gate.set()
        await rig.handed_on(*first, *second, *third)
        assert rig.executor.batches == [first, [*second, *third]]

    play(story)


def test_heartbeat_is_sent_while_the_executor_blocks() -> None:
    async def story(rig: Rig) -> None:
        rig.executor.gate.clear()
        [key] = rig.submit(len, arguments("a"))
        await asyncio.to_thread(rig.executor.until, lambda: rig.executor.batches)
        said = len(rig.messages(WorkerHeartbeat))
        await rig.until(lambda: len(rig.messages(WorkerHeartbeat)) > said + 1)
        assert [status.running for status in rig.messages(WorkerHeartbeat)[-1].processors] == [key[0]]

    play(story)


def test_task_cancelled_before_dispatch_never_reaches_the_executor() -> None:
    async def story(rig: Rig) -> None:
        rig.executor.gate.clear()
        [first] = rig.submit(len, arguments("a"))
        await asyncio.to_thread(rig.executor.until, lambda: rig.executor.batches)
        [second, third] = rig.submit(len, arguments("b"), arguments("c"))
        rig.hear(Recall([second[0]], [1], kill=True))
        assert (await rig.outcome(second))[0] is Outcome.CANCELLED
        rig.executor.gate.set()
        await rig.handed_on(first, third)

    executor = play(story)
    assert [len(batch) for batch in executor.batches] == [1, 1]
    assert executor.cancelled == []


def test_calls_accepted_before_a_refusal_run_and_the_rest_is_retried() -> None:
    async def story(rig: Rig) -> None:
        executor = rig.executor
        executor.gate.clear()
        [blocker] = rig.submit(len, arguments("blocks"))
        await asyncio.to_thread(executor.until, lambda: executor.batches)
        first, second = rig.submit(len, arguments("ab"), arguments("c"))
        executor.refusals.extend([ExecutorError("busy", [blocker]), ExecutorError("busy", [first])])
        executor.gate.set()
        await rig.handed_on(blocker, first, second)
        assert executor.batches == [[blocker], [first, second], [second]]
        executor.finish(first)
        assert (await rig.outcome(first))[0] is Outcome.SUCCESS
        assert rig.degraded[0] == "tasks cannot be submitted to the service: busy; trying again"
        await rig.until(lambda: rig.degraded[-1] == "")

    play(story)


def test_referenced_objects_are_inlined_and_large_results_stored() -> None:
    async def story(rig: Rig) -> None:
        big = "x" * 100_000
        code = await put_parts(rig, dump_function(lambda a, b: (a + b) * 3))
        lists = await put(rig, (big, "-"))
        [key] = rig.submit(code, lists)
        await rig.handed_on(key)
        rig.executor.finish(key)
        outcome, payload = await rig.outcome(key)
        assert outcome is Outcome.SUCCESS
        assert payload == stored_reference(result_id(*key), int.from_bytes(payload[17:], "little"))
        client = StorageClient(rig.storage_address, b"getter--", Role.CLIENT)
        assert load_value(await client.get(result_id(*key))) == (big + "-") * 3
        client.close()

    play(story, with_storage=True)


def test_missing_object_ends_its_task_without_delaying_others() -> None:
    async def story(rig: Rig) -> None:
        missing = stored_reference(rig.ids.object(), 100)
        [lacks] = rig.submit(len, missing)
        [runs] = rig.submit(len, arguments("abc"))
        await rig.handed_on(runs)
        rig.executor.finish(runs)
        assert (await rig.outcome(runs))[0] is Outcome.SUCCESS
        assert (await rig.outcome(lacks))[0] is Outcome.INPUT_MISSING

    play(story, with_storage=True)


def test_task_output_arrives_before_the_result() -> None:
    text = "€" * 40_000

    def writes(text: str) -> None:
        import os  # noqa: PLC0415

        os.write(1, text.encode())
        os.write(2, b"oops")

    async def story(rig: Rig) -> None:
        [key] = rig.submit(writes, arguments(text), stream_output=True)
        await rig.handed_on(key)
        rig.executor.finish(key)
        await rig.outcome(key)
        written: dict[bool, list[bytes]] = {False: [], True: []}
        for message in rig.messages(Output):
            assert message.task == key[0]
            written[message.is_stderr].append(message.text)
        assert b"".join(written[False]).decode() == text
        assert written[True] == [b"oops"]
        assert isinstance(rig.scheduler.said[-1], Done | WorkerHeartbeat)

    play(story)


def test_shutdown_ends_the_agent_and_its_calls() -> None:
    async def story(rig: Rig) -> None:
        [key] = rig.submit(len, arguments("abc"))
        await rig.handed_on(key)
        rig.hear(Shutdown("enough"))
        assert await asyncio.wait_for(rig.agent.ended, DEADLINE_SECONDS) == 0

    play(story)


@pytest.mark.parametrize("error", [ConfigError("soamapi is not installed"), ValueError("a bug")])
def test_executor_that_cannot_start_ends_the_agent_with_its_reason(error: Exception) -> None:
    executor = MemoryExecutor()
    executor.start_error = error
    config = OffloadConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", unit_id="u", executor="memory:memory"
    )

    async def run() -> None:
        rig = Rig(config, executor, None)
        with pytest.raises(type(error), match=str(error)):
            await asyncio.wait_for(rig.agent.ended, DEADLINE_SECONDS)
        await rig.agent.close()

    asyncio.run(run())
    assert executor.is_closed


def test_executor_reports_leftovers_that_it_cannot_end(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(MemoryExecutor):
        def close(self) -> None:
            self.is_closed = True
            raise ScalerError("2 jobs may be left in the queue q: cancel them there")

    async def run() -> None:
        config = OffloadConfig(
            scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", unit_id="u", executor="memory:memory"
        )
        rig = Rig(config, Stubborn(), None)
        await rig.welcome()
        await rig.agent.close()

    asyncio.run(run())
    assert "2 jobs may be left in the queue q" in caplog.text

"""A real worker (agent, fork server, processors) with a scripted scheduler."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import psutil

from scaler.config.worker import WorkerConfig
from scaler.ids import IdFactory, content_id
from scaler.net.connection import ConnectorEvent, Received, Welcomed
from scaler.object_storage.server import EmbeddedStorage
from scaler.offload.call import CallKey
from scaler.protocol.messages import (
    Buffer,
    Descriptor,
    Done,
    Message,
    Outcome,
    Recall,
    Run,
    RunGroup,
    Spec,
    Welcome,
    is_stored,
)
from scaler.serialization import dump_function, load_value, parts_of, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exceptions import load_exception
from scaler.worker.agent.processors import ProcessorAgent
from scaler.worker.agent.shell import Agent
from scaler.worker.fork_server import ForkServer, start_fork_server
from tests.waiting import soon

P = ParamSpec("P")
DEADLINE_SECONDS = 10.0


class PlayedScheduler:
    """The agent's connector, which records the sent messages in `said`."""

    passes_descriptors = False

    def __init__(self, on_events: Callable[[list[ConnectorEvent]], None]) -> None:
        self.on_events = on_events
        self.peer = b"schedulr"
        self.connected = True
        self.said: list[Message] = []
        self.changed = asyncio.Event()

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        self.said.append(message)
        self.changed.set()

    @property
    def last_error(self) -> str:
        return ""

    def together(self, work: Callable[[], object]) -> None:
        work()

    def outbox_bytes(self) -> int:
        return 0

    def close(self, reason: str = "") -> None:
        self.connected = False


class AgentRig:
    """A running agent with a scripted scheduler."""

    agent: Agent
    scheduler: PlayedScheduler

    def __init__(self) -> None:
        self.ids = IdFactory(b"client--")
        self._defined: set[bytes] = set()

    def hear(self, *messages: Message) -> None:
        self.scheduler.on_events([Received(b"schedulr", message) for message in messages])

    def submit_payloads(
        self, function: bytes, payloads: Sequence[bytes], inputs: list[tuple[bytes, ...]], **spec: Any
    ) -> list[bytes]:
        """Send a Run with these payloads, and return the ids of its tasks."""
        identifier = function[1:17] if is_stored(function) else content_id(function)
        definitions = [] if identifier in self._defined else [(identifier, function)]
        self._defined.add(identifier)
        ids = [self.ids.task() for _ in payloads]
        self.hear(Run(definitions, [RunGroup(Spec(identifier, **spec), ids, [1] * len(ids), list(payloads), inputs)]))
        return ids

    def results(self) -> dict[CallKey, tuple[Outcome, bytes]]:
        """Return the outcome of each attempt."""
        return {
            (identifier, attempt): (Outcome(outcome), payload)
            for message in self.messages(Done)
            for identifier, attempt, outcome, payload in zip(
                message.ids, message.attempts, message.outcomes, message.payloads, strict=True
            )
        }

    def messages(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.scheduler.said if isinstance(message, kind)]

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the agent has sent a matching message, and return the result."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (found := condition()):
                self.scheduler.changed.clear()
                await self.scheduler.changed.wait()
        return found

    async def close(self) -> None:
        await self.agent.close()
        if self.agent.ended.done():
            self.agent.ended.exception()


class Rig(AgentRig):
    def __init__(
        self, agent: Agent, scheduler: PlayedScheduler, fork_server: ForkServer, storage: EmbeddedStorage | None
    ) -> None:
        super().__init__()
        self.agent = agent
        self.scheduler = scheduler
        self.fork_server = fork_server
        self._storage = storage

    @property
    def storage(self) -> EmbeddedStorage:
        assert self._storage is not None
        return self._storage

    def submit(self, function: Callable[..., Any], *argument_lists: tuple[Any, ...], **spec: Any) -> list[bytes]:
        """Send a Run with one task per tuple of arguments, and return the ids of its tasks."""
        return self.submit_payloads(
            to_payload(dump_function(function)),
            [to_payload(dump_arguments(each, {})[0]) for each in argument_lists],
            [],
            **spec,
        )

    def recall(self, identifier: bytes, *, kill: bool) -> None:
        self.hear(Recall([identifier], [1], kill))

    def outcomes(self) -> dict[bytes, tuple[Outcome, bytes]]:
        return {identifier: result for (identifier, _), result in self.results().items()}

    async def poll(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition outside the agent is true."""
        return await soon(condition, DEADLINE_SECONDS)

    async def outcome(self, identifier: bytes) -> tuple[Outcome, bytes]:
        found: tuple[Outcome, bytes] = await self.until(lambda: self.outcomes().get(identifier))
        return found

    async def value(self, identifier: bytes) -> Any:
        outcome, payload = await self.outcome(identifier)
        if outcome is Outcome.EXCEPTION:
            raise load_exception(payload)
        assert outcome is Outcome.SUCCESS, payload
        return load_value(parts_of(payload))

    def processors(self) -> list[psutil.Process]:
        return psutil.Process(self.fork_server.pid).children()


@asynccontextmanager
async def _running(
    fork_server: ForkServer, config: WorkerConfig, address: str, storage: EmbeddedStorage | None
) -> AsyncIterator[Rig]:
    played: list[PlayedScheduler] = []

    def connect(on_events: Callable[[list[ConnectorEvent]], None]) -> PlayedScheduler:
        played.append(PlayedScheduler(on_events))
        return played[0]

    agent = ProcessorAgent(config, connect, fork_server)
    agent.start()
    rig = Rig(agent, played[0], fork_server, storage)
    rig.scheduler.on_events([Welcomed(Welcome(False, 1, 60.0, 2.0, address))])
    try:
        yield rig
    finally:
        await rig.close()


def play(story: Callable[[Rig], Any], *, storage: str = "", with_storage: bool = False, **config: Any) -> None:
    """Run a scenario with a worker, and check that it leaves nothing behind. with_storage: with a real storage."""
    made = WorkerConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="manager", unit_id="unit", **config)
    fork_server = start_fork_server(made)
    embedded = EmbeddedStorage("tcp://127.0.0.1:0", 2**30) if with_storage else None

    async def run() -> None:
        async with _running(fork_server, made, embedded.address if embedded else storage, embedded) as rig:
            await story(rig)

    try:
        asyncio.run(run())
    finally:
        fork_server.close()
        if embedded is not None:
            embedded.close()
    assert not psutil.pid_exists(fork_server.pid)


def played(**config: Any) -> Callable[[Callable[Concatenate[Rig, P], Awaitable[None]]], Callable[P, None]]:
    """Run an async test with a worker of this configuration. Its first argument is the rig: see `play`."""

    def decorate(story: Callable[Concatenate[Rig, P], Awaitable[None]]) -> Callable[P, None]:
        @functools.wraps(story)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            play(lambda rig: story(rig, *args, **kwargs), **config)

        fixtures = list(inspect.signature(story).parameters.values())[1:]
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""

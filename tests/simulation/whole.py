"""The simulated world with the real cores of agents and the storage. Tasks pass through the pool of processors, and
large results are in the storage, where tasks and clients read them.

    WholeWorld(seed=1, workers=10, clients=3, tasks=1000, chances=Chances()).run()
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from random import Random
from typing import Any

from scaler.errors import LimitError
from scaler.ids import result_id
from scaler.net.connection import Closed, Received, Welcomed
from scaler.object_storage.requests import GetCall, PutCall
from scaler.object_storage.requests import Outcome as CallOutcome
from scaler.protocol.messages import (
    Finished,
    ForgetObjects,
    ForgetOwner,
    Message,
    ObjectsMissing,
    ObjectsRestored,
    Outcome,
    Recall,
    Release,
    Role,
    Run,
    Spec,
    Welcome,
    is_stored,
    stored_reference,
)
from scaler.scheduler.core.commands import Command, SendToStorage, StorageConnected
from scaler.testing.simulation import World
from scaler.testing.simulation.actors import ActorWorld, Chances, SimulatedClient, SimulatedWorker, value_of
from scaler.testing.simulation.world import Actor
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.events import (
    ActOnProcessor,
    AgentInput,
    EndAgent,
    ProcessorReported,
    ResultsReceived,
    TimeElapsed,
)
from scaler.worker.agent.events import Command as AgentCommand
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorVerb as Verb
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.frames import Results
from tests.simulation.storage import SCHEDULER, SimulatedStorage, StoragePort, large_value
from tests.unit.worker.worker_fakes import CoreRig, FakeProcessor, FakeProcessors, worker_config

LEASE_SECONDS = 60.0
SPAWN_SECONDS = 0.005
DISK_PAUSE_SECONDS = 0.25
"""Delay before restoring a result that the storage rejected for lack of disk space."""


class ValueProcessor(FakeProcessor):
    """A processor whose results contain values."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes] = []
        self.is_exiting = False
        self.is_ready = False

    def end_task(self, outcome: Outcome, value: bytes, duration_us: int) -> None:
        self.value = value
        self.finish(outcome, duration_us)
        self.page[-1] = (*self.page[-1][:-1], len(value))
        self.values.append(value)

    def results(self) -> Results:
        return Results(self.batch, list(self.page), memoryview(b"".join(self.values)))

    def flush(self) -> Results:
        results = super().flush()
        self.values = []
        return results


class ValueProcessors(FakeProcessors):
    def perform(self, command: AgentCommand) -> AgentInput | None:
        if isinstance(command, ActOnProcessor) and command.verb is Verb.SPAWN:
            self.processors[command.number] = ValueProcessor()
            return None
        return super().perform(command)


class SimulatedAgent(SimulatedWorker):
    """An agent's real core, with processors in simulated time."""

    def __init__(
        self,
        identifier: bytes,
        slots: int,
        gpu: bool,
        world: ActorWorld,
        random: Random,
        chances: Chances,
        storage: SimulatedStorage,
        ended: Callable[[SimulatedAgent], None],
    ) -> None:
        super().__init__(identifier, slots, gpu, world, random, chances)
        self._rig = CoreRig(worker_config(slots))
        self._rig.core = AgentCore(worker_config(slots), ProcessorPool, world.now)
        self._rig.hands = ValueProcessors()
        self._port = StoragePort(storage, identifier, Role.WORKER)
        self._ended = ended
        self._specs: dict[bytes, Spec] = {}
        self._wake_at = math.inf

    @property
    def running(self) -> int:
        return sum(each.running is not None for each in self._living().values())

    def welcomed(self, incarnation: int) -> None:
        self._step(Welcomed(Welcome(False, incarnation, LEASE_SECONDS, 2.0)))

    def hear(self, message: Message) -> None:
        if isinstance(message, Run):
            for group in message.groups:
                self._specs.update(dict.fromkeys(group.ids, group.spec))
        elif isinstance(message, Recall) and message.kill:
            attempts = self._rig.core.executor.queue.attempts
            for identifier, attempt in zip(message.ids, message.attempts, strict=True):
                if identifier in attempts and attempts[identifier].attempt == attempt:
                    self._world.killed(identifier)
        self._step(Received(SCHEDULER, message))

    def restart(self) -> None:
        """Restart the session, which the scheduler has ended. The next Welcomed tells the core."""

    def close(self) -> None:
        self._port.close()

    def _living(self) -> dict[int, ValueProcessor]:
        found: dict[int, ValueProcessor] = {}
        for number, each in self._rig.hands.processors.items():
            assert isinstance(each, ValueProcessor)
            if not each.released:
                found[number] = each
        return found

    def _step(self, *inputs: AgentInput) -> None:
        if not self.alive:
            return
        rig = self._rig
        rig.now = self._world.now
        rig.step(*inputs)
        sent, rig.sent = rig.sent, []
        rig.logged.clear()
        for message in sent:
            self.say(message)
        if isinstance(rig.ending, EndAgent):
            self._ended(self)
            return
        for number, processor in self._living().items():
            self._go_on(number, processor)
        self._wake()

    def _wake(self) -> None:
        at = max(self._rig.core.wake_at, self._world.now + 0.0001)
        if at < self._wake_at or self._wake_at <= self._world.now:
            self._wake_at = at
            self._world.later(at, partial(self._tick, at))

    def _tick(self, at: float) -> None:
        if self._wake_at == at:
            self._wake_at = math.inf
            self._step(TimeElapsed(self._rig.snapshots()))

    def _soon(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.later(self._world.now + seconds, action)

    # -- processors

    def _go_on(self, number: int, processor: ValueProcessor) -> None:
        """Perform a processor's next action."""
        if processor.is_exiting:
            return
        if not processor.is_ready:
            processor.is_ready = True
            self._soon(SPAWN_SECONDS, lambda: self._step(ProcessorReported(number, Event.READY)))
        elif processor.killed or (processor.ended and processor.running is None and not processor.unread):
            processor.is_exiting = True
            self._soon(SPAWN_SECONDS, partial(self._exit, number, processor, "killed by signal 9 (SIGKILL)"))
        elif processor.running is None and processor.unread:
            self._begin(number, processor)

    def _exit(self, number: int, processor: ValueProcessor, text: str) -> None:
        if self.alive and not processor.released:
            if processor.running is None and processor.unread and self._random.random() < 0.5:
                processor.unread.pop(0)  # the processor has read a task but not started it
            processor.is_exiting = processor.killed = True
            left = processor.reclaim(number)
            self._step(left, ProcessorReported(number, Event.EXITED, text))

    def _begin(self, number: int, processor: ValueProcessor) -> None:
        processor.begin(self._world.now)
        assert processor.running is not None
        attempt = processor.running
        spec = self._specs[attempt[0]]
        stored = deque(payload[1:17] for payload in processor.inputs if is_stored(payload))

        def fetch() -> None:
            if not self._is_running(processor, attempt):
                return
            if stored:
                wanted = stored.popleft()
                self._port.call(GetCall(wanted), partial(check, wanted))
            else:
                self._run(number, processor, spec, attempt)

        def check(wanted: bytes, outcome: CallOutcome) -> None:
            if isinstance(outcome, list):
                assert b"".join(map(bytes, outcome)) == large_value(wanted), "a task gets the inputs that it names"
                fetch()
            elif self._is_running(processor, attempt):
                self._end(number, processor, Outcome.INPUT_MISSING, wanted + b" is missing", 0.0)

        fetch()

    def _is_running(self, processor: ValueProcessor, attempt: tuple[bytes, int]) -> bool:
        return self.alive and not processor.killed and not processor.released and processor.running == attempt

    def _run(self, number: int, processor: ValueProcessor, spec: Spec, attempt: tuple[bytes, int]) -> None:
        task = attempt[0]
        self._world.started(task)
        seconds = self.duration(spec, task)
        chance = self._random.random()
        chances = self._chances

        def finish() -> None:
            if not self._is_running(processor, attempt):
                return
            if chance < chances.processor_deaths:
                self._exit(number, processor, "killed by signal 11 (SIGSEGV)")
            elif chance < chances.processor_deaths + chances.exceptions:
                self._end(number, processor, Outcome.EXCEPTION, b"\x80 its own exception", seconds)
            elif chance > 1 - chances.stored_results:
                put(result_id(*attempt))
            else:
                self._end(number, processor, Outcome.SUCCESS, value_of(task), seconds)

        def put(name: bytes) -> None:
            if self._is_running(processor, attempt):
                self._port.call(PutCall(name, [memoryview(large_value(name))]), partial(stored, name))

        def stored(name: bytes, outcome: CallOutcome) -> None:
            if not self._is_running(processor, attempt):
                return
            if isinstance(outcome, LimitError) and outcome.may_pass:
                self._soon(DISK_PAUSE_SECONDS, partial(put, name))
                return
            assert outcome is None, f"the storage has rejected a result: {outcome!r}"
            self._end(number, processor, Outcome.SUCCESS, stored_reference(name, 100_000), seconds)

        self._soon(seconds, finish)

    def _end(self, number: int, processor: ValueProcessor, outcome: Outcome, value: bytes, seconds: float) -> None:
        processor.end_task(outcome, value, int(seconds * 1e6))
        if not processor.unread or self._random.random() < 0.3:
            self._step(ResultsReceived(number, processor.flush()))
        else:  # sent together, or read from the results page of a killed processor
            self._step()


class StoringClient(SimulatedClient):
    """A client that reads its large results from the storage, and then releases them."""

    def __init__(
        self,
        identifier: bytes,
        tasks: int,
        world: ActorWorld,
        random: Random,
        chances: Chances,
        storage: SimulatedStorage,
    ) -> None:
        super().__init__(identifier, tasks, world, random, chances)
        self.fetched = 0
        self.delivered: dict[bytes, tuple[int, bytes]] = {}
        """Outcome and payload of each ended task."""
        self._port = StoragePort(storage, identifier, Role.CLIENT)
        self._storage = storage
        self._was_given_up = False

    def restart(self) -> None:
        self._was_given_up = True
        super().restart()

    def hear(self, message: Message) -> None:
        if isinstance(message, ObjectsMissing):
            for identifier in message.ids:
                self._restore(identifier)
            return
        if isinstance(message, Finished):
            message = self._new_rows(message)
        said: list[Message] = []
        say, self.say = self.say, said.append
        super().hear(message)
        self.say = say
        for each in said:
            if isinstance(each, Release):
                for identifier in each.ids:
                    self._port.call(GetCall(identifier), partial(self._got, identifier))
            else:
                say(each)

    def _new_rows(self, message: Finished) -> Finished:
        """Return a Finished without rows that a restarted scheduler repeats. Repeated rows must be equal."""
        new: list[int] = []
        for row, identifier in enumerate(message.ids):
            outcome, payload = message.outcomes[row], message.payloads[row]
            if identifier not in self.delivered:
                self.delivered[identifier] = outcome, payload
                new.append(row)
                continue
            assert self._storage.is_durable, f"task {identifier.hex()} ended twice"
            assert self.delivered[identifier] == (outcome, payload), f"task {identifier.hex()} has two outcomes"
            if is_stored(payload):
                self.say(Release([payload[1:17]]))
        columns = (message.ids, message.outcomes, message.payloads, message.duration_us)
        return Finished(message.number, *([column[row] for row in new] for column in columns))  # type: ignore[arg-type]

    def close(self) -> None:
        self._port.close()

    def leave(self) -> None:
        """Send the last messages before the program exits."""

    def _restore(self, identifier: bytes) -> None:
        """Put a lost object again, as if the client had its value or had recomputed it."""
        assert self._storage.may_lose, f"a stored result is there while a task needs it: {identifier.hex()}"

        def restored(_outcome: CallOutcome) -> None:
            if self.alive:
                self.say(ObjectsRestored([identifier], []))

        self._port.call(PutCall(identifier, [memoryview(large_value(identifier))]), restored)

    def _got(self, identifier: bytes, outcome: CallOutcome) -> None:
        if isinstance(outcome, list):
            assert b"".join(map(bytes, outcome)) == large_value(identifier), "a client gets its own large value"
            self.fetched += 1
        else:
            is_due = self._was_given_up or self._storage.may_lose
            assert is_due, f"a result is kept until its client releases it: {outcome}"
        if self.alive:
            self.say(Release([identifier]))


class WholeWorld(World):
    """A world with agents and a storage. Raises AssertionError like World.

    storage_restarts_per_second: rate at which the storage restarts and loses everything.
    """

    def __init__(
        self,
        *,
        seed: int,
        workers: int,
        clients: int,
        tasks: int,
        chances: Chances,
        storage_restarts_per_second: float = 0.0,
        **others: Any,
    ) -> None:
        self._incarnation = 1
        self._seed = seed
        super().__init__(seed=seed, workers=workers, clients=clients, tasks=tasks, chances=chances, **others)
        self._scheduler_port = StoragePort(
            self._storage, SCHEDULER, Role.SCHEDULER, lambda: self._arrive(StorageConnected())
        )
        if storage_restarts_per_second:
            self._sometimes(storage_restarts_per_second, self._storage.restart)

    @cached_property
    def _storage(self) -> SimulatedStorage:
        return SimulatedStorage(self, Random(self._seed + 1), self._chances.delay_seconds, None)

    def started(self, task: bytes) -> None:
        super().started(task)
        own = Outcome.SUCCESS, Outcome.EXCEPTION
        for client in self._clients:
            if isinstance(client, StoringClient) and task in client.delivered:
                assert client.delivered[task][0] not in own, f"task {task.hex()} starts after its outcome was delivered"

    def _add_worker(self, gpu: bool) -> None:
        agent = SimulatedAgent(
            self._random.randbytes(8),
            self._slots,
            gpu,
            self,
            self._random,
            self._chances,
            self._storage,
            self._agent_ended,
        )
        self._connect(agent)

    def unused_bytes(self) -> int:
        """Return the number of stored bytes that no client or task needs."""
        return self._storage.used_bytes

    def _make_client(self, tasks: int) -> SimulatedClient:
        return StoringClient(self._random.randbytes(8), tasks, self, self._random, self._chances, self._storage)

    def _connect(self, actor: Actor) -> None:
        super()._connect(actor)
        if isinstance(actor, SimulatedAgent):
            actor.welcomed(self._incarnation)

    def _perform(self, commands: Sequence[Command]) -> None:
        super()._perform(commands)
        for command in commands:
            if isinstance(command, SendToStorage) and isinstance(command.message, ForgetObjects | ForgetOwner):
                self._scheduler_port.forget(command.message)

    def _die(self, actor: Actor, goodbye: float) -> None:
        super()._die(actor, goodbye)
        if isinstance(actor, SimulatedAgent | StoringClient):
            actor.close()

    def _agent_ended(self, agent: SimulatedAgent) -> None:
        """Replace an agent that has exited or was drained, like its manager."""
        agent.alive = False
        link = self._links[agent.id]
        if link.up:
            link.drop()
        agent.close()
        self._arrive(Closed(agent.id, "the worker ends"))
        self.later(self.now + 0.1, lambda: self._add_worker(agent.gpu))

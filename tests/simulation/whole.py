"""The simulated world with real agents' cores and a real storage's core: tasks pass through the pool of processors,
large results lie in the storage, and are read from there by the tasks that need them and by their clients.

    WholeWorld(seed=1, workers=10, clients=3, tasks=1000, chances=Chances()).run()
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from scaler.ids import result_id
from scaler.net.connection import Broken, Closed, Opened, Received, Welcomed
from scaler.object_storage.core import MeasureOutbox, OutboxMeasured, SendToPeer, StorageCore, StorageInput
from scaler.object_storage.requests import (
    CallEnded,
    GetCall,
    PutCall,
    Requests,
    RequestsInput,
    SendRequest,
    StorageCall,
)
from scaler.object_storage.requests import (
    Outcome as CallOutcome,
)
from scaler.policy.view import Allocation
from scaler.protocol.messages import (
    ClientDetails,
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
    WorkerDetails,
    is_stored,
    stored_reference,
)
from scaler.scheduler.core.commands import Command, SendToStorage
from scaler.scheduler.core.core import SchedulerCore
from scaler.testing.simulation import World
from scaler.testing.simulation.actors import ActorWorld, Chances, SimulatedClient, SimulatedWorker, value_of
from scaler.testing.simulation.stepping import hello
from scaler.testing.simulation.world import RECONNECT_SECONDS, Actor
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.events import (
    ActOnProcessor,
    AgentInput,
    EndAgent,
    ProcessorReported,
    ResultsReceived,
    TimeElapsed,
)
from scaler.worker.agent.events import (
    Command as AgentCommand,
)
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorVerb as Verb
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.frames import Results
from tests.unit.worker.worker_fakes import CoreRig, FakeProcessor, FakeProcessors, worker_config

LEASE_SECONDS = 60.0
SPAWN_SECONDS = 0.005
SCHEDULER = b"schedulr"


def large_value(identifier: bytes) -> bytes:
    """Return the content of a stored result: of no other one."""
    return b"large " + identifier


class StoragePort:
    """The requests of one peer, and what is called when each ends."""

    def __init__(self, storage: SimulatedStorage, peer: bytes, role: Role) -> None:
        self.peer = peer
        self._storage = storage
        self._requests = Requests("simulated", 1e9, storage.now)
        self._waiting: dict[StorageCall, Callable[[CallOutcome], None]] = {}
        details = WorkerDetails("simulated", peer.hex(), 1, 1, {}) if role is Role.WORKER else ClientDetails("")
        self._hello = hello(role, details)
        storage.ports[peer] = self
        self._connect()

    def _connect(self) -> None:
        self._storage.arrive(Opened(self.peer, self._hello))
        self.step(Welcomed(Welcome(False, 1 + self._storage.restarts, 1e9, 2.0)))

    def lose_connection(self) -> None:
        self.step(Broken(SCHEDULER))
        self._storage.later_in_order((self.peer, True), self._reconnect)

    def _reconnect(self) -> None:
        if self._storage.ports.get(self.peer) is self:
            self._connect()

    def call(self, call: StorageCall, ended: Callable[[CallOutcome], None]) -> None:
        self._waiting[call] = ended
        self.step(call)

    def step(self, item: RequestsInput) -> None:
        for command in self._requests.step([item], self._storage.now):
            match command:
                case SendRequest(message, attachments):
                    arrived = Received(self.peer, message, [memoryview(bytes(frame)) for frame in attachments])
                    self._storage.later_in_order((self.peer, True), partial(self._storage.arrive, arrived))
                case CallEnded(call, outcome):
                    self._waiting.pop(call)(outcome)

    def close(self) -> None:
        """The peer ends: what it has sent still arrives, and no answer does."""
        self._waiting.clear()
        self._storage.ports.pop(self.peer, None)
        self._storage.later_in_order((self.peer, True), lambda: self._storage.arrive(Closed(self.peer, "")))


class SimulatedStorage:
    """The storage's core, and wires to it that keep their order."""

    def __init__(self, world: ActorWorld, random: Random, delay_seconds: float) -> None:
        self.ports: dict[bytes, StoragePort] = {}
        self._core = StorageCore(1 << 40, lease_seconds=1e9, tick_seconds=1e9)
        self._world = world
        self._random = random
        self._delay_seconds = delay_seconds
        self._clear_at: dict[tuple[bytes, bool], float] = {}
        self.restarts = 0

    def restart(self) -> None:
        """End, with all objects and all that is on its way, and start again."""
        self.restarts += 1
        self._core = StorageCore(1 << 40, lease_seconds=1e9, tick_seconds=1e9)
        for port in list(self.ports.values()):
            port.lose_connection()

    @property
    def now(self) -> float:
        return self._world.now

    @property
    def used_bytes(self) -> int:
        return self._core.used_bytes

    def later_in_order(self, wire: tuple[bytes, bool], action: Callable[[], None]) -> None:
        at = max(self.now + self._random.expovariate(1 / self._delay_seconds), self._clear_at.get(wire, 0.0))
        self._clear_at[wire] = at
        restarts = self.restarts
        self._world.later(at, lambda: action() if self.restarts == restarts else None)

    def arrive(self, item: StorageInput) -> None:
        inputs: list[StorageInput] = [item]
        while inputs:
            commands = self._core.step(inputs, self.now)
            self._core.check()
            inputs = [OutboxMeasured(each.peer, 0) for each in commands if isinstance(each, MeasureOutbox)]
            for command in commands:
                if isinstance(command, SendToPeer):
                    received = Received(SCHEDULER, command.message, list(command.attachments))
                    self.later_in_order((command.peer, False), partial(self._answer, command.peer, received))
        if self._core.wake_at < math.inf:
            self._world.later(self._core.wake_at, lambda: None)

    def _answer(self, peer: bytes, received: Received) -> None:
        port = self.ports.get(peer)
        if port is not None:
            port.step(received)


class ValueProcessor(FakeProcessor):
    """A processor whose results have values."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes] = []
        self.is_exiting = False
        self.is_ready = False

    def end_task(self, outcome: Outcome, value: bytes, duration_us: int) -> None:
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
    """The real core of an agent, with processors that run in simulated time."""

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
        self._specs: dict[bytes, tuple[Spec, tuple[bytes, ...]]] = {}
        self._wake_at = math.inf

    @property
    def running(self) -> int:
        return sum(each.running is not None for each in self._living().values())

    def welcomed(self, incarnation: int) -> None:
        self._step(Welcomed(Welcome(False, incarnation, LEASE_SECONDS, 2.0)))

    def hear(self, message: Message) -> None:
        if isinstance(message, Run):
            for group in message.groups:
                inputs = group.inputs or [()] * len(group.ids)
                for identifier, each in zip(group.ids, inputs, strict=True):
                    self._specs[identifier] = (group.spec, tuple(each))
        elif isinstance(message, Recall) and message.kill:
            for identifier in message.ids:
                self._world.killed(identifier)
        self._step(Received(SCHEDULER, message))

    def restart(self) -> None:
        """The scheduler has ended the session: the next Welcomed says so to the core."""

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
        """Let a processor do what comes next."""
        if processor.is_exiting:
            return
        if not processor.is_ready:
            processor.is_ready = True
            self._soon(SPAWN_SECONDS, lambda: self._step(ProcessorReported(number, Event.READY)))
        elif processor.killed or (processor.ended and processor.running is None and not processor.unread):
            processor.is_exiting = True
            self._soon(SPAWN_SECONDS, partial(self._exit, number, processor, "killed by signal 9 (SIGKILL)"))
        elif processor.running is None and processor.unread and not processor.paused:
            self._begin(number, processor)

    def _exit(self, number: int, processor: ValueProcessor, text: str) -> None:
        if self.alive and not processor.released:
            if processor.running is None and processor.unread and self._random.random() < 0.5:
                processor.unread.pop(0)  # it has read a task and not begun it
            processor.is_exiting = processor.killed = True
            left = processor.reclaim(number)
            self._step(left, ProcessorReported(number, Event.EXITED, text))

    def _begin(self, number: int, processor: ValueProcessor) -> None:
        processor.begin(self._world.now)
        assert processor.running is not None
        attempt = processor.running
        spec, inputs = self._specs[attempt[0]]
        stored = deque(payload[1:17] for payload in inputs if is_stored(payload))

        def fetch() -> None:
            if not self._is_running(processor, attempt):
                return
            if stored:
                wanted = stored.popleft()
                self._port.call(GetCall(wanted, 0.0), partial(check, wanted))
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
                name = result_id(*attempt)
                put = PutCall(name, [memoryview(large_value(name))])
                self._port.call(put, partial(stored, name))
            else:
                self._end(number, processor, Outcome.SUCCESS, value_of(task), seconds)

        def stored(name: bytes, outcome: CallOutcome) -> None:
            assert outcome is None, "the storage takes every result"
            if self._is_running(processor, attempt):
                self._end(number, processor, Outcome.SUCCESS, stored_reference(name, 100_000), seconds)

        self._soon(seconds, finish)

    def _end(self, number: int, processor: ValueProcessor, outcome: Outcome, value: bytes, seconds: float) -> None:
        processor.end_task(outcome, value, int(seconds * 1e6))
        if not processor.unread or self._random.random() < 0.3:
            self._step(ResultsReceived(number, processor.flush()))
        else:  # results go out together, or are read from the page of a processor that is killed
            self._step()


class StoringClient(SimulatedClient):
    """A client that reads its large results from the storage, and releases each when it has it."""

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
        self.delivered: set[bytes] = set()
        """Tasks that ended with their own outcome."""
        self._port = StoragePort(storage, identifier, Role.CLIENT)
        self._storage = storage
        self._was_given_up = False

    def restart(self, *, expired: bool) -> None:
        self._was_given_up = True
        super().restart(expired=expired)

    def hear(self, message: Message) -> None:
        if isinstance(message, ObjectsMissing):
            for identifier in message.ids:
                self._restore(identifier)
            return
        if isinstance(message, Finished):
            own = (Outcome.SUCCESS, Outcome.EXCEPTION)
            ended = zip(message.ids, message.outcomes, strict=True)
            self.delivered.update(identifier for identifier, outcome in ended if outcome in own)
        said: list[Message] = []
        say, self.say = self.say, said.append
        super().hear(message)
        self.say = say
        for each in said:
            if isinstance(each, Release):
                for identifier in each.ids:
                    self._port.call(GetCall(identifier, 0.0), partial(self._got, identifier))
            else:
                say(each)

    def close(self) -> None:
        self._port.close()

    def _restore(self, identifier: bytes) -> None:
        """Put an object again: a client has the value, or has it computed again."""
        assert self._storage.restarts, f"a stored result is there while a task needs it: {identifier.hex()}"

        def restored(_outcome: CallOutcome) -> None:
            if self.alive:
                self.say(ObjectsRestored([identifier], []))

        self._port.call(PutCall(identifier, [memoryview(large_value(identifier))]), restored)

    def _got(self, identifier: bytes, outcome: CallOutcome) -> None:
        if isinstance(outcome, list):
            assert b"".join(map(bytes, outcome)) == large_value(identifier), "a client gets its own large value"
            self.fetched += 1
        else:
            assert self._was_given_up or self._storage.restarts, (
                f"a result is kept until its client releases it: {outcome}"
            )
        if self.alive:
            self.say(Release([identifier]))


class WholeWorld(World):
    """A world with agents and a storage. Raises AssertionError as World does.

    storage_restarts_per_second: how often the storage loses everything. scheduler_restarts_per_second: how often the
    scheduler does; it has no journal.
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
        scheduler_restarts_per_second: float = 0.0,
        **others: Any,
    ) -> None:
        self._incarnation = 1
        self._storage = SimulatedStorage(self, Random(seed + 1), chances.delay_seconds)
        super().__init__(seed=seed, workers=workers, clients=clients, tasks=tasks, chances=chances, **others)
        StoragePort(self._storage, SCHEDULER, Role.SCHEDULER)
        if storage_restarts_per_second:
            self._sometimes(storage_restarts_per_second, self._storage.restart)
        if scheduler_restarts_per_second:
            self._sometimes(scheduler_restarts_per_second, self._restart_scheduler)

    def started(self, task: bytes) -> None:
        super().started(task)
        for client in self._clients:
            if isinstance(client, StoringClient):
                assert task not in client.delivered, f"task {task.hex()} starts after its outcome was delivered"

    def _restart_scheduler(self) -> None:
        """A scheduler that knows nothing takes the place of the present one, and all peers come to it."""
        self._incarnation += 1
        self.core = SchedulerCore(self._config, Allocation(), self.now)
        self._inbox.clear()
        for link in self._links.values():
            if link.up:
                link.drop()
        for actor in self._actors.values():
            if actor.alive:
                delay = self._random.expovariate(1 / RECONNECT_SECONDS)
                self.later(self.now + delay, partial(self._come_back, actor, self._incarnation))

    def _come_back(self, actor: Actor, incarnation: int) -> None:
        if not actor.alive or incarnation != self._incarnation:
            return
        self._connect(actor)
        if isinstance(actor, SimulatedClient):
            actor.restart(expired=False)
            self._said_again.update(actor.expected)

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
        """Return the bytes of objects that the storage keeps and no client or task needs."""
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
                message = command.message
                self._storage.later_in_order(
                    (SCHEDULER, True), partial(self._storage.arrive, Received(SCHEDULER, message))
                )

    def _die(self, actor: Actor, goodbye: float) -> None:
        super()._die(actor, goodbye)
        if isinstance(actor, SimulatedAgent | StoringClient):
            actor.close()

    def _agent_ended(self, agent: SimulatedAgent) -> None:
        """An agent has given up, or was drained: its manager starts another one."""
        agent.alive = False
        link = self._links[agent.id]
        if link.up:
            link.drop()
        agent.close()
        self._arrive(Closed(agent.id, "the worker ends"))
        self.later(self.now + 0.1, lambda: self._add_worker(agent.gpu))

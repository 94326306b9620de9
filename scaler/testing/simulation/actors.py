"""Simulated workers and clients, which use the real protocol and record events for the final checks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from scaler.ids import IdFactory, content_id, result_id
from scaler.protocol.messages import (
    STARTED_AFTER_SECONDS,
    AcknowledgeResults,
    Cancel,
    Done,
    Finished,
    ForgetFunctions,
    Heartbeat,
    Message,
    Outcome,
    Recall,
    Release,
    Returned,
    Run,
    Spec,
    Started,
    Submit,
    TaskGroup,
    WorkerHeartbeat,
    is_stored,
    stored_reference,
)

FLUSH_SECONDS = 0.001
"""How long a simulated worker collects results before sending them."""
CODE = {content_id(code): code for code in (b"\x80 function %d" % number for number in range(5))}
FUNCTIONS = tuple(CODE)
NEEDS = (*(((),) * 6), (("gpu", 1.0),), (("gpu", 0.5), ("memory", 3.0)), (("memory", 3.0),), (("cpus", 2.0),))
"""Needs of tasks: some take a whole or partial gpu, memory, or two slots."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Rates are events per simulated second in the entire cluster. Other values are probabilities or seconds."""

    delay_seconds: float = 0.001
    """Mean of the exponentially distributed delay of a message."""
    breaks_per_second: float = 2.0
    """Connections that break and recover. Messages in flight are partly lost."""
    repeats: float = 0.02
    """Probability that a message is delivered twice."""
    worker_crashes_per_second: float = 0.5
    worker_freezes_per_second: float = 0.1
    freeze_seconds: float = 90.0
    """Longer than the lease: the worker is given up, and returns with late results."""
    client_crashes_per_second: float = 0.02
    """Clients that crash during their work. A new client takes over the rest."""
    client_freezes_per_second: float = 0.01
    """Clients that are dropped, return, and resubmit unfinished tasks."""
    processor_deaths: float = 0.002
    """Probability that a task's process dies."""
    exceptions: float = 0.01
    stored_results: float = 0.05
    cancels: float = 0.02
    dependencies: float = 0.2
    """Probability that a task depends on earlier ones."""
    chains: float = 0.0
    """Probability that a task depends on the previous one, with the same function and options."""
    once: float = 0.05
    """Probability that a group may be started only once (retries=0)."""
    long_tasks: float = 0.02


CALM = Chances(
    breaks_per_second=0,
    repeats=0,
    worker_crashes_per_second=0,
    worker_freezes_per_second=0,
    client_crashes_per_second=0,
    client_freezes_per_second=0,
    processor_deaths=0,
    cancels=0,
    exceptions=0,
)
"""No failures, for measurements."""


class ActorWorld(Protocol):
    """The world, as seen by actors."""

    @property
    def now(self) -> float: ...
    def later(self, at: float, action: Callable[[], None]) -> None: ...
    def started(self, task: bytes) -> None: ...
    def killed(self, task: bytes) -> None: ...


def value_of(task: bytes) -> bytes:
    return b"\x80" + task


class SimulatedWorker:
    """An agent: runs `slots` tasks at once and queues the rest in order. Some agents offer a gpu."""

    def __init__(
        self, identifier: bytes, slots: int, gpu: bool, world: ActorWorld, random: Random, chances: Chances
    ) -> None:
        self.id = identifier
        self.slots = slots
        self.gpu = gpu
        self.alive = True
        self.say: Callable[[Message], None] = lambda _: None
        self._world = world
        self._random = random
        self._chances = chances
        self._queue: deque[tuple[Spec, bytes, int]] = deque()
        self._running: dict[bytes, int] = {}
        self._done = Done([], [], [], [], [])
        self._flushing = False
        self._known: set[bytes] = set()

    def hear(self, message: Message) -> None:
        match message:
            case Run(definitions, groups):
                self._known.update(identifier for identifier, _ in definitions)
                for group in groups:
                    assert group.spec.function in self._known, "a worker gets every function before its first task"
                    for identifier, attempt in zip(group.ids, group.attempts, strict=True):
                        self._queue.append((group.spec, identifier, attempt))
                self._start()
            case Recall(ids, attempts, kill):
                self._recall(ids, attempts, kill)
            case ForgetFunctions(ids):
                self._known.difference_update(ids)
            case _:
                pass

    @property
    def running(self) -> int:
        return len(self._running)

    def heartbeat(self) -> WorkerHeartbeat:
        return WorkerHeartbeat(self._world.now, 1.0, 1 << 20, len(self._queue), 0.001)

    def restart(self) -> None:
        self._queue.clear()
        self._running.clear()
        self._done = Done([], [], [], [], [])
        self._known.clear()

    def _start(self) -> None:
        while self._queue and len(self._running) < self.slots:
            spec, identifier, attempt = self._queue.popleft()
            self._running[identifier] = attempt
            self._world.started(identifier)
            seconds = self.duration(spec, identifier)
            if seconds > STARTED_AFTER_SECONDS:
                self._world.later(self._world.now + STARTED_AFTER_SECONDS, partial(self._announce, identifier, attempt))
            self._world.later(self._world.now + seconds, partial(self._finish, identifier, attempt, seconds))

    def duration(self, spec: Spec, task: bytes) -> float:
        del task
        if self._random.random() < self._chances.long_tasks:
            return self._random.uniform(0.5, 3.0)
        return self._random.expovariate(1 / (0.001 * 4 ** FUNCTIONS.index(spec.function)))

    def _announce(self, identifier: bytes, attempt: int) -> None:
        if self.alive and self._running.get(identifier) == attempt:
            self.say(Started([identifier]))

    def _finish(self, identifier: bytes, attempt: int, seconds: float) -> None:
        if not self.alive or self._running.get(identifier) != attempt:
            return
        del self._running[identifier]
        chance = self._random.random()
        outcome, payload = Outcome.SUCCESS, value_of(identifier)
        if chance < self._chances.processor_deaths:
            outcome, payload = Outcome.PROCESSOR_DIED, b"killed by signal 11 (SIGSEGV)"
        elif chance < self._chances.processor_deaths + self._chances.exceptions:
            outcome, payload = Outcome.EXCEPTION, b"\x80 its own exception"
        elif chance > 1 - self._chances.stored_results:
            payload = stored_reference(result_id(identifier, attempt), 100_000)
        self._report(identifier, attempt, outcome, payload, seconds)
        self._start()

    def _report(self, identifier: bytes, attempt: int, outcome: Outcome, payload: bytes, seconds: float) -> None:
        done = self._done
        done.ids.append(identifier)
        done.attempts.append(attempt)
        done.outcomes.append(outcome)
        done.payloads.append(payload)
        done.duration_us.append(int(seconds * 1e6))
        if not self._flushing:
            self._flushing = True
            self._world.later(self._world.now + FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.alive and self._done.ids:
            done, self._done = self._done, Done([], [], [], [], [])
            self.say(done)

    def _recall(self, ids: list[bytes], attempts: list[int], kill: bool) -> None:
        queued = {identifier: attempt for _, identifier, attempt in self._queue}
        answer = Returned([], [], [])
        taken: set[bytes] = set()
        for identifier, attempt in zip(ids, attempts, strict=True):
            if kill and attempt in (self._running.get(identifier), queued.get(identifier)):
                self._world.killed(identifier)  # a restarted scheduler kills earlier attempts
            if self._running.get(identifier) == attempt:
                if kill:
                    del self._running[identifier]
                    self._report(identifier, attempt, Outcome.CANCELLED, b"killed", 0.0)
                    continue
                started = True
            elif queued.get(identifier) == attempt:
                taken.add(identifier)
                started = False
            else:
                continue  # a Done in flight contains the task
            answer.ids.append(identifier)
            answer.attempts.append(attempt)
            answer.started.append(started)
        if taken:
            self._queue = deque(entry for entry in self._queue if entry[1] not in taken)
        if answer.ids:
            self.say(answer)
        self._start()


class SimulatedClient:
    """A client: submits tasks in bursts, some with dependencies, cancels some, and checks every outcome."""

    session = ""
    """Name of its durable session. Empty: none."""

    def __init__(self, identifier: bytes, tasks: int, world: ActorWorld, random: Random, chances: Chances) -> None:
        self.id = identifier
        self.alive = True
        self.say: Callable[[Message], None] = lambda _: None
        self.expected: dict[bytes, Spec] = {}
        """Tasks without an outcome."""
        self.once: set[bytes] = set()
        """Tasks that may start at most once."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._left = tasks
        self._referenced: dict[bytes, tuple[bytes, ...]] = {}
        self._world = world
        self._random = random
        self._chances = chances
        self._ids = IdFactory(identifier)
        self._defined: set[bytes] = set()
        self._unresolved: deque[bytes] = deque(maxlen=64)
        self._number = 0
        self._seen = 0
        self._sessions = 0
        """Number of times it has resubmitted everything."""

    @property
    def unfinished(self) -> int:
        return self._left + len(self.expected)

    def restart(self) -> None:
        """Resubmit unfinished tasks, without ended dependencies, whose values a real client embeds."""
        self._number = self._seen = 0
        self._sessions += 1
        groups: dict[Spec, TaskGroup] = {}
        for identifier, spec in self.expected.items():
            group = groups.setdefault(spec, TaskGroup(spec, [], [], []))
            group.ids.append(identifier)
            group.payloads.append(b"\x80 some arguments")
            references = tuple(other for other in self._referenced.get(identifier, ()) if other in self.expected)
            group.references.append(references)
        self._defined = {spec.function for spec in groups}
        definitions = [(function, CODE[function]) for function in sorted(self._defined)]
        self.say(Submit(definitions, list(groups.values()), 0, self._sessions))

    @property
    def finished(self) -> bool:
        return not self._left and not self.expected

    def burst(self, size: int) -> None:
        size = min(size, self._left)
        groups: dict[Spec, TaskGroup] = {}
        definitions: list[tuple[bytes, bytes]] = []
        before = b""
        for _ in range(size):
            is_next = (
                before in self.expected and self._chances.chains > 0 and self._random.random() < self._chances.chains
            )
            spec = self.expected[before] if is_next else self._spec()
            if spec.function not in self._defined:
                self._defined.add(spec.function)
                definitions.append((spec.function, CODE[spec.function]))
            group = groups.setdefault(spec, TaskGroup(spec, [], [], []))
            identifier = self._ids.task()
            group.ids.append(identifier)
            group.payloads.append(b"\x80 some arguments")
            references = (before,) if is_next else self._references()
            before = identifier
            group.references.append(references)
            if references:
                self._referenced[identifier] = references
            self.expected[identifier] = spec
            if spec.retries == 0:
                self.once.add(identifier)
            self._unresolved.append(identifier)
        self._left -= size
        if size:
            self.say(Submit(definitions, list(groups.values()), self._seen))
        self._seen = self._number
        for identifier in list(self.expected)[:size]:
            if self._random.random() < self._chances.cancels:
                self.say(Cancel([identifier]))

    def _spec(self) -> Spec:
        number = self._random.randrange(len(FUNCTIONS))
        return Spec(
            FUNCTIONS[number],
            name=f"function {number}",
            retries=0 if self._random.random() < self._chances.once else 3,
            priority=self._random.choice((0, 0, 0, 1)),
            needs=self._random.choice(NEEDS),
        )

    def _references(self) -> tuple[bytes, ...]:
        """Pick unfinished tasks to depend on, possibly with duplicates."""
        if self._random.random() >= self._chances.dependencies:
            return ()
        alive = [identifier for identifier in self._unresolved if identifier in self.expected]
        return tuple(self._random.choice(alive) for _ in range(self._random.randrange(1, 4))) if alive else ()

    def hear(self, message: Message) -> None:
        if not isinstance(message, Finished):
            return
        if message.number:
            assert message.number == self._number + 1, "Finished messages arrive in order, each once"
            self._number = message.number
        released: list[bytes] = []
        for identifier, outcome, payload in zip(message.ids, message.outcomes, message.payloads, strict=True):
            spec = self.expected.pop(identifier, None)
            self._referenced.pop(identifier, None)
            assert spec is not None, f"task {identifier.hex()} ended twice or never existed"
            self.outcomes[Outcome(outcome)] += 1
            if outcome == Outcome.SUCCESS:
                if is_stored(payload):
                    assert payload[1:9] == self.id, "a stored result is the client's own"
                    assert payload[11:17] == identifier[10:], "a task gets its own stored result"
                    released.append(payload[1:17])
                else:
                    assert payload == value_of(identifier), "a task gets its own value"
        if released:
            self.say(Release(released))

    def heartbeat(self) -> Message:
        self.say(AcknowledgeResults(self._seen))
        self._seen = self._number
        return Heartbeat(self._world.now)

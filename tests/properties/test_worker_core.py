"""For any actions of processors and scheduler at any time, each attempt ends once, and only started ones are charged.

Long random walks from a seed. Faults planted in the core one at a time that this test detected: results in a dead
processor's page are not read (a finished task is charged); a page's results count twice (an attempt ends twice, or a
processor is banned); a task that was read but not started is charged; tasks queued behind a dead task are forgotten;
a released processor's tasks are requeued; an attempt is sent to a processor with another environment; a slot never
changes its environment.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scaler.ids import content_id
from scaler.net.connection import Received, Welcomed
from scaler.protocol.messages import (
    Done,
    HeartbeatEcho,
    Message,
    Outcome,
    Recall,
    Returned,
    Run,
    RunGroup,
    Spec,
    Welcome,
)
from scaler.worker.agent.events import (
    ActOnProcessor,
    AgentInput,
    Command,
    DispatchTasks,
    EnvironmentChanged,
    ProcessorReported,
    ResultsReceived,
    TimeElapsed,
    UseEnvironment,
)
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorVerb as Verb
from scaler.worker.agent.state import ProcessorState
from scaler.worker.frames import Results, unpack
from tests.unit.worker.worker_fakes import CoreRig, FakeProcessor, worker_config

CODE = {content_id(code): code for code in (b"one", b"two", b"three")}
ENVIRONMENTS = [b"", *CODE]
STEPS = 150


class Walk(CoreRig):
    """A core, its fake processors, and the outcome of every attempt."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = worker_config(self.random.randint(1, 3), 50, death=1e9)
        super().__init__(config)
        self.came: set[tuple[bytes, int]] = set()
        self.ended: Counter[tuple[bytes, int]] = Counter()
        """Ends reported to this scheduler."""
        self.outcomes: dict[tuple[bytes, int], int] = {}
        """Ends of attempts reported to any scheduler."""
        self.incarnation = 1
        self.begun: set[tuple[bytes, int]] = set()
        self.finished: set[tuple[bytes, int]] = set()
        self.lost: set[tuple[bytes, int]] = set()
        self.tasks = 0
        self.environments: dict[bytes, bytes] = {}
        """Of tasks, by id."""
        self.preparing: set[bytes] = set()
        self.prepared: set[bytes] = set()
        self.turn(Welcomed(Welcome(False, 1, 1e9, 2.0)))

    def hears(self, message: Message) -> None:
        self.turn(Received(b"schedulr", message))

    def signals(self, number: int, event: Event) -> None:
        self.turn(ProcessorReported(number, event))

    def perform(self, command: Command) -> AgentInput | None:
        """Perform a command. A processor may continue before it is killed or reclaimed."""
        if isinstance(command, ActOnProcessor) and command.verb in (Verb.KILL, Verb.RECLAIM):
            processor = self.hands[command.number]
            if self.random.random() < 0.2 and not (processor.killed or processor.released):
                self.work_on(processor)
        if isinstance(command, UseEnvironment):
            self.use(command.environment, command.definition)
            return None
        if isinstance(command, DispatchTasks):
            environment = self.hands[command.number].environment
            assert not environment or environment in self.prepared, "a task was sent to an environment that has ended"
            for datagram in command.tasks:
                assert self.environments[unpack(datagram)[3]] == environment, "a task is in a wrong environment"
        return super().perform(command)

    def use(self, environment: bytes, definition: bytes | None) -> None:
        if definition is None:
            self.prepared.remove(environment)
            for processor in self.living().values():
                if processor.environment == environment:
                    assert processor.running is None, "a running task's environment was dropped"
                    processor.ended = True
        else:
            assert definition == CODE[environment]
            assert environment not in self.prepared
            self.preparing.add(environment)

    def turn(self, *inputs: AgentInput) -> None:
        self.step(*inputs)
        for message in self.sent:
            if isinstance(message, Done):
                for identifier, attempt, outcome in zip(message.ids, message.attempts, message.outcomes, strict=True):
                    self.ended[identifier, attempt] += 1
                    known = self.outcomes.setdefault((identifier, attempt), outcome)
                    assert known == outcome, "an attempt has two outcomes"
                    if outcome not in (Outcome.SUCCESS, Outcome.REJECTED):
                        self.lost.add((identifier, attempt))
            elif isinstance(message, Returned):
                for identifier, attempt, started in zip(message.ids, message.attempts, message.started, strict=True):
                    if not started:
                        self.ended[identifier, attempt] += 1
                        known = self.outcomes.setdefault((identifier, attempt), Outcome.NOT_STARTED)
                        assert known == Outcome.NOT_STARTED, "an ended task was returned"
                        assert (identifier, attempt) not in self.begun, "a started task was returned as not started"
        for text in self.logged:
            assert "is ended" not in text or "read no task" in text, "a processor was banned"
        self.sent.clear()
        self.logged.clear()
        self.check()

    def check(self) -> None:
        self.finished.update((row[0], row[1]) for each in self.living().values() for row in each.page)
        self.begun.update(each.running for each in self.living().values() if each.running is not None)
        assert all(count == 1 for count in self.ended.values()), "an attempt ended twice"
        assert self.lost <= self.begun, "a task that never began was charged"
        assert not self.lost & self.finished, "a task that had finished was charged"

    def living(self) -> dict[int, FakeProcessor]:
        return {number: each for number, each in self.hands.processors.items() if not each.released}

    def walk(self) -> None:
        steps = [self.run, self.work, self.wait, self.read, self.die, self.recall, self.pass_time]
        rare = [self.forget, self.restart, self.prepare, self.end_environment]
        self.random.choices([*steps, *rare], weights=[20, 50, 10, 5, 8, 10, 10, 1, 1, 10, 1])[0]()

    def prepare(self) -> None:
        """The preparation of an environment ends, mostly well."""
        if self.preparing:
            environment = self.random.choice(sorted(self.preparing))
            self.preparing.remove(environment)
            is_ready = self.random.random() < 0.9
            if is_ready:
                self.prepared.add(environment)
            self.turn(EnvironmentChanged(environment, is_ready, "no such package"))

    def end_environment(self) -> None:
        """A fork server is killed."""
        if self.prepared:
            environment = self.random.choice(sorted(self.prepared))
            inputs: list[AgentInput] = []
            for number, processor in self.living().items():
                if processor.environment == environment:
                    processor.reads_while_taken = None
                    inputs += [processor.reclaim(number), ProcessorReported(number, Event.EXITED, "killed")]
            self.prepared.remove(environment)
            self.turn(*inputs, EnvironmentChanged(environment, False, "killed"))

    def run(self) -> None:
        count = self.random.randint(1, 12)
        ids = [(self.tasks + n).to_bytes(16, "big") for n in range(count)]
        self.tasks += count
        self.came.update((identifier, 1) for identifier in ids)
        retries, grace = self.random.choice([(0, 0.0), (3, 0.0), (3, 0.5)])
        environment = self.random.choice(ENVIRONMENTS) if self.random.random() < 0.5 else b""
        self.environments.update(dict.fromkeys(ids, environment))
        spec = Spec(self.random.choice(list(CODE)), retries=retries, preemptible=grace, environment=environment)
        functions = [(each, CODE[each]) for each in spec.registered]
        self.hears(Run(functions, [RunGroup(spec, ids, [1] * count, [b"x"] * count)]))

    def pick(self) -> tuple[int, FakeProcessor]:
        return self.random.choice(sorted(self.living().items(), key=lambda item: item[0]))

    def begin(self, processor: FakeProcessor) -> None:
        processor.begin(self.now)
        assert processor.running is not None
        assert processor.running not in self.begun, "a task began twice"
        self.begun.add(processor.running)

    def work(self) -> None:
        """Let a processor work for a while, and possibly send its results."""
        number, processor = self.pick()
        if self.random.random() < 0.3:
            processor.reads_while_taken = self.random.randint(0, 3)
            processor.finishes_while_taken = self.random.random() < 0.5
        if processor.killed or self.pool.processors[number].state is ProcessorState.WAITING:
            return
        self.signals(number, Event.READY)
        self.work_on(processor)
        if processor.page and self.random.random() < 0.5:
            results = processor.flush()
            if self.random.random() < 0.5:
                processor.sent.append(results)  # in flight
            else:
                self.hear(number, processor, [results])

    def work_on(self, processor: FakeProcessor) -> None:
        for _ in range(self.random.randint(1, 6)):
            if processor.running is not None:
                self.finished.add(processor.running)
                processor.finish(duration_us=self.random.choice([5, 500, 50_000]))
            elif processor.tasks():
                self.begin(processor)

    def hear(self, number: int, processor: FakeProcessor, results: list[Results]) -> None:
        earlier, processor.sent = processor.sent, []
        self.turn(*[ResultsReceived(number, each) for each in earlier + results])

    def wait(self) -> None:
        """Let a running task start or stop waiting for other tasks."""
        number, processor = self.pick()
        if processor.running is None or processor.killed:
            return
        state = self.pool.processors[number].state
        if state is ProcessorState.SUSPENDED:
            self.signals(number, Event.UNBLOCKED)
        elif state is ProcessorState.ACTIVE:
            self.signals(number, Event.BLOCKED)

    def read(self) -> None:
        """Kill a processor between reading a task and starting it."""
        number, processor = self.pick()
        if processor.running is None and processor.tasks():
            processor.unread.pop(0)
        self.exit(number)

    def die(self) -> None:
        self.exit(self.pick()[0])

    def exit(self, number: int) -> None:
        self.hands[number].reads_while_taken = None
        self.signals(number, Event.READY)
        left = self.hands[number].reclaim(number)
        self.turn(left, ProcessorReported(number, Event.EXITED, "killed by signal 9 (SIGKILL)"))

    def recall(self) -> None:
        chosen = self.random.sample(sorted(self.came), min(len(self.came), self.random.randint(1, 5)))
        kill, preempt = self.random.choice([(False, False), (True, False), (False, True)])
        self.hears(Recall([each[0] for each in chosen], [each[1] for each in chosen], kill, preempt))

    def pass_time(self) -> None:
        self.now += self.random.choice([0.001, 0.02, 0.6, 11.0])
        self.turn(TimeElapsed(self.snapshots()))
        if self.random.random() < 0.5:
            self.hears(HeartbeatEcho(self.now, 0.0))

    def forget(self) -> None:
        """Let the scheduler drop the worker."""
        self.turn(Welcomed(Welcome(False, self.incarnation, 1e9, 2.0)))
        self.hears(Recall([], [], True))
        self.came = set()

    def restart(self) -> None:
        """Replace the scheduler with a new one, which receives the running tasks, and the results again."""
        self.incarnation += 1
        self.ended.clear()
        self.turn(Welcomed(Welcome(False, self.incarnation, 1e9, 2.0)))
        self.recall()  # the answer to the report

    def run_out(self) -> None:
        """Let everything finish, and check that every received attempt has ended."""
        for _ in range(10_000):
            if self.came <= set(self.outcomes):
                return
            self.now += 0.6
            self.turn(TimeElapsed(self.snapshots()))
            self.hears(HeartbeatEcho(self.now, 0.0))
            self.prepare()
            for number, processor in self.living().items():
                self.signals(number, Event.READY)
                if processor.killed or processor.ended:
                    self.turn(processor.reclaim(number), ProcessorReported(number, Event.EXITED, "gone"))
                    continue
                if self.pool.processors[number].state is ProcessorState.SUSPENDED:
                    self.signals(number, Event.UNBLOCKED)
                if self.pool.processors[number].state is ProcessorState.WAITING:
                    continue
                if processor.running is None and processor.tasks():
                    self.begin(processor)
                if processor.running is not None:
                    self.finished.add(processor.running)
                    processor.finish()
                self.hear(number, processor, [processor.flush()] if processor.page else [])
        raise AssertionError("some attempts never end")


@given(st.integers(0, 2**32))
def test_every_attempt_has_one_end_and_only_started_ones_are_charged(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.walk()
    walk.run_out()

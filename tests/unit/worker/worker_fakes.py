"""Scripted processors: the core's commands without processes, sockets, and time."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.config.worker import WorkerConfig
from scaler.protocol.messages import Message, Outcome
from scaler.testing.worker_invariants import check
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.core import IDLE_TICK_SECONDS, AgentCore
from scaler.worker.agent.events import (
    ActOnProcessor,
    AgentInput,
    Command,
    DispatchTasks,
    EndAgent,
    ProcessorReported,
    ShowDegradedReason,
    TasksReclaimed,
    TimeElapsed,
    WriteLog,
)
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorVerb as Verb
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.frames import ResultRow, Results, Snapshot, ToProcessor, pack, unpack


class FakeProcessor:
    def __init__(self, environment: bytes = b"") -> None:
        self.environment = environment
        self.unread: list[bytes] = []
        self.inputs: tuple[bytes, ...] = ()
        """Of its running task."""
        self.running: tuple[bytes, int] | None = None
        self.begun = 0
        self.begun_at = 0.0
        self.finished = 0
        self.batch = 0
        self.page: list[ResultRow] = []
        self.sent: list[Results] = []
        self.reads_while_taken: int | None = None
        self.finishes_while_taken = False
        self.granted = 0
        self.killed = False
        self.terminated = False
        self.ended = False
        self.released = False
        self.announced: list[int] = []

    def begin(self, now: float) -> None:
        """Read and start the next task."""
        _, attempt, _, task, _, self.inputs, *_ = unpack(self.unread.pop(0))
        self.running = (task, attempt)
        self.begun += 1
        self.begun_at = now

    def finish(self, outcome: Outcome = Outcome.SUCCESS, duration_us: int = 1000) -> None:
        """End the running task; its result stays in the page."""
        assert self.running is not None
        task, attempt = self.running
        self.running = None
        self.finished += 1
        self.page.append((task, attempt, outcome, 0, duration_us, 0, 0, round(self.begun_at * 1e9), 0, 0, 0, 0, 1))

    def flush(self) -> Results:
        """Send the page's results."""
        results = self.results()
        self.page = []
        self.batch += 1
        return results

    def results(self) -> Results:
        return Results(self.batch, list(self.page), memoryview(b"." * len(self.page)))

    def tasks(self) -> list[bytes]:
        return [unpack(datagram)[3] for datagram in self.unread]

    def snapshot(self) -> Snapshot:
        return Snapshot(self.begun, self.begun_at, self.finished)

    def reclaim(self, number: int) -> TasksReclaimed:
        taken = self.tasks()
        self.unread = []
        place = self.reads_while_taken
        if place is not None and place < len(taken) and self.running is None and not self.killed:
            # The processor reads one task during the reclaim.
            self.reads_while_taken = None
            self.unread = [pack(ToProcessor.TASK, 1, 0, taken.pop(place), b"", ())]
            self.begin(self.begun_at)
            if self.finishes_while_taken:
                self.finish()
        found = [(results, True) for results in self.sent]
        self.sent = []
        if self.page:
            found.append((self.results(), False))
        return TasksReclaimed(number, taken, found, self.snapshot())


class FakeProcessors:
    """Performs commands."""

    def __init__(self) -> None:
        self.processors: dict[int, FakeProcessor] = {}
        self.degraded_reason = ""

    def __getitem__(self, number: int) -> FakeProcessor:
        return self.processors[number]

    def perform(self, command: Command) -> AgentInput | None:
        if isinstance(command, DispatchTasks):
            processor = self.processors[command.number]
            processor.announced += [unpack(datagram)[0] for datagram in command.announcements]
            processor.unread += command.tasks
            return None
        if isinstance(command, ShowDegradedReason):
            self.degraded_reason = command.text
            return None
        assert isinstance(command, ActOnProcessor)
        number, verb, environment = command
        if verb is Verb.SPAWN:
            assert number not in self.processors
            self.processors[number] = FakeProcessor(environment)
            return None
        processor = self.processors[number]
        if verb is Verb.RECLAIM:
            return processor.reclaim(number)
        processor.killed |= verb is Verb.KILL
        processor.terminated |= verb is Verb.TERMINATE
        processor.ended |= verb is Verb.END
        processor.granted += verb is Verb.GRANT
        return None


def worker_config(slots: int = 1, queue_size: int = 1000, timeout: float = 0.0, death: float = 300.0) -> WorkerConfig:
    return WorkerConfig(
        scheduler_address="tcp://scheduler:1",
        worker_manager_id="manager",
        unit_id="unit",
        slots=slots,
        per_worker_task_queue_size=queue_size,
        task_timeout_seconds=timeout,
        death_timeout_seconds=death,
    )


class CoreRig:
    """A core behind `step`: performs commands like the shell, and processes their answers."""

    executor: type[ExecutorBase] = ProcessorPool

    def __init__(self, config: WorkerConfig) -> None:
        self.hands = FakeProcessors()
        self.now = 100.0
        self.sent: list[Message] = []
        self.logged: list[str] = []
        self.ending: EndAgent | None = None
        self.core = AgentCore(config, self.executor, self.now)

    @property
    def pool(self) -> ProcessorPool:
        assert isinstance(self.core.executor, ProcessorPool)
        return self.core.executor

    def perform(self, command: Command) -> AgentInput | None:
        return self.hands.perform(command)

    def step(self, *inputs: AgentInput) -> None:
        """Step the core until no command has an answer."""
        for item in inputs:
            if isinstance(item, ProcessorReported) and item.event in (Event.EXITED, Event.OUT_OF_MEMORY):
                self.hands.processors[item.number].released = True
        left: Sequence[AgentInput] = inputs
        while self.ending is None:
            answers = []
            for command in self.core.step(left, self.now):
                if isinstance(command, Message):
                    self.sent.append(command)
                elif isinstance(command, WriteLog):
                    self.logged.append(command.text)
                elif isinstance(command, EndAgent):
                    self.ending = command
                elif (answer := self.perform(command)) is not None:
                    answers.append(answer)
            if not answers:
                break
            left = answers
        check(self.core.executor)

    def snapshots(self) -> dict[int, Snapshot]:
        return {number: each.snapshot() for number, each in self.hands.processors.items() if not each.released}

    def tick(self, seconds: float) -> None:
        """Let time pass, with a step at least every IDLE_TICK_SECONDS."""
        end = self.now + seconds
        while end - self.now > IDLE_TICK_SECONDS:
            self.stall(IDLE_TICK_SECONDS)
        self.stall(end - self.now)

    def stall(self, seconds: float) -> None:
        """Let time pass without a step."""
        self.now += seconds
        self.step(TimeElapsed(self.snapshots()))

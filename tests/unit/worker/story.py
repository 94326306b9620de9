"""A core of an agent with fake processors: tests provide events and check the core's messages."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.config.worker import WorkerConfig
from scaler.ids import content_id
from scaler.net.connection import Received, Welcomed
from scaler.protocol import messages as m
from scaler.worker.agent.events import AgentInput, ProcessorReported, ResultsReceived
from scaler.worker.agent.events import ProcessorEvent as Event
from tests.unit.worker.worker_fakes import CoreRig, worker_config

FUNCTION = content_id(b"code")
LEASE = 60.0


def task_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Story(CoreRig):
    """A core, its fake processors, and its sent messages. Time moves only on a test's request."""

    def __init__(
        self,
        slots: int = 1,
        queue_size: int = 1000,
        timeout: float = 0.0,
        death: float = 300.0,
        config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(config or worker_config(slots, queue_size, timeout, death))
        self.births_take_time = False
        self.step()
        self.happened(Welcomed(m.Welcome(False, 1, LEASE, 2.0)))

    def happened(self, *inputs: AgentInput) -> None:
        """Step the core; new processors become ready unless births take time."""
        self.step(*inputs)
        while not self.births_take_time and self.ending is None:
            born = [number for number, each in self.pool.processors.items() if not each.is_ready]
            born = [number for number in born if not self.hands[number].killed]
            if not born:
                break
            self.step(*[ProcessorReported(number, Event.READY) for number in born])

    def hear(self, message: m.Message) -> None:
        self.happened(Received(b"schedulr", message))

    def echo(self, sent_at: float | None = None) -> None:
        """Answer a heartbeat, by default one sent just now."""
        self.hear(m.HeartbeatEcho(self.now if sent_at is None else sent_at, 0.0))

    def signal(self, number: int, event: Event) -> None:
        self.happened(ProcessorReported(number, event))

    def forgotten(self) -> None:
        """The scheduler has dropped this worker."""
        self.happened(Welcomed(m.Welcome(False, 1, LEASE, 2.0)))
        self.recall(kill=True)

    def restarted(self, incarnation: int = 2, elsewhere: Sequence[int] = ()) -> list[m.Message]:
        """Reconnect a scheduler that has lost its state. Returns the agent's messages.

        elsewhere: tasks that the scheduler has given to other workers, according to its answer.
        """
        self.sent.clear()
        self.happened(Welcomed(m.Welcome(False, incarnation, LEASE, 2.0)))
        sent = [*self.sent]
        self.recall(*elsewhere, kill=True)
        return sent

    def run(self, *numbers: int, attempt: int = 1, **spec: object) -> None:
        group = m.RunGroup(
            m.Spec(FUNCTION, **spec),  # type: ignore[arg-type]
            [task_id(number) for number in numbers],
            [attempt] * len(numbers),
            [b"x"] * len(numbers),
        )
        self.hear(m.Run([(FUNCTION, b"code")], [group]))

    def start(self, *numbers: int, **spec: object) -> None:
        """Send tasks; the first processor starts the first one."""
        self.run(*numbers, **spec)  # type: ignore[arg-type]
        self.hands[1].begin(self.now)

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.happened()

    def work(self, number: int = 1, count: int = 1, duration_us: int = 1000) -> None:
        """Let a processor do tasks and send their results."""
        processor = self.hands[number]
        for _ in range(count):
            processor.begin(self.now)
            processor.finish(duration_us=duration_us)
        self.flush(number)

    def work_on(self, number: int = 1) -> None:
        """Let a processor finish its running task."""
        self.hands[number].finish()
        self.flush(number)

    def flush(self, number: int = 1) -> None:
        self.happened(ResultsReceived(number, self.hands[number].flush()))

    def die(self, number: int = 1, how: str = "killed by signal 9 (SIGKILL)") -> None:
        self.happened(self.hands[number].reclaim(number), ProcessorReported(number, Event.EXITED, how))

    def wait_in(self, number: int) -> None:
        """Let a processor start its next task, which waits for nested tasks."""
        self.hands[number].begin(self.now)
        self.signal(number, Event.BLOCKED)

    def recall(self, *numbers: int, kill: bool = False, preempt: bool = False, attempt: int = 1) -> None:
        self.hear(m.Recall([task_id(each) for each in numbers], [attempt] * len(numbers), kill, preempt))

    def done(self) -> dict[int, m.Outcome]:
        return {
            int.from_bytes(identifier, "big"): m.Outcome(outcome)
            for message in self.sent
            if isinstance(message, m.Done)
            for identifier, outcome in zip(message.ids, message.outcomes, strict=True)
        }

    def returned(self, started: bool = False) -> list[int]:
        return [
            int.from_bytes(identifier, "big")
            for message in self.sent
            if isinstance(message, m.Returned)
            for identifier, flag in zip(message.ids, message.started, strict=True)
            if flag is started
        ]

    def fed(self, number: int = 1) -> list[int]:
        return [int.from_bytes(identifier, "big") for identifier in self.hands[number].tasks()]

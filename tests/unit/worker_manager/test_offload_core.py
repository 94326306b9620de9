"""Calls that the offload agent's core dispatches, and its reports to the scheduler."""

from __future__ import annotations

from scaler.ids import content_id
from scaler.net.connection import Received, Resumed, Welcomed
from scaler.offload.call import CallFailed, CallFinished, CallStarted
from scaler.offload.calls import (
    NEW_TASKS_SECONDS,
    CallCompleted,
    CallsAccepted,
    CallsRefused,
    CancelCall,
    DeliverResult,
    ServiceCalls,
    StartCall,
    UseStorage,
)
from scaler.protocol.messages import (
    Done,
    Drain,
    HeartbeatEcho,
    Message,
    Outcome,
    Recall,
    Returned,
    Run,
    RunGroup,
    Spec,
    Welcome,
    WorkerReport,
)
from scaler.worker.agent.events import AgentInput, Command, ShowDegradedReason, StopRequested, TimeElapsed
from tests.unit.worker.worker_fakes import CoreRig, worker_config

FUNCTION = content_id(b"code")


class Stage(CoreRig):
    """A core, its sent messages, and its commands."""

    executor = ServiceCalls

    def __init__(self, slots: int = 2, queue_size: int = 5, death_timeout_seconds: float = 300.0) -> None:
        self.done: list[str] = []
        self.deliveries: dict[str, int] = {}
        self.degraded = ""
        super().__init__(worker_config(slots, queue_size, death=death_timeout_seconds))
        self.turn(Welcomed(Welcome(False, 1, 30.0, 2.0)))
        self.pass_time(0.0)

    @property
    def calls(self) -> ServiceCalls:
        assert isinstance(self.core.executor, ServiceCalls)
        return self.core.executor

    def perform(self, command: Command) -> None:
        match command:
            case StartCall(_, call):
                assert call.function == b"code"
                self.done.append(f"start {name(call.task)}")
            case CancelCall(_, (task, _)):
                self.done.append(f"cancel {name(task)}")
            case DeliverResult(number, (task, _)):
                self.deliveries[name(task)] = number
            case ShowDegradedReason(text):
                self.degraded = text
            case _:
                assert isinstance(command, UseStorage)

    def turn(self, *inputs: AgentInput) -> list[str]:
        """Step; return the performed actions as words."""
        self.done = []
        self.step(*inputs)
        return self.done

    def hear(self, message: Message) -> list[str]:
        return self.turn(Received(b"schedulr", message))

    def run(self, *numbers: int, attempt: int = 1, **spec: object) -> list[str]:
        ids = [task(number) for number in numbers]
        group = RunGroup(Spec(FUNCTION, **spec), ids, [attempt] * len(ids), [b"args"] * len(ids))  # type: ignore[arg-type]
        return self.hear(Run([(FUNCTION, b"code")], [group]))

    def recall(self, *numbers: int, kill: bool) -> list[str]:
        return self.hear(Recall([task(number) for number in numbers], [1] * len(numbers), kill))

    def finish(self, number: int) -> list[str]:
        """The result of a call arrives, and is delivered at once."""
        return self.arrive(number) + self.deliver(number)

    def arrive(self, number: int, attempt: int = 1) -> list[str]:
        return self.turn(CallFinished(task(number), attempt, b"result"))

    def deliver(self, number: int) -> list[str]:
        if str(number) not in self.deliveries:
            return []
        delivery = self.deliveries.pop(str(number))
        return self.turn(CallCompleted(delivery, key(number), Outcome.SUCCESS, b"value", 7))

    def fail(self, number: int, outcome: Outcome, text: str) -> list[str]:
        return self.turn(CallFailed(*key(number), outcome, text))

    def refuse(self, *numbers: int, text: str) -> list[str]:
        return self.turn(CallsRefused([key(number) for number in numbers], text))

    def pass_time(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.turn(TimeElapsed({}), Received(b"schedulr", HeartbeatEcho(self.now, 0.0)))

    def outcomes(self) -> dict[str, Outcome]:
        return {
            name(identifier): Outcome(outcome)
            for message in self.sent
            if isinstance(message, Done)
            for identifier, outcome in zip(message.ids, message.outcomes, strict=True)
        }

    def returned(self, started: bool) -> list[str]:
        return [
            name(identifier)
            for message in self.sent
            if isinstance(message, Returned)
            for identifier, flag in zip(message.ids, message.started, strict=True)
            if flag is started
        ]

    def text(self, number: int) -> str:
        [text] = [
            payload.decode()
            for message in self.sent
            if isinstance(message, Done)
            for identifier, payload in zip(message.ids, message.payloads, strict=True)
            if identifier == task(number)
        ]
        return text


def task(number: int) -> bytes:
    return number.to_bytes(16, "big")


def name(identifier: bytes) -> str:
    return str(int.from_bytes(identifier, "big"))


def key(number: int) -> tuple[bytes, int]:
    return task(number), 1


def test_fills_all_slots_and_dispatches_the_next_call_when_one_ends() -> None:
    stage = Stage(slots=2)
    assert stage.run(1, 2, 3) == ["start 1", "start 2"]
    assert stage.finish(1) == ["start 3"]
    assert stage.outcomes() == {"1": Outcome.SUCCESS}


def test_killing_recall_cancels_running_calls_and_ignores_their_reports() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    assert stage.recall(1, kill=True) == ["cancel 1", "start 2"]
    stage.finish(1)
    stage.fail(1, Outcome.PROCESSOR_DIED, "killed")
    assert stage.outcomes() == {"1": Outcome.CANCELLED}


def test_refused_calls_are_retried_first_with_growing_delays() -> None:
    stage = Stage(slots=2)
    stage.run(1, 2, 3)
    assert stage.refuse(1, 2, text="throttled") == ["start 1", "start 2"]
    assert stage.degraded == "tasks cannot be submitted to the service: throttled; trying again"
    assert stage.refuse(1, text="throttled") == []
    wait = stage.calls.wait_seconds(stage.now)
    assert 0 < wait < 1
    assert stage.pass_time(wait) == ["start 1"]
    stage.turn(CallsAccepted())
    assert stage.degraded == ""
    assert stage.outcomes() == {}


def test_tasks_after_a_refusal_do_not_wait_out_its_long_pause() -> None:
    stage = Stage(slots=9)
    stage.run(1)
    for _ in range(6):
        stage.refuse(1, text="too large")
        stage.pass_time(stage.calls.wait_seconds(stage.now))
        stage.turn()
    stage.refuse(1, text="too large")
    assert stage.calls.wait_seconds(stage.now) > 50
    assert stage.pass_time(NEW_TASKS_SECONDS) == [], "nothing is new"
    assert stage.run(2) == ["start 1", "start 2"]
    stage.refuse(1, 2, text="it is down")
    assert stage.pass_time(NEW_TASKS_SECONDS) == []
    assert stage.run(3) == ["start 1", "start 2", "start 3"]
    stage.refuse(1, 2, 3, text="it is down")
    assert stage.run(4) == [], "the executor gets no more requests"
    assert stage.pass_time(NEW_TASKS_SECONDS) == ["start 1", "start 2", "start 3", "start 4"]


def test_lost_executions_are_reported_and_charged_only_if_they_may_have_run() -> None:
    stage = Stage(slots=3)
    stage.run(1)
    stage.run(2)
    stage.run(3, retries=0)
    stage.fail(1, Outcome.PROCESSOR_DIED, "exit code 1")
    stage.fail(2, Outcome.NOT_STARTED, "host lost")
    stage.fail(3, Outcome.NOT_STARTED, "host lost")
    assert stage.outcomes() == {"1": Outcome.PROCESSOR_DIED, "2": Outcome.NOT_STARTED, "3": Outcome.WORKER_LOST}
    assert stage.text(2) == "host lost"


def test_repeatedly_lost_tasks_back_off_until_one_succeeds() -> None:
    stage = Stage(slots=2)
    for number in range(1, 5):
        stage.run(number)
        stage.fail(number, Outcome.NOT_STARTED, "session aborted")
        stage.pass_time(0.001)
        if number > 1:
            break
    assert stage.run(9) == []
    assert stage.degraded == "tasks are lost repeatedly: session aborted"
    assert stage.pass_time(2.0) == ["start 9"]
    stage.finish(9)
    assert stage.degraded == ""
    stage.run(10)
    stage.fail(10, Outcome.NOT_STARTED, "session aborted")
    assert stage.run(11) == ["start 11"]


def test_time_limit_counts_from_the_start_not_from_dispatch() -> None:
    stage = Stage()
    stage.run(1, timeout_seconds=5.0)
    assert stage.pass_time(20.0) == []
    stage.turn(CallStarted(*key(1)))
    stage.turn(Resumed(b"schedulr"))
    assert stage.core.wake_at <= stage.now + 5.0
    assert stage.pass_time(4.9) == []
    assert stage.pass_time(0.2) == ["cancel 1"]
    assert stage.outcomes() == {"1": Outcome.TIMED_OUT}
    assert stage.text(1) == "the task ran longer than its time limit of 5 s and was stopped"


def test_calls_still_running_after_the_grace_period_are_cancelled_without_charge() -> None:
    stage = Stage()
    stage.run(1)
    stage.run(2, retries=0)
    stage.turn(StopRequested("the worker was told to end"))
    assert stage.pass_time(4.9) == []
    assert stage.pass_time(0.2) == ["cancel 1", "cancel 2"]
    assert stage.outcomes() == {"1": Outcome.NOT_STARTED, "2": Outcome.WORKER_LOST}
    assert stage.ending is not None


def test_agent_unknown_to_the_scheduler_exits_with_running_calls_or_starts_over() -> None:
    idle, busy = Stage(), Stage()
    idle.run(1)
    idle.finish(1)
    busy.run(1)
    forgotten = Welcomed(Welcome(False, 1, 30.0, 2.0))
    assert idle.turn(forgotten) == []
    assert busy.turn(forgotten) == ["cancel 1"]
    idle.hear(Recall([], [], True))
    assert idle.run(2) == ["start 2"]
    # The scheduler takes it for a new worker until it learns that the worker is leaving.
    assert busy.run(1, 2) == []
    assert busy.returned(started=False) == ["1", "2"]
    assert busy.ending is None
    busy.hear(Drain(""))
    assert busy.ending is not None
    assert "so a new unit must replace it" in busy.ending.text
    assert busy.outcomes() == {}


def test_calls_survive_a_scheduler_restart_and_are_reported() -> None:
    stage = Stage()
    stage.run(1, 2)
    stage.arrive(1)
    assert stage.turn(Welcomed(Welcome(False, 2, 30.0, 2.0))) == []
    assert stage.sent[-1] == WorkerReport([task(1), task(2)], [1, 1], [False, False], [False, False])
    stage.deliver(1)
    assert stage.outcomes() == {"1": Outcome.SUCCESS}


def test_task_with_an_environment_is_rejected_at_once_with_the_remedy() -> None:
    stage = Stage()
    assert stage.run(1, environment=FUNCTION) == []
    assert stage.outcomes() == {"1": Outcome.REJECTED}
    assert "select other workers by a capability" in stage.text(1)
    assert stage.run(2) == ["start 2"]

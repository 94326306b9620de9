"""Processors of several environments on one worker."""

from __future__ import annotations

import itertools

import pytest

from scaler.ids import content_id
from scaler.protocol import messages as m
from scaler.protocol.messages import Outcome
from scaler.worker.agent.events import (
    SERVER_EXITED,
    AgentInput,
    Command,
    EnvironmentChanged,
    ProcessorReported,
    UseEnvironment,
)
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.processor_table import FAILED_SECONDS, MAX_ENVIRONMENTS, MAX_FAILED_STARTS
from tests.unit.worker.story import FUNCTION, Story, task_id

ONE, TWO = content_id(b"one"), content_id(b"two")


class Environments(Story):
    def __init__(self, slots: int = 1) -> None:
        self.used: list[tuple[bytes, bytes | None]] = []
        super().__init__(slots)

    def perform(self, command: Command) -> AgentInput | None:
        if isinstance(command, UseEnvironment):
            self.used.append((command.environment, command.definition))
            return None
        return super().perform(command)

    def send(self, environment: bytes, *numbers: int, definition: bytes = b"packages") -> None:
        ids = [task_id(number) for number in numbers]
        group = m.RunGroup(m.Spec(FUNCTION, environment=environment), ids, [1] * len(ids), [b"x"] * len(ids))
        self.hear(m.Run([(FUNCTION, b"code"), (environment, definition)], [group]))

    def ready(self, *environments: bytes) -> None:
        for each in environments:
            self.run_in(each)
            self.happened(EnvironmentChanged(each, True))

    def run_in(self, environment: bytes) -> None:
        self.send(environment, 99)

    def alive(self) -> list[bytes]:
        return [each.environment for each in self.hands.processors.values() if not (each.killed or each.released)]


@pytest.fixture(autouse=True)
def definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept definitions whose id is not the digest of their content."""
    monkeypatch.setattr("scaler.worker.agent.core.m.is_function_id", lambda *_: True)


def test_tasks_return_to_the_scheduler_until_their_environment_is_ready() -> None:
    story = Environments()
    story.send(ONE, 1, 2)
    assert story.used == [(ONE, b"packages")]
    assert story.returned() == [1, 2]
    assert story.core.executor.queued == 0
    story.happened(EnvironmentChanged(ONE, True))
    story.send(ONE, 1)
    [number] = [number for number, each in story.hands.processors.items() if each.environment == ONE]
    assert story.fed(number) == [1]


def test_slot_goes_to_the_environment_of_the_next_task_and_processors_are_reused() -> None:
    story = Environments()
    story.ready(ONE, TWO)
    assert story.alive() == [b""]
    for index in range(6):
        environment = (ONE, TWO, b"")[index % 3]
        story.send(environment, index) if environment else story.run(index)
        [number] = [number for number, each in story.hands.processors.items() if each.unread]
        assert story.hands[number].environment == environment
        story.work(number)
    assert sorted(story.alive()) == sorted([b"", ONE, TWO])


def test_running_task_keeps_its_slot_from_another_environment() -> None:
    story = Environments(slots=2)
    story.ready(ONE)
    story.run(1)
    story.hands[1].begin(story.now)
    story.send(ONE, 2, 3, 4)
    [number] = [number for number, each in story.hands.processors.items() if each.environment == ONE]
    assert story.hands[1].unread == []
    assert story.fed(number) == [2, 3]
    assert len(story.alive()) == 3  # one of them spare


def test_failure_ends_tasks_and_is_remembered_for_a_while() -> None:
    story = Environments()
    story.send(ONE, 1)
    story.happened(EnvironmentChanged(ONE, False, "no such package"))
    story.send(ONE, *range(2, 1000))
    assert set(story.done().values()) == {Outcome.REJECTED}
    assert len(story.used) == 1
    story.tick(FAILED_SECONDS + 1)
    story.send(ONE, 1001)
    assert len(story.used) == 2


def test_environment_whose_processors_cannot_start_fails_its_tasks_and_not_the_worker() -> None:
    story = Environments()
    story.ready(ONE)
    story.births_take_time = True
    story.send(ONE, 1)
    for _ in range(3):
        [number] = [number for number, each in story.hands.processors.items() if each.environment and not each.released]
        story.happened(story.hands[number].reclaim(number), ProcessorReported(number, Event.EXITED, "no preload"))
    assert story.done() == {1: Outcome.REJECTED}
    assert story.used[-1] == (ONE, None)
    assert story.ending is None
    assert not story.pool.broken


def test_tasks_of_a_lost_fork_server_return_and_prepare_their_environment_again() -> None:
    story = Environments()
    story.ready(ONE)
    story.send(ONE, 1, 2)
    [number] = [number for number, each in story.hands.processors.items() if each.environment == ONE]
    story.sent.clear()
    lost = story.hands[number].reclaim(number), ProcessorReported(number, Event.EXITED, "killed")
    story.happened(*lost, EnvironmentChanged(ONE, False, "killed"))
    assert story.returned() == [1, 2]
    story.send(ONE, 1)
    assert len(story.used) == 2


def test_lost_fork_server_whose_processors_start_does_not_fail_its_tasks() -> None:
    story = Environments(slots=3)
    story.ready(ONE)
    story.births_take_time = True
    story.send(ONE, 1, 2, 3)
    numbers = [number for number, each in story.hands.processors.items() if each.environment == ONE]
    assert len(numbers) == MAX_FAILED_STARTS
    story.sent.clear()
    lost = [(story.hands[each].reclaim(each), ProcessorReported(each, Event.EXITED, SERVER_EXITED)) for each in numbers]
    story.happened(*itertools.chain(*lost), EnvironmentChanged(ONE, False, "killed"))
    assert story.returned() == [1, 2, 3]
    assert (ONE, None) not in story.used


def test_worker_keeps_the_last_used_environments_and_those_in_use() -> None:
    story = Environments(slots=1)
    names = [content_id(bytes([number])) for number in range(MAX_ENVIRONMENTS + 2)]
    story.ready(names[0], names[1])
    story.send(names[0], 1)
    story.ready(*names[2:])
    assert [environment for environment, definition in story.used if definition is None] == names[1:3]


def test_recall_reaches_a_task_that_waits_for_a_processor_of_its_environment() -> None:
    story = Environments()
    story.ready(ONE)
    story.births_take_time = True
    story.send(ONE, 1)
    story.sent.clear()
    story.hear(m.Recall([task_id(1)], [1], True))
    assert story.returned() == [1]

"""Replacement of processors after many tasks, or when they keep memory."""

from __future__ import annotations

from dataclasses import replace

from scaler.protocol.messages import Outcome
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorReported
from tests.unit.worker.story import Story
from tests.unit.worker.worker_fakes import worker_config


class Wearing(Story):
    def __init__(self, slots: int = 1, max_tasks: int = 0) -> None:
        super().__init__(config=replace(worker_config(slots), max_tasks_per_processor=max_tasks))

    def alive(self) -> list[int]:
        return [number for number, each in self.hands.processors.items() if not (each.ended or each.killed)]


def test_worn_processor_is_replaced_by_one_forked_in_advance() -> None:
    story = Wearing(max_tasks=3)
    story.run(1, 2, 3, 4, 5)
    story.work(duration_us=10)
    assert story.fed(1) == [2, 3]
    assert story.alive() == [1, 2]
    story.work(count=2, duration_us=10)
    assert story.alive() == [2]
    assert story.fed(2) == [4, 5]
    story.happened(story.hands[1].reclaim(1), ProcessorReported(1, Event.EXITED, "exit code 0"))
    assert story.done() == dict.fromkeys([1, 2, 3], Outcome.SUCCESS)
    assert story.pool.processors_replaced == 1


def test_successor_of_a_processor_with_a_long_last_task_is_kept() -> None:
    story = Wearing(max_tasks=1)
    story.run(1)
    story.hands[1].begin(story.now)
    story.tick(100.0)
    assert story.alive() == [1, 2]
    story.work_on(1)
    assert story.alive() == [2]


def test_grown_processor_finishes_its_tasks_and_gets_no_more() -> None:
    story = Wearing()
    story.run(1, 2, 3)
    story.happened(ProcessorReported(1, Event.WORN, "it keeps 5 bytes"))
    assert story.fed(1) == [1, 2]
    story.work(count=2)
    assert story.fed(2) == [3]
    assert story.alive() == [2]

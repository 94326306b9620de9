"""A preempted task gets SIGTERM, and SIGKILL after its grace period. It may end before that."""

from __future__ import annotations

import pytest

from scaler.protocol.messages import Done, Outcome, Started
from scaler.worker.agent.events import ProcessorEvent as Event
from tests.unit.worker.story import Story

GRACE = 5.0


def preempted(slots: int = 1) -> Story:
    story = Story(slots)
    story.start(1, preemptible=GRACE)
    story.recall(1, preempt=True)
    assert story.hands[1].terminated
    return story


def alive(story: Story) -> list[int]:
    return [number for number, each in story.hands.processors.items() if not (each.ended or each.killed)]


def test_started_task_is_terminated_and_reported_as_not_started() -> None:
    story = preempted()
    assert story.done() == {}
    story.die(1, "killed by signal 15 (SIGTERM)")
    assert story.done() == {1: Outcome.NOT_STARTED}
    assert not any("died" in str(line) for line in story.logged)


def test_next_task_runs_in_a_processor_forked_in_advance() -> None:
    story = preempted()
    story.run(2)
    assert story.fed(2) == []  # the slot is taken
    story.die(1, "killed by signal 15 (SIGTERM)")
    assert story.fed(2) == [2]


def test_task_that_ignores_sigterm_is_killed_after_its_grace_period() -> None:
    story = preempted()
    story.tick(GRACE - 0.1)
    assert not story.hands[1].killed
    story.tick(0.2)
    assert story.hands[1].killed
    story.die(1)
    assert story.done() == {1: Outcome.NOT_STARTED}


def test_agent_wakes_at_the_end_of_the_grace_period() -> None:
    story = preempted()
    story.tick(GRACE - 0.1)
    assert story.core.wake_at <= story.now + 0.1


def test_result_within_the_grace_period_counts() -> None:
    story = preempted()
    story.tick(GRACE / 2)
    story.work_on(1)
    assert story.done() == {1: Outcome.SUCCESS}
    assert story.hands[1].ended
    story.run(2)
    assert story.fed(2) == [2]


@pytest.mark.parametrize("outcome", [Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY])
def test_exception_within_the_grace_period_counts_as_preempted(outcome: Outcome) -> None:
    story = preempted()
    story.hands[1].finish(outcome)
    story.flush(1)
    assert story.done() == {1: Outcome.NOT_STARTED}


def test_exception_of_another_task_is_reported() -> None:
    story = Story(2)
    story.start(1, preemptible=GRACE)
    story.run(2)
    story.hands[2].begin(story.now)
    story.recall(1, preempt=True)
    story.hands[2].finish(Outcome.EXCEPTION)
    story.flush(2)
    assert story.done() == {2: Outcome.EXCEPTION}


def test_queued_task_is_returned() -> None:
    story = Story()
    story.start(1, 2, preemptible=GRACE)
    story.recall(2, preempt=True)
    assert story.returned() == [2]
    assert not story.hands[1].terminated


def test_task_behind_a_preempted_one_runs_elsewhere() -> None:
    story = Story()
    story.start(1, 2, preemptible=GRACE)
    story.recall(1, preempt=True)
    story.die(1, "killed by signal 15 (SIGTERM)")
    assert story.fed(2) == [2]
    assert story.done() == {1: Outcome.NOT_STARTED}


def test_task_that_was_read_but_not_started_is_reported() -> None:
    story = Story()
    story.run(1, preemptible=GRACE)
    story.hands[1].unread.pop(0)
    story.recall(1, preempt=True)
    story.die(1, "killed by signal 15 (SIGTERM)")
    assert story.done() == {1: Outcome.NOT_STARTED}


def test_cancelled_task_does_not_get_the_rest_of_its_grace_period() -> None:
    story = preempted()
    story.recall(1, kill=True)
    assert story.hands[1].killed
    story.die(1)
    assert story.done() == {1: Outcome.CANCELLED}


def test_second_preemption_does_not_extend_the_grace_period() -> None:
    story = preempted()
    story.tick(GRACE - 1)
    story.recall(1, preempt=True)
    story.tick(1.1)
    assert story.hands[1].killed


def test_timeline_has_the_stopped_attempt() -> None:
    story = preempted()
    story.die(1, "killed by signal 15 (SIGTERM)")
    (done,) = (each for each in story.sent if isinstance(each, Done))
    assert (done.began_us, done.lanes) != ([0], [0])


def test_task_that_waits_for_nested_tasks_stops_too() -> None:
    story = Story()
    story.start(1, preemptible=GRACE)
    story.signal(1, Event.BLOCKED)
    story.recall(1, preempt=True)
    story.tick(GRACE + 0.1)
    assert story.hands[1].killed


def test_preempted_task_is_not_announced_as_started_again() -> None:
    story = preempted()
    story.tick(1.0)
    assert sum(isinstance(each, Started) for each in story.sent) <= 1

"""Attempts that run behind others: the agent's core, told as stories."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.protocol import messages as m
from scaler.worker.frames import ToProcessor, unpack
from tests.unit.worker.story import FUNCTION, Story, task_id

SPEC = m.Spec(FUNCTION)


def chain(*numbers: int, spec: m.Spec = SPEC, inputs: tuple[bytes, ...] = (b"",)) -> m.Run:
    """Return the Run of a task and its followers."""
    ids = [task_id(each) for each in numbers]
    return m.Run([(FUNCTION, b"code")], [m.RunGroup(SPEC, ids[:1], [1], [b"x"])], [follow(ids, spec, inputs)])


def follow(ids: Sequence[bytes], spec: m.Spec = SPEC, inputs: tuple[bytes, ...] = (b"",)) -> m.Followers:
    """Return all tasks but the first, each behind the one before."""
    count = len(ids) - 1
    return m.Followers(spec, list(ids[1:]), list(ids[:-1]), [1] * count, [b"x"] * count, [inputs] * count)


def begin_next(story: Story, number: int = 1) -> int:
    """Let a processor begin what comes next; return the number of the task."""
    processor = story.hands[number]
    processor.begin(story.now)
    assert processor.running is not None
    return int.from_bytes(processor.running[0], "big")


def test_chain_is_one_datagram_with_results_for_every_task(story: Story) -> None:
    story.hear(chain(1, 2, 3))
    (datagram,) = story.hands[1].unread
    assert unpack(datagram)[0] == ToProcessor.RUN
    story.work(count=3)
    assert story.done() == dict.fromkeys((1, 2, 3), m.Outcome.SUCCESS)
    assert [message.ids for message in story.sent if isinstance(message, m.Done)] == [[task_id(n) for n in (1, 2, 3)]]


def test_nothing_runs_after_a_failing_task(story: Story) -> None:
    story.hear(chain(1, 2, 3))
    begin_next(story)
    story.hands[1].finish(m.Outcome.EXCEPTION)
    story.flush()
    assert story.done() == {1: m.Outcome.EXCEPTION}
    assert story.returned() == []
    assert not story.hands[1].has_next
    story.run(4)
    story.work()
    assert story.done() == {1: m.Outcome.EXCEPTION, 4: m.Outcome.SUCCESS}


def test_only_the_running_follower_is_charged_for_a_death(story: Story) -> None:
    story.hear(chain(1, 2, 3))
    story.work()
    begin_next(story)
    story.die()
    assert story.done() == {1: m.Outcome.SUCCESS, 2: m.Outcome.PROCESSOR_DIED}
    assert story.fed(2) == []


def test_follower_moves_with_its_input_when_its_processor_dies(story: Story) -> None:
    story.hear(chain(1, 2, 3))
    story.work()
    story.die()
    assert story.done() == {1: m.Outcome.SUCCESS}
    assert begin_next(story, 2) == 2
    assert story.hands[2].inputs == (b".",)
    story.hands[2].finish()
    story.work(2)
    assert story.done() == dict.fromkeys((1, 2, 3), m.Outcome.SUCCESS)


def test_unstarted_chain_is_returned_as_its_first_task(story: Story) -> None:
    story.start(9)
    story.hear(chain(1, 2))
    story.recall(1, kill=False)
    assert story.returned() == [1]
    story.work_on()
    assert not story.hands[1].has_next


def test_follower_of_an_ended_task_is_returned(story: Story) -> None:
    story.run(1)
    story.work()
    story.hear(m.Run([], [], [follow([task_id(1), task_id(2), task_id(3)])]))
    assert story.returned() == [2, 3]


def test_follower_arriving_during_its_predecessor_starts_with_its_value(story: Story) -> None:
    story.start(1)
    story.hear(m.Run([], [], [follow([task_id(1), task_id(2)], inputs=(b"\x80 other", b""))]))
    assert story.fed() == []
    story.work_on()
    assert begin_next(story) == 2
    assert story.hands[1].inputs == (b"\x80 other", b".")


def test_drained_worker_returns_a_follower_its_processor_lacks(story: Story) -> None:
    story.start(1)
    story.hear(m.Run([], [], [follow([task_id(1), task_id(2)])]))
    story.hear(m.Drain("idle"))
    story.work_on()
    assert story.done() == {1: m.Outcome.SUCCESS}
    assert story.returned() == [2]
    assert story.ending is not None


def test_restarted_scheduler_learns_of_followers_that_run_by_themselves(story: Story) -> None:
    story.hear(chain(1, 2))
    begin_next(story)
    sent = story.restarted()
    (report,) = [message for message in sent if isinstance(message, m.WorkerReport)]
    assert report.ids == [task_id(1), task_id(2)]
    story.hands[1].finish()
    story.work()
    assert story.done() == {1: m.Outcome.SUCCESS, 2: m.Outcome.SUCCESS}


def test_reported_follower_is_returned_when_its_predecessor_fails(story: Story) -> None:
    story.hear(chain(1, 2, 3))
    begin_next(story)
    story.restarted()
    story.hands[1].finish(m.Outcome.EXCEPTION)
    story.flush()
    assert story.done() == {1: m.Outcome.EXCEPTION}
    assert story.returned() == [2, 3]

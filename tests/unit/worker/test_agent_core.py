"""The agent's core in scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.needs import NEAR
from scaler.net.connection import Broken, Received, Resumed, Welcomed
from scaler.protocol import messages as m
from scaler.scheduler.core.core import BREAK_GRACE_SECONDS
from scaler.worker.agent.core import BROKEN_SECONDS, DRAIN_ANSWER_SECONDS, IDLE_TICK_SECONDS
from scaler.worker.agent.events import ProcessorEvent as Event
from scaler.worker.agent.events import ProcessorReported, StopRequested
from scaler.worker.agent.pool import UNREAD_SECONDS
from scaler.worker.frames import ToProcessor
from tests.unit.worker.story import FUNCTION, LEASE, Story, task_id
from tests.unit.worker.worker_fakes import CoreRig, worker_config


def test_function_and_spec_are_sent_once_before_the_first_task(story: Story) -> None:
    story.run(1)
    story.run(2)
    assert story.hands[1].announced == [ToProcessor.DEFINITION, ToProcessor.SPEC]
    assert story.fed() == [1, 2]


def test_unmeasured_tasks_are_prefetched_one_ahead(story: Story) -> None:
    story.run(1, 2, 3, 4)
    assert story.fed() == [1, 2]
    assert story.core.executor.queued == 3


def test_task_waits_for_at_most_one_task_of_each_other_client(story: Story) -> None:
    story.run(*range(1, 101))
    single = 2**64 + 1  # the first half of a task's id is its client
    story.run(single)
    assert story.fed() == [1, 2]
    story.work(duration_us=20_000)
    story.work(duration_us=20_000)
    assert story.fed() == [3, single]
    story.work(count=2, duration_us=20_000)
    assert story.fed() == [4, 5]


def test_short_tasks_are_prefetched_about_ten_milliseconds_ahead(story: Story) -> None:
    story.run(1)
    story.work(duration_us=1000)
    story.run(*range(2, 100))
    assert 10 <= len(story.fed()) <= 12


def test_only_the_running_task_is_charged_for_a_death(story: Story) -> None:
    story.start(1, 2, 3)
    story.die()
    assert story.done() == {1: m.Outcome.PROCESSOR_DIED}
    assert story.fed(2) == [2, 3]
    assert story.hands[1].released


def test_unsent_results_of_a_dead_processor_still_count(story: Story) -> None:
    story.start(1, 2)
    story.hands[1].finish()
    story.hands[1].begin(story.now)
    story.die()
    assert story.done() == {1: m.Outcome.SUCCESS, 2: m.Outcome.PROCESSOR_DIED}


def test_task_read_but_not_started_is_not_charged(story: Story) -> None:
    story.run(1)
    story.hands[1].unread.clear()
    story.die()
    assert story.done() == {}
    assert story.fed(2) == [1]


def test_results_behind_a_long_task_are_fetched_and_counted_once(story: Story) -> None:
    story.start(1, 2)
    story.hands[1].finish()
    story.hands[1].begin(story.now)
    story.tick(0.02)
    assert story.done() == {1: m.Outcome.SUCCESS}
    story.work_on()
    assert [message.ids for message in story.sent if isinstance(message, m.Done)] == [[task_id(1)], [task_id(2)]]


def test_recalled_waiting_task_is_returned(story: Story) -> None:
    story.start(1, 2, 3, 4)
    story.recall(2, 4, kill=True)
    assert sorted(story.returned()) == [2, 4]
    assert story.fed() == [3]
    assert not story.hands[1].killed


def test_task_read_during_a_reclaim_counts_as_started(story: Story) -> None:
    story.run(1)
    story.work(duration_us=1000)
    story.run(2, 3, 4)
    story.hands[1].reads_while_taken = 1
    story.recall(2, 3, 4, kill=False)
    assert story.returned(started=True) == [3]
    assert story.returned(started=False) == [2, 4]
    story.work_on()
    assert story.done() == {1: m.Outcome.SUCCESS, 3: m.Outcome.SUCCESS}


def test_cancelling_a_running_task_kills_it(story: Story) -> None:
    story.start(1, 2)
    story.recall(1, kill=True)
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.CANCELLED}
    assert story.fed(2) == [2]


def test_result_that_precedes_the_kill_wins(story: Story) -> None:
    story.start(1)
    story.hands[1].finish()
    story.recall(1, kill=True)
    assert not story.hands[1].killed
    assert story.done() == {1: m.Outcome.SUCCESS}


def test_task_beyond_its_time_limit_is_killed_and_later_tasks_run(story: Story) -> None:
    story.start(1, 2, timeout_seconds=1.0)
    story.tick(0.9)
    assert not story.hands[1].killed
    assert story.core.wake_at <= story.now + 0.11
    story.tick(0.11)
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.TIMED_OUT}
    assert story.fed(2) == [2]


def test_drained_worker_returns_queued_tasks_and_exits_when_idle(story: Story) -> None:
    story.start(1, 2, 3)
    story.hear(m.Drain("scale down"))
    assert sorted(story.returned()) == [2, 3]
    assert story.ending is None
    story.run(4)
    assert sorted(story.returned()) == [2, 3, 4]
    story.work_on()
    assert story.done() == {1: m.Outcome.SUCCESS}
    assert story.ending is not None
    assert story.ending.exit_code == 0


def test_stopped_worker_returns_running_tasks_after_its_grace_period(story: Story) -> None:
    story.run(1)
    story.start(2, retries=0)
    story.happened(StopRequested("SIGTERM"))
    assert story.returned() == [2]
    story.tick(5.1)
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.NOT_STARTED}
    assert story.ending is not None


def test_stopping_worker_returns_tasks_until_the_scheduler_knows(story: Story) -> None:
    story.happened(StopRequested("SIGTERM"))
    assert story.sent == [m.Drain("SIGTERM")]
    assert story.ending is None
    story.run(1, retries=0)
    assert story.returned() == [1]
    assert story.ending is None
    story.hear(m.Drain("SIGTERM"))
    assert story.ending is not None


def test_stopping_worker_does_not_wait_long_for_a_silent_scheduler(story: Story) -> None:
    story.happened(StopRequested("SIGTERM"))
    story.tick(DRAIN_ANSWER_SECONDS - 0.1)
    assert story.ending is None
    story.tick(0.1)
    assert story.ending is not None


def test_blocked_task_lends_its_slot_and_resumes_before_new_tasks(story: Story) -> None:
    story.run(1)
    story.wait_in(1)
    story.run(2, 3, 4)
    assert story.fed(2) == [2, 3]
    assert [message.suspended for message in story.sent if isinstance(message, m.Suspended)] == [[True]]
    story.hands[2].begin(story.now)
    story.signal(1, Event.UNBLOCKED)
    assert story.hands[1].granted == 0
    assert story.fed(2) == []
    story.work_on(2)
    assert story.hands[1].granted == 1
    assert [message.suspended for message in story.sent if isinstance(message, m.Suspended)] == [[True], [False]]
    story.work_on()
    assert story.fed(1) == [3, 4]


def test_long_running_task_is_reported_as_started_once(story: Story) -> None:
    story.start(1, 2)
    story.tick(0.02)
    assert not [message for message in story.sent if isinstance(message, m.Started)]
    assert story.core.wake_at <= story.now + 0.035, "the core wakes up in time"
    story.tick(0.04)
    story.tick(1.0)
    assert len([message for message in story.sent if isinstance(message, m.Started)]) == 1


def test_new_processor_starts_with_the_first_queued_task_once_ready(story: Story) -> None:
    story.births_take_time = True
    story.run(1, 2)
    story.wait_in(1)
    assert story.fed(2) == [], "the second processor is not ready"
    story.run(3, parent=task_id(1))
    story.run(4, 5, parent=task_id(3))
    story.run(6, parent=task_id(99))
    story.signal(2, Event.READY)
    assert story.fed(2) == [4, 5]
    story.wait_in(2)
    story.signal(3, Event.READY)
    assert story.fed(3) == [5, 3], "reclaimed tasks keep their place"
    story.work(3, 2)
    assert story.fed(3) == [6, 2]


def test_tasks_behind_a_long_one_move_to_an_idle_processor() -> None:
    story = Story(slots=2)
    story.start(1, 2, 3)
    story.hands[2].begin(story.now)
    story.hands[2].finish()
    behind = story.fed(1)
    assert behind == [3]
    story.flush(2)
    story.tick(0.005)
    assert story.fed(1) == [3]
    story.tick(0.011)
    assert story.fed(1) == []
    assert story.fed(2) == [3]


def test_worker_without_contact_starts_nothing_and_kills_run_once_tasks(story: Story) -> None:
    story.run(1, retries=0)
    story.start(2)
    for _ in range(81):
        story.tick(0.5)
    assert story.fed() == []
    assert not story.hands[1].killed
    for _ in range(20):
        story.tick(0.5)
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.WORKER_LOST}
    story.happened(Resumed(b"schedulr"))
    assert story.fed(2) == [2]


def test_worker_without_contact_continues_a_repeatable_task() -> None:
    story = Story(slots=2)
    story.run(1, retries=0)
    story.run(2)
    for number in (1, 2):
        story.hands[number].begin(story.now)
    for _ in range(101):
        story.tick(0.5)
    assert [story.hands[number].killed for number in (1, 2)] == [True, False]


def test_failing_agent_returns_unstarted_tasks_and_names_started_ones() -> None:
    story = Story(slots=2)
    story.run(1, 2, 3, 4)
    story.hands[1].begin(story.now)
    story.tick(0.0)
    assert story.fed(2) == [2, 4]
    story.sent = [command for command in story.core.close([], story.now) if isinstance(command, m.Message)]
    assert (sorted(story.returned()), story.returned(started=True)) == ([2, 3, 4], [1])


def test_disconnected_worker_starts_nothing_once_it_may_be_given_up(story: Story) -> None:
    story.happened(Broken(b"schedulr"))
    story.tick(1.0)
    story.happened(Resumed(b"schedulr"))
    story.tick(2.0)
    story.run(1, 2)
    assert story.fed() == [1, 2], "the connection is whole again"
    story.hands[1].begin(story.now)
    story.happened(Broken(b"schedulr"))
    for _ in range(4):
        assert story.fed() == [2]
        story.tick(0.5)
    assert BROKEN_SECONDS + IDLE_TICK_SECONDS < BREAK_GRACE_SECONDS
    story.work_on()
    assert story.fed() == []
    story.happened(Resumed(b"schedulr"))
    assert story.fed() == [2]


def test_worker_without_contact_exits_at_its_death_timeout() -> None:
    story = Story(death=30.0)
    for _ in range(61):
        story.tick(0.5)
    assert story.ending is not None
    assert story.ending.exit_code == 1
    assert "death_timeout_seconds" in story.ending.text


def test_stalled_agent_reads_messages_before_judging_silence() -> None:
    story = Story(death=30.0)
    story.start(1, retries=0)
    story.stall(1000.0)
    assert story.ending is None
    assert not story.hands[1].killed


def test_messages_received_during_a_stall_do_not_extend_the_lease(story: Story) -> None:
    story.start(1)
    story.stall(LEASE + 5.0)
    story.run(2)
    story.echo(sent_at=story.now - LEASE)
    story.happened(Resumed(b"schedulr"))
    story.work_on()
    assert story.fed() == [], "the scheduler may have dropped this worker"
    story.tick(0.5)
    story.echo()
    assert story.fed() == [2]


def test_agent_that_gets_no_answer_after_a_stall_acts_on_the_silence() -> None:
    story = Story(death=30.0)
    story.start(1, retries=0)
    story.stall(1000.0)
    story.run(2)
    for _ in range(5):
        assert story.ending is None
        story.tick(0.5)
    assert story.ending is not None


def test_stalled_agent_does_not_kill_processors_whose_results_it_has_not_read(story: Story) -> None:
    story.start(1)
    story.hands[1].finish()
    story.stall(UNREAD_SECONDS + 1.0)
    assert not story.hands[1].killed
    story.flush()
    story.echo()
    story.run(2)
    story.tick(0.1)
    assert not story.hands[1].killed, "it has had no time to read the task"
    assert story.fed() == [2]


def test_worker_unknown_to_the_scheduler_starts_over(story: Story) -> None:
    story.start(1, 2)
    story.forgotten()
    assert story.sent[-1] == m.WorkerReport([], [], [], [])
    assert story.hands[1].killed
    story.die()
    assert story.done() == {}
    assert story.returned() == []
    story.run(1)
    assert story.fed(2) == [1]


def test_restarted_scheduler_gets_running_and_ended_tasks_and_ends_none(story: Story) -> None:
    story.run(1, 2, 3)
    story.run(4, retries=0)
    story.work()
    story.hands[1].begin(story.now)
    report, done = story.restarted()
    assert isinstance(report, m.WorkerReport)
    assert report.ids == [task_id(each) for each in (2, 3, 4, 1)]
    assert report.attempts == [1, 1, 1, 1]
    assert report.once == [False, False, True, False]
    assert isinstance(done, m.Done)
    assert done.ids == [task_id(1)]
    assert not story.hands[1].killed
    story.work_on()
    assert story.done() == {1: m.Outcome.SUCCESS, 2: m.Outcome.SUCCESS}


@pytest.mark.parametrize("seconds", [0.1, 3.0, 50.0])
def test_worker_joining_a_restarted_scheduler_starts_no_foreign_tasks(seconds: float) -> None:
    story = Story()
    story.start(1, 2, 3)
    story.happened(Broken(b""))
    for _ in range(10):
        story.tick(seconds / 10)
    (report,) = story.restarted(elsewhere=[2])
    assert isinstance(report, m.WorkerReport)
    assert report.ids == [task_id(1), task_id(2), task_id(3)]
    story.work_on()
    assert story.fed() == [3]
    story.run(2, attempt=2)
    story.work()
    assert story.done() == {1: m.Outcome.SUCCESS, 3: m.Outcome.SUCCESS}
    assert story.fed() == [2]


def test_result_is_retained_until_the_scheduler_releases_it(story: Story) -> None:
    story.run(1, 2)
    story.work()
    story.work()
    story.hear(m.ReleaseResults([1]))
    report, done = story.restarted()
    assert isinstance(report, m.WorkerReport)
    assert isinstance(done, m.Done)
    assert report.ids == done.ids == [task_id(2)]
    story.hear(m.ReleaseResults([1]))
    assert story.restarted(3) == [m.WorkerReport([], [], [], [])]


def test_removed_function_is_dropped_everywhere_and_may_be_registered_again(story: Story) -> None:
    story.run(1)
    story.work()
    story.hear(m.ForgetFunctions([FUNCTION]))
    story.run(2)
    said = [ToProcessor.DEFINITION, ToProcessor.SPEC]
    assert story.hands[1].announced == [*said, ToProcessor.FORGET, *said]


def test_function_with_a_foreign_content_id_reaches_no_processor(story: Story) -> None:
    story.run(1)
    story.work()
    group = m.RunGroup(m.Spec(b"u" * 16), [task_id(2)], [1], [b"x"])
    story.hear(m.Run([(b"u" * 16, b"evil")], [group]))
    assert story.done()[2] == m.Outcome.OBJECT_LOST
    assert story.hands[1].announced == [ToProcessor.DEFINITION, ToProcessor.SPEC]


def test_processor_reporting_a_foreign_task_is_terminated(story: Story) -> None:
    story.start(1, 2)
    story.hands[1].running = (task_id(77), 1)
    story.work_on()
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.PROCESSOR_DIED}
    assert story.fed(2) == [2]


def test_hanging_preload_is_shown_and_killed_at_its_limit() -> None:
    rig = CoreRig(replace(worker_config(), preload="models:load", preload_timeout_seconds=60.0))
    rig.step()
    rig.tick(29)
    assert rig.hands.degraded_reason == rig.pool.degraded_reason == ""
    assert rig.pool.obstacle() == "the preload models:load has not returned yet"
    rig.tick(2)
    text = "the preload models:load has run for more than 30 s"
    assert rig.hands.degraded_reason == rig.pool.degraded_reason == rig.pool.obstacle() == text
    rig.step(ProcessorReported(1, Event.READY))
    assert rig.hands.degraded_reason == rig.pool.obstacle() == "", "the processor is ready again"
    rig.step(ProcessorReported(1, Event.EXITED, "killed"))
    for number in (2, 3, 4):
        assert rig.ending is None
        rig.tick(59)
        assert not rig.hands.processors[number].killed
        rig.tick(1)
        assert rig.hands.processors[number].killed
        rig.step(ProcessorReported(number, Event.EXITED, "killed"))
    assert rig.ending is not None
    assert rig.ending.text == (
        "3 processors in a row could not start: the preload models:load took longer than preload_timeout_seconds = 60"
    )


def test_worker_whose_processors_cannot_start_returns_its_tasks_and_exits() -> None:
    rig = CoreRig(worker_config())
    rig.step(Welcomed(m.Welcome(False, 1, LEASE, 2.0)))
    tasks = [task_id(1), task_id(2)]
    group = m.RunGroup(m.Spec(FUNCTION, retries=0), tasks, [1, 1], [b"x", b"x"])
    rig.step(Received(b"schedulr", m.Run([(FUNCTION, b"code")], [group])))
    for number in (1, 2, 3):
        text = "preload setup:connect failed: no such module"
        rig.step(ProcessorReported(number, Event.EXITED, text))
    assert [message for message in rig.sent if isinstance(message, m.Drain | m.Returned)] == [
        m.Drain(f"3 processors in a row could not start: {text}"),
        m.Returned(tasks, [1, 1], [False, False]),
    ]
    assert rig.ending is None, "tasks sent before the scheduler reads the Drain are returned"
    late = m.RunGroup(m.Spec(FUNCTION), [task_id(3)], [1], [b"x"])
    rig.step(Received(b"schedulr", m.Run([], [late])), Received(b"schedulr", m.Drain("drained")))
    assert rig.sent[-1] == m.Returned([task_id(3)], [1], [False])
    assert rig.ending is not None
    assert rig.ending.exit_code == 1
    assert "no such module" in rig.ending.text
    assert len(rig.hands.processors) == 3, "no more processors are started"


def test_processor_that_reads_no_task_is_replaced_and_its_tasks_move(story: Story) -> None:
    story.run(1)
    story.work()
    story.tick(100.0)
    story.run(2, 3)
    story.tick(3.0)
    assert not story.hands[1].killed
    story.tick(2.5)
    assert story.hands[1].killed
    story.die()
    assert story.done() == {1: m.Outcome.SUCCESS}
    assert sorted(story.fed(2)) == [2, 3]


def test_tick_skips_suspended_processors_until_something_is_due() -> None:
    story = Story(timeout=10.0)
    story.run(1)
    story.wait_in(1)
    story.tick(1.0)
    assert story.pool.resting(story.now + 8.0) == {1}
    assert story.pool.resting(story.now + 9.1) == set()
    story.signal(1, Event.UNBLOCKED)
    assert story.pool.resting(story.now) == set()


NEAR_A, NEAR_B = ((f"{NEAR}a", 0.0),), ((f"{NEAR}b", 0.0),)


def test_task_goes_to_the_idle_processor_that_ran_its_name() -> None:
    story = Story(slots=2)
    story.run(1, needs=NEAR_A)
    story.run(2, needs=NEAR_B)
    assert (story.fed(1), story.fed(2)) == ([1], [2])
    story.work(1)
    story.work(2)
    for task in range(3, 9):
        story.run(task, needs=NEAR_B)
        assert story.fed(2) == [task]
        story.work(2)
    story.run(9, name="another function", needs=NEAR_A)
    assert story.fed(1) == [9]


def test_task_does_not_wait_for_a_busy_processor_that_ran_its_name() -> None:
    story = Story(slots=2)
    story.run(1, needs=NEAR_A)
    story.work(1)
    story.start(2, needs=NEAR_A)
    story.run(3, needs=NEAR_A)
    assert story.fed(2) == [3]


def test_task_waits_for_the_processor_that_ran_its_name_only_while_it_saves_time() -> None:
    story = Story(slots=2)
    for task, duration_us in ((1, 500_000), (2, 20_000)):
        story.run(task, needs=NEAR_A)
        story.work(1, duration_us=duration_us)
    story.start(3, needs=NEAR_A)
    story.run(4, 5, needs=NEAR_A)
    assert (story.fed(1), story.fed(2)) == ([4, 5], [])
    story.tick(0.4)
    assert (story.fed(1), story.fed(2)) == ([4, 5], [])
    story.tick(0.1)
    assert 4 in story.fed(2)


def test_processor_remembers_the_names_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler.worker.agent.pool.MAX_NAMES", 2)
    story = Story()
    for task, name in enumerate("abac", 1):
        story.run(task, needs=((NEAR + name, 0.0),))
        story.work()
    assert [*story.pool.processors[1].names] == [NEAR + "a", NEAR + "c"]

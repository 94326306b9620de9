"""What is remembered of submissions: a call is open in one place until it ends, and nothing is kept for longer."""

from __future__ import annotations

import random

from scaler.worker_manager.aws_hpc.tracking import Submission, Tracking


def keys(*numbers: int) -> list[tuple[bytes, int]]:
    return [(number.to_bytes(16, "big"), 1) for number in numbers]


def submitted(tracking: Tracking, number: int, *calls: int, job_id: str = "") -> Submission:
    made = tracking.add(number, f"job-{number}", keys(*calls), f"calls/{number}", 0.0)
    if job_id:
        assert tracking.accepted(made, job_id) == []
    return made


def test_a_result_is_awaited_once() -> None:
    tracking = Tracking(0.0)
    submitted(tracking, 1, 10, 11, job_id="a")
    assert tracking.waits_for(1, 0)
    assert tracking.take(1, 0, 1.0) == keys(10)[0]
    assert tracking.take(1, 0, 1.0) is None
    assert not tracking.waits_for(1, 0)
    assert not tracking.waits_for(7, 0)
    tracking.check()


def test_calls_are_thrown_away_when_all_have_ended_and_not_before() -> None:
    tracking = Tracking(0.0)
    submitted(tracking, 1, 10, 11, job_id="a")
    tracking.take(1, 0, 1.0)
    assert tracking.take_garbage(1) == []
    tracking.lose(1, 1, 1.0)
    assert tracking.take_garbage(1) == ["calls/1"]
    assert tracking.is_idle()


def test_little_garbage_is_left_while_there_is_work() -> None:
    tracking = Tracking(0.0)
    submitted(tracking, 1, 10, job_id="a")
    tracking.throw_away(["x", "y"])
    assert tracking.take_garbage(3) == []
    assert tracking.take_garbage(2) == ["x", "y"]
    assert tracking.take_garbage(0) == []


def test_children_are_terminated_one_by_one_and_the_array_when_nothing_else_is_left_of_it() -> None:
    tracking = Tracking(0.0)
    submitted(tracking, 1, 10, 11, 12, job_id="a")
    submitted(tracking, 2, 20, job_id="b")
    assert tracking.cancel(keys(11)) == ["a:1"]
    assert tracking.cancel(keys(11)) == []
    assert tracking.cancel(keys(10, 12, 20)) == ["a", "b"]
    assert tracking.is_idle()
    tracking.check()


def test_what_has_ended_is_not_terminated() -> None:
    tracking = Tracking(0.0)
    made = submitted(tracking, 1, 10, 11, job_id="a")
    tracking.ended(made, [0])
    assert tracking.cancel(keys(10)) == []


def test_what_was_cancelled_before_batch_had_answered_is_terminated_then() -> None:
    tracking = Tracking(0.0)
    one, two = submitted(tracking, 1, 10, 11), submitted(tracking, 2, 20)
    assert tracking.cancel(keys(10, 20)) == []
    assert tracking.unanswered() == [one, two]
    assert tracking.accepted(one, "a") == ["a:0"]
    assert tracking.accepted(two, "b") == ["b"]
    assert tracking.known() == [one]
    tracking.check()


def test_calls_of_a_job_that_is_not_there_may_be_submitted_again() -> None:
    tracking = Tracking(0.0)
    made = submitted(tracking, 1, 10, 11)
    tracking.doubtful(made, 1.0)
    assert tracking.doubts() == [made]
    assert tracking.refused(made) == keys(10, 11)
    submitted(tracking, 2, 11, 10, job_id="b")
    assert tracking.take(2, 1, 1.0) == keys(10)[0]
    tracking.check()


def test_children_are_listed_only_when_the_counts_say_something_new() -> None:
    tracking = Tracking(0.0)
    made = submitted(tracking, 1, 10, 11, 12, job_id="a")
    assert tracking.statuses_to_list(made, {"RUNNABLE": 3}) == []
    assert tracking.statuses_to_list(made, {"RUNNING": 2, "RUNNABLE": 1}) == ["RUNNING"]
    assert tracking.running(made, [0, 2], 1.0) == keys(10, 12)
    assert tracking.running(made, [0, 2], 1.0) == []
    assert tracking.statuses_to_list(made, {"RUNNING": 2, "RUNNABLE": 1}) == []
    tracking.take(1, 0, 2.0)
    assert tracking.statuses_to_list(made, {"RUNNING": 2, "SUCCEEDED": 1}) == ["RUNNING"], "another one runs"
    assert tracking.statuses_to_list(made, {"FAILED": 1}) == ["FAILED"]


def test_successes_without_a_result_are_noticed() -> None:
    tracking = Tracking(0.0)
    made = submitted(tracking, 1, 10, 11, job_id="a")
    assert not tracking.has_lost_successes(made, {"RUNNING": 2})
    assert tracking.has_lost_successes(made, {"SUCCEEDED": 1})
    tracking.take(1, 0, 1.0)
    assert not tracking.has_lost_successes(made, {"SUCCEEDED": 1})
    tracking.ended(made, [1])
    assert not tracking.has_lost_successes(made, {"SUCCEEDED": 2}), "it is looked at already"


def test_jobs_are_stuck_when_they_wait_for_long_and_none_runs() -> None:
    tracking = Tracking(0.0)
    submitted(tracking, 1, 10, job_id="a")
    waiting = [{"RUNNABLE": 1}]
    assert not tracking.is_stuck(waiting, 119.0, 120.0)
    assert tracking.is_stuck(waiting, 121.0, 120.0)
    assert not tracking.is_stuck([*waiting, {"RUNNING": 1}], 121.0, 120.0)
    assert not tracking.is_stuck([{"PENDING": 1}], 121.0, 120.0)
    tracking.lose(1, 0, 100.0)
    assert not tracking.is_stuck(waiting, 121.0, 120.0)


def test_whatever_happens_every_call_ends_once() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        tracking = Tracking(0.0)
        numbers = iter(range(10_000))
        ended: list[tuple[bytes, int]] = []
        all_keys: list[tuple[bytes, int]] = []
        for number in range(1, 40):
            calls = [next(numbers) for _ in range(chance.randint(1, 4))]
            all_keys += keys(*calls)
            made = submitted(tracking, number, *calls)
            if chance.random() < 0.8:
                tracking.accepted(made, f"j{number}")
            else:
                tracking.doubtful(made, 0.0)
            index, other = chance.randrange(4), chance.randint(1, number)
            match chance.randrange(5):
                case 0:
                    ended += filter(None, [tracking.take(other, index, 1.0)])
                case 1:
                    ended += filter(None, [tracking.lose(other, index, 1.0)])
                case 2:
                    gone = [key for key in keys(*calls[:2]) if key not in ended]
                    tracking.cancel(gone)
                    ended += gone
                case 3:
                    for doubted in tracking.doubts():
                        if chance.random() < 0.5:
                            ended += tracking.refused(doubted)
                        else:
                            tracking.accepted(doubted, "late")
                case _:
                    tracking.running(made, [index], 1.0)
            tracking.check()
        for doubted in tracking.doubts():
            ended += tracking.refused(doubted)
        for known in tracking.known():
            ended += [
                key for index in sorted(known.open) if (key := tracking.take(known.number, index, 1.0)) is not None
            ]
        assert sorted(ended) == sorted(all_keys)
        assert tracking.is_idle()

"""Tracking of submissions: a call is open in one place until it ends, and nothing is kept longer."""

from __future__ import annotations

import random

from scaler.worker_manager.aws_hpc.tracking import CallSubmission, Tracking


def keys(*numbers: int) -> list[tuple[bytes, int]]:
    return [(number.to_bytes(16, "big"), 1) for number in numbers]


def tracking_of() -> Tracking:
    """Return a tracking that has found no jobs of earlier sessions."""
    made = Tracking(-1000.0)
    made.listed({}, own, 0.0)
    return made


def own(job_name: str) -> bool:
    return job_name.startswith("job-")


def check(tracking: Tracking) -> None:
    """Check that each open call has one place, and that no submission without open calls is kept."""
    positions, submissions = tracking._positions, tracking._submissions  # noqa: SLF001
    for key, (submission, index) in positions.items():
        assert submission.keys[index] == key
        assert index in submission.open
        assert submissions[submission.number] is submission
    assert len(positions) == sum(len(each.open) for each in submissions.values())
    assert all(each.open or not each.job_id for each in submissions.values())


def terminated(tracking: Tracking) -> list[str]:
    """Terminate all jobs that are due, and return them."""
    found = list(tracking.terminations)
    assert all(tracking.terminated(job_id, is_done=True) for job_id in found)
    return found


def submitted(tracking: Tracking, number: int, *calls: int, job_id: str = "") -> CallSubmission:
    made = CallSubmission(number, f"job-{number}", keys(*calls), f"calls/{number}")
    tracking.add(made, 0.0)
    if job_id:
        tracking.accepted(made, job_id)
        assert not tracking.terminations
    return made


def test_calls_become_obsolete_once_all_have_ended() -> None:
    tracking = tracking_of()
    submitted(tracking, 1, 10, 11, job_id="a")
    tracking.over(1, 0, 1.0, has_result=True)
    assert tracking.take_obsolete(1) == []
    tracking.over(1, 1, 1.0, has_result=False)
    assert tracking.take_obsolete(1) == ["calls/1"]
    assert tracking.is_idle()


def test_terminates_single_children_and_the_array_when_none_is_left() -> None:
    tracking = tracking_of()
    submitted(tracking, 1, 10, 11, 12, job_id="a")
    submitted(tracking, 2, 20, job_id="b")
    for cancelled, jobs in ((keys(11), ["a:1"]), (keys(11), []), (keys(10, 12, 20), ["a", "b"])):
        tracking.cancel(cancelled)
        assert terminated(tracking) == jobs
    assert tracking.is_idle()
    check(tracking)


def test_submission_cancelled_before_batch_answered_is_terminated_afterwards() -> None:
    tracking = tracking_of()
    one, two = submitted(tracking, 1, 10, 11), submitted(tracking, 2, 20)
    tracking.cancel(keys(10, 20))
    assert terminated(tracking) == []
    assert tracking.without_id() == [one, two]
    tracking.accepted(one, "a")
    tracking.accepted(two, "b")
    assert terminated(tracking) == ["a:0", "b"]
    assert tracking.known() == [one]
    check(tracking)


def test_calls_of_a_missing_job_may_be_resubmitted() -> None:
    tracking = tracking_of()
    made = submitted(tracking, 1, 10, 11)
    tracking.unanswered(made, 1.0)
    assert tracking.without_id() == [made]
    assert tracking.not_listed(made, 20.0) == [], "the job may be listed late"
    assert tracking.not_listed(made, 22.0) == keys(10, 11)
    assert tracking.is_search_due(22.0), "the job may still appear"
    assert tracking.listed({"a": "job-1", "b": "job-2"}, own, 22.0) == 1
    assert terminated(tracking) == ["a"]
    assert not tracking.is_search_due(1e9)
    submitted(tracking, 2, 11, 10, job_id="b")
    assert tracking.over(2, 1, 1.0, has_result=True) == keys(10)[0]
    check(tracking)


def test_jobs_of_earlier_sessions_are_searched_until_surely_listed() -> None:
    tracking = Tracking(0.0)
    assert tracking.is_search_due(0.0)
    assert tracking.listed({"a": "old-1", "mine": "job-1"}, own, 0.0) == 1
    assert not tracking.is_search_due(1.0)
    assert not tracking.is_idle()
    assert tracking.is_search_due(6.0)
    assert tracking.listed({"a": "old-1", "b": "old-2"}, own, 6.0) == 1, "one job is listed late"
    assert terminated(tracking) == ["a", "b"]
    assert tracking.listed({}, own, 61.0) == 0
    assert not tracking.is_search_due(1e9)
    assert tracking.is_idle()


def test_every_call_ends_exactly_once() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        tracking = tracking_of()
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
                tracking.unanswered(made, 0.0)
            index, other = chance.randrange(4), chance.randint(1, number)
            match chance.randrange(5):
                case 0:
                    ended += filter(None, [tracking.over(other, index, 1.0, has_result=True)])
                case 1:
                    ended += filter(None, [tracking.over(other, index, 1.0, has_result=False)])
                case 2:
                    gone = [key for key in keys(*calls[:2]) if key not in ended]
                    tracking.cancel(gone)
                    ended += gone
                case 3:
                    for unanswered in tracking.without_id():
                        if chance.random() < 0.5:
                            ended += tracking.refused(unanswered)
                        else:
                            tracking.accepted(unanswered, "late")
                case _:
                    tracking.running(made, [index], 1.0)
            check(tracking)
        for unanswered in tracking.without_id():
            ended += tracking.refused(unanswered)
        for known in tracking.known():
            ended += [
                key
                for index in sorted(known.open)
                if (key := tracking.over(known.number, index, 1.0, has_result=True)) is not None
            ]
        assert sorted(ended) == sorted(all_keys)
        terminated(tracking)
        assert tracking.is_idle()

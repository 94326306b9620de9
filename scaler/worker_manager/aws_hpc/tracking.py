"""What was submitted and has not ended, as far as the agent cares. Pure: time is an argument.

A *submission* is one SubmitJob: a plain job of one call, or an array whose child number i runs call number i. A call is
*open* until its result was taken, it has failed, or it was cancelled. Laws, checked by `check`: a call is open in one
submission at most; a submission without open calls is forgotten, and its calls may be removed from S3 from then on,
and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.worker.executor import CallKey
from scaler.worker_manager.aws_hpc.service import child_id

DOUBT_SECONDS = 20.0
"""A submission that was not answered and is not listed after this time does not exist."""
MISSING_SECONDS = 120.0
"""A job that Batch does not know for so long has gone."""
STUCK_SECONDS = 120.0
"""Jobs that wait for so long, while none of ours runs, are told of."""


@dataclass(slots=True)
class Submission:
    """One SubmitJob."""

    number: int
    name: str
    keys: Sequence[CallKey]
    call_key: str
    """Of the object with the calls; empty when they are in the request."""
    submitted_at: float
    job_id: str = ""
    """Empty until Batch has said it."""
    doubt_since: float | None = None
    open: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    """Those that have been seen to run."""
    ended: set[int] = field(default_factory=set)
    """Those that Batch says have ended."""
    failed: int = 0
    """How many of them have failed, by Batch's count, when the failed ones were listed last."""
    cancelled: set[int] = field(default_factory=set)
    """Those to be terminated once the id is known."""
    arrived: int = 0
    missing_since: float | None = None

    @property
    def size(self) -> int:
        """How many calls it had."""
        return len(self.keys)

    def job(self, index: int) -> str:
        """Return the id of the job that runs a call."""
        return child_id(self.job_id, index, self.size)


class Tracking:
    """All submissions. Not for two threads at once."""

    def __init__(self, now: float) -> None:
        self._submissions: dict[int, Submission] = {}
        self._places: dict[CallKey, tuple[Submission, int]] = {}
        self._garbage: dict[str, None] = {}
        self.progress_at = now
        """When something was submitted, began or ended last, as far as has been seen."""

    def add(self, number: int, name: str, keys: Sequence[CallKey], call_key: str, now: float) -> Submission:
        """Take note of a submission that is about to be made."""
        made = Submission(number, name, keys, call_key, now, open=set(range(len(keys))))
        self._submissions[number] = made
        self._places.update((key, (made, index)) for index, key in enumerate(keys))
        self.progress_at = now
        return made

    def accepted(self, submission: Submission, job_id: str) -> list[str]:
        """Batch has said the id. Returns the jobs to terminate: those that were cancelled meanwhile."""
        submission.job_id = job_id
        submission.doubt_since = None
        cancelled, submission.cancelled = submission.cancelled, set()
        if not submission.open:
            self._forget(submission)
            return [job_id]
        return [submission.job(index) for index in sorted(cancelled)]

    def doubtful(self, submission: Submission, now: float) -> None:
        """Batch has not answered: nobody knows yet whether there is a job."""
        submission.doubt_since = now

    def refused(self, submission: Submission) -> list[CallKey]:
        """There is no such job, and there will be none. Returns the calls that were open."""
        left = [submission.keys[index] for index in sorted(submission.open)]
        for index in list(submission.open):
            self._close(submission, index)
        self._forget(submission)
        return left

    def cancel(self, keys: Iterable[CallKey]) -> list[str]:
        """Nobody wants these any more. Returns the jobs to terminate, whole arrays where nothing else is left."""
        touched: dict[int, tuple[Submission, list[int]]] = {}
        for key in keys:
            if (place := self._places.get(key)) is None:
                continue
            submission, index = place
            self._close(submission, index)
            if index not in submission.ended:
                touched.setdefault(submission.number, (submission, []))[1].append(index)
        jobs: list[str] = []
        for submission, indexes in touched.values():
            if not submission.job_id:
                submission.cancelled.update(indexes)
            elif not submission.open:
                jobs.append(submission.job_id)
            else:
                jobs += [submission.job(index) for index in indexes]
        return jobs

    def doubts(self) -> list[Submission]:
        """Return the submissions that were not answered."""
        return [submission for submission in self._submissions.values() if submission.doubt_since is not None]

    def known(self) -> list[Submission]:
        """Return the submissions with an id and open calls, the oldest first."""
        return [submission for submission in self._submissions.values() if submission.job_id and submission.open]

    def unanswered(self) -> list[Submission]:
        """Return the submissions without an id."""
        return [submission for submission in self._submissions.values() if not submission.job_id]

    def is_idle(self) -> bool:
        """Tell whether there is nothing to look for."""
        return not self._submissions

    def statuses_to_list(self, submission: Submission, counts: Mapping[str, int]) -> list[str]:
        """Return of which states the children should be listed, by how many there are."""
        wanted = []
        if counts.get("RUNNING", 0) > len(submission.started & submission.open - submission.ended):
            wanted.append("RUNNING")
        if counts.get("FAILED", 0) > submission.failed:
            wanted.append("FAILED")
        return wanted

    def has_lost_successes(self, submission: Submission, counts: Mapping[str, int]) -> bool:
        """Tell whether some have succeeded, by Batch's word, and left no result. Call it after results were taken."""
        ended = len(submission.ended & submission.open)
        return bool(submission.open) and counts.get("SUCCEEDED", 0) > submission.arrived + ended

    def running(self, submission: Submission, indexes: Iterable[int], now: float) -> list[CallKey]:
        """These run. Returns the calls of which that was not known."""
        new = sorted((set(indexes) & submission.open) - submission.started)
        submission.started.update(new)
        if new:
            self.progress_at = now
        return [submission.keys[index] for index in new]

    def ended(self, submission: Submission, indexes: Iterable[int]) -> None:
        """These have ended, and have left a result or not."""
        submission.ended.update(indexes)

    def take(self, number: int, index: int, now: float) -> CallKey | None:
        """Take note that a result was read. Returns its call; None when nobody waits for it (any more)."""
        key = self._end(number, index, now)
        if key is not None and (submission := self._submissions.get(number)) is not None:
            submission.arrived += 1
        return key

    def waits_for(self, number: int, index: int) -> bool:
        """Tell whether a result of that place is awaited."""
        submission = self._submissions.get(number)
        return submission is not None and index in submission.open

    def lose(self, number: int, index: int, now: float) -> CallKey | None:
        """Take note that a call has ended without a result. Returns it; None when nobody waits for it (any more)."""
        return self._end(number, index, now)

    def throw_away(self, keys: Iterable[str]) -> None:
        """Nobody needs these objects any more."""
        self._garbage.update(dict.fromkeys(keys))

    def take_garbage(self, least: int) -> list[str]:
        """Return the keys of objects that nobody needs, once: at least so many, or all when nothing is open."""
        if len(self._garbage) < least and self._submissions:
            return []
        garbage, self._garbage = list(self._garbage), {}
        return garbage

    def is_stuck(self, counts: Iterable[Mapping[str, int]], now: float, after_seconds: float) -> bool:
        """Tell whether jobs wait, and have done so for long, while none runs. counts: of all known submissions."""
        if now - self.progress_at < after_seconds:
            return False
        everything = list(counts)
        return any("RUNNABLE" in each for each in everything) and not any(
            "RUNNING" in each or "STARTING" in each for each in everything
        )

    def check(self) -> None:
        """Assert the laws that this module's head states."""
        for key, (submission, index) in self._places.items():
            assert submission.keys[index] == key
            assert index in submission.open
            assert self._submissions[submission.number] is submission
        assert len(self._places) == sum(len(each.open) for each in self._submissions.values())
        assert all(each.open or not each.job_id for each in self._submissions.values())

    def _end(self, number: int, index: int, now: float) -> CallKey | None:
        submission = self._submissions.get(number)
        if submission is None or index not in submission.open:
            return None
        self.progress_at = now
        self._close(submission, index)
        return submission.keys[index]

    def _close(self, submission: Submission, index: int) -> None:
        submission.open.discard(index)
        key = submission.keys[index]
        if self._places.get(key, (None, 0))[0] is submission:
            del self._places[key]
        if not submission.open and submission.job_id:
            self._forget(submission)

    def _forget(self, submission: Submission) -> None:
        if self._submissions.pop(submission.number, None) is not None and submission.call_key:
            self._garbage[submission.call_key] = None

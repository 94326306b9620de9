"""The submissions of a session and their pending actions. Pure: time is an argument. A *submission* is one
SubmitJob: a plain job of one call, or an array whose child i runs call i. A call is *open* until its result is read,
it fails, or it is cancelled. Invariants: a call is open in at most one submission; a submission is dropped once it has
no open calls, and only then may its calls be removed from S3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.offload.call import CallKey
from scaler.worker_manager.aws_hpc import MAX_ARRAY_SIZE
from scaler.worker_manager.aws_hpc.objects import PackedCall
from scaler.worker_manager.aws_hpc.requests import child_id
from scaler.worker_manager.polled import LISTED_SECONDS

MAX_TOGETHER_BYTES = 64 * 1024**2  # larger batches are split, to limit the memory for copies
UNANSWERED_SECONDS = 20.0  # an unanswered submission not listed after this time counts as failed
GIVEN_UP_SECONDS = 600.0  # how long to search for jobs of a failed submission, to terminate them
SEARCH_PAUSE_SECONDS = 5.0
MAX_TERMINATE_TRIES = 100
NOT_FOUND_SECONDS = 120.0  # a job that Batch has not found for this long does not exist
STUCK_SECONDS = 120.0
FIRST_POLL_SECONDS = 0.5
LAST_POLL_SECONDS = 10.0
QUIET_SHARE = 0.1  # poll interval as a share of the time without progress


def poll_interval(quiet_seconds: float, *, has_updates: bool) -> float:
    """Return the pause before the next poll. has_updates: calls were submitted or cancelled since the last poll."""
    quiet_share = 0.0 if has_updates else quiet_seconds * QUIET_SHARE
    return min(LAST_POLL_SECONDS, max(FIRST_POLL_SECONDS, quiet_share))


def batches_of(calls: Sequence[PackedCall]) -> Iterator[list[PackedCall]]:
    """Split calls into as few jobs as possible."""
    batch: list[PackedCall] = []
    size = 0
    for each in calls:
        if batch and (len(batch) == MAX_ARRAY_SIZE or size + len(each.data) > MAX_TOGETHER_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += len(each.data)
    if batch:
        yield batch


@dataclass(slots=True)
class CallSubmission:
    number: int
    name: str
    keys: Sequence[CallKey]
    call_key: str  # key of the object with the calls
    job_id: str = ""  # empty until Batch has answered
    unanswered_since: float | None = None  # set if Batch did not answer, so the job may exist
    not_found_since: float | None = None
    open: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)  # ended according to Batch, with or without a result
    counts: Mapping[str, int] = field(default_factory=dict)  # children by state, from the last report
    failed: int = 0  # failed children in the last list
    arrived: int = 0

    def __post_init__(self) -> None:
        self.open = set(range(len(self.keys)))

    @property
    def size(self) -> int:
        return len(self.keys)

    def job(self, index: int) -> str:
        return child_id(self.job_id, index, self.size)

    def statuses_to_list(self) -> list[str]:
        wanted = []
        if self.counts.get("RUNNING", 0) > len(self.started & self.open - self.ended):
            wanted.append("RUNNING")
        if self.counts.get("FAILED", 0) > self.failed:
            wanted.append("FAILED")
        return wanted

    def has_lost_successes(self) -> bool:
        """Return whether more children succeeded than delivered results. Call after reading results."""
        return bool(self.open) and self.counts.get("SUCCEEDED", 0) > self.arrived + len(self.ended & self.open)


class Tracking:
    """All submissions of a session, pending terminations, and obsolete objects. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self._submissions: dict[int, CallSubmission] = {}
        self._positions: dict[CallKey, tuple[CallSubmission, int]] = {}
        self._obsolete: dict[str, None] = {}
        self.terminations: dict[str, int] = {}  # number of failed attempts to terminate each job
        self._given_up: dict[str, float] = {}  # end of the search for each failed submission, by name
        self._unwanted: set[str] = set()
        self._search_at = now
        self._search_until = now + LISTED_SECONDS  # time by which all jobs of earlier sessions are listed
        self._is_searching = True
        self.progress_at = now  # last time a call was submitted, started, or ended

    def add(self, submission: CallSubmission, now: float) -> None:
        self._submissions[submission.number] = submission
        self._positions.update((key, (submission, index)) for index, key in enumerate(submission.keys))
        self.progress_at = now

    def accepted(self, submission: CallSubmission, job_id: str) -> None:
        submission.job_id = job_id
        submission.unanswered_since = None
        if submission.open:
            self.terminate(submission.job(index) for index in range(submission.size) if index not in submission.open)
        else:
            self._forget(submission)
            self.terminate([job_id])

    def unanswered(self, submission: CallSubmission, now: float) -> None:
        submission.unanswered_since = now

    def not_listed(self, submission: CallSubmission, now: float) -> list[CallKey]:
        """Record that Batch does not list an unanswered submission. Return its open calls if it fails now."""
        since = submission.unanswered_since
        if since is None or now - since < UNANSWERED_SECONDS:
            return []
        self._given_up[submission.name] = now + GIVEN_UP_SECONDS
        self._is_searching = True
        return self.refused(submission)

    def refused(self, submission: CallSubmission) -> list[CallKey]:
        left = [self._close(submission, index) for index in sorted(submission.open)]
        self._forget(submission)
        return left

    def not_found(self, submission: CallSubmission, now: float) -> list[CallKey]:
        """Record that Batch does not find a job. Return its open calls if it has been missing for too long."""
        submission.counts = {}
        if submission.not_found_since is None:
            submission.not_found_since = now
        return self.refused(submission) if now - submission.not_found_since > NOT_FOUND_SECONDS else []

    def cancel(self, keys: Iterable[CallKey] | None = None) -> None:
        """Close calls (default: all) and terminate their jobs, whole arrays if possible."""
        jobs: dict[str, CallSubmission] = {}
        for key in list(self._positions) if keys is None else keys:
            if (position := self._positions.get(key)) is None:
                continue
            submission, index = position
            self._close(submission, index)
            if submission.job_id and index not in submission.ended:
                jobs[submission.job(index)] = submission
        # Submissions without an id are terminated once accepted.
        self.terminate(job if submission.open else submission.job_id for job, submission in jobs.items())

    def known(self) -> list[CallSubmission]:
        return [submission for submission in self._submissions.values() if submission.job_id and submission.open]

    def without_id(self) -> list[CallSubmission]:
        return [submission for submission in self._submissions.values() if not submission.job_id]

    def is_idle(self) -> bool:
        return not (self._submissions or self.terminations or self._is_searching)

    def running(self, submission: CallSubmission, indexes: Iterable[int], now: float) -> list[CallKey]:
        new = sorted((set(indexes) & submission.open) - submission.started)
        submission.started.update(new)
        if new:
            self.progress_at = now
        return [submission.keys[index] for index in new]

    def job_of(self, number: int, index: int) -> str:
        submission = self._submissions[number]
        return submission.job_id and submission.job(index)

    def is_awaited(self, number: int, index: int) -> bool:
        submission = self._submissions.get(number)
        return submission is not None and index in submission.open

    def over(self, number: int, index: int, now: float, *, has_result: bool) -> CallKey | None:
        """Record that a result was read or is missing. Return its call, or None if it is not awaited."""
        if not self.is_awaited(number, index):
            return None
        submission = self._submissions[number]
        submission.arrived += has_result
        self.progress_at = now
        return self._close(submission, index)

    def is_stuck(self, now: float, after_seconds: float) -> bool:
        states = {state for submission in self.known() for state in submission.counts}
        return "RUNNABLE" in states and not states & {"RUNNING", "STARTING"} and now - self.progress_at >= after_seconds

    def terminate(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self.terminations.setdefault(job_id, 0)

    def terminated(self, job_id: str, *, is_done: bool) -> bool:
        """Record an attempt to terminate a job. Returns False once too many attempts have failed."""
        tries = self.terminations.get(job_id, 0)
        if is_done or tries >= MAX_TERMINATE_TRIES:
            self.terminations.pop(job_id, None)
            return is_done
        self.terminations[job_id] = tries + 1
        return True

    def is_search_due(self, now: float) -> bool:
        return self._is_searching and now >= self._search_at

    def listed(self, jobs: Mapping[str, str], is_own: Callable[[str], bool], now: float) -> int:
        """Terminate unwanted jobs and return how many are new. jobs: names by id. is_own: tests a job's name."""
        found = {job_id for job_id, name in jobs.items() if not is_own(name) or name in self._given_up}
        new = found - self._unwanted
        self._unwanted |= new
        self.terminate(new)
        gone = {jobs[job_id] for job_id in found}
        self._given_up = {name: until for name, until in self._given_up.items() if name not in gone and until > now}
        self._is_searching = now < self._search_until or bool(self._given_up)
        self._search_at = now + SEARCH_PAUSE_SECONDS
        return len(new)

    def discard(self, keys: Iterable[str]) -> None:
        self._obsolete.update(dict.fromkeys(keys))

    def take_obsolete(self, least: int) -> list[str]:
        if len(self._obsolete) < least and self._submissions:
            return []
        obsolete, self._obsolete = list(self._obsolete), {}
        return obsolete

    def _close(self, submission: CallSubmission, index: int) -> CallKey:
        submission.open.discard(index)
        key = submission.keys[index]
        if self._positions.get(key, (None, 0))[0] is submission:
            del self._positions[key]
        if not submission.open and submission.job_id:
            self._forget(submission)
        return key

    def _forget(self, submission: CallSubmission) -> None:
        if self._submissions.pop(submission.number, None) is not None:
            self._obsolete[submission.call_key] = None

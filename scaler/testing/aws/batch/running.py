"""The lifecycle of emulated Batch jobs: placement, attempts, time limits, and faults. Pure."""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from scaler.testing.aws.batch.jobs import (
    ENDED,
    MAX_OVERRIDES_LENGTH,
    WAITING,
    Array,
    Job,
    JobAttempt,
    JobRun,
    State,
    overrides_length,
    own_variables,
)
from scaler.testing.aws.batch.resources import BatchResources, ComputeEnvironment, JobQueue
from scaler.testing.aws.batch.values import FARGATE

EXITED = "Essential container in task exited"
NOT_STARTED = "Task failed to start"
TIMED_OUT = "Job attempt duration exceeded timeout"
SPOT_INTERRUPTED = "Your Spot Task was interrupted."
CHILD_FAILED = "Array Child Job failed"
TOO_LONG = f"Container Overrides length must be at most {MAX_OVERRIDES_LENGTH}"
TOO_LARGE = (
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - "
    "CE(s) associated with the job queue cannot meet the CPU requirement of the job."
)
CANCELED = "Canceled by JobStateTimeLimit action due to reason: "


Action = Callable[[float], None]
"""A deferred action, which is called with the current time."""


@dataclass(slots=True)
class Times:
    """Durations in seconds. Changes apply to events that begin later."""

    submitted: float = 0.02
    pending: float = 0.02
    starting: float = 0.05
    changing: float = 0.05
    """Creation, update, and deletion of queues and compute environments."""
    listing: float = 0.1
    """How long ListJobs does not show a new job."""
    stop: float = 30.0
    """From SIGTERM to SIGKILL."""
    notice: float = 120.0
    """From a spot notice to SIGKILL."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    run_id: str
    job_id: str
    command: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class TerminateContainer:
    run_id: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    run_id: str


Command = StartContainer | TerminateContainer | KillContainer
"""Terminate sends SIGTERM, kill sends SIGKILL."""


class Timeline:
    """Deferred actions, ordered by time and then by insertion."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, due: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._entries, (due, self._count, action))

    def step(self, now: float) -> float | None:
        if not self._entries or self._entries[0][0] > now:
            return None
        first = self._entries[0][0]
        while self._entries and self._entries[0][0] == first:
            heapq.heappop(self._entries)[2](first)
        return first

    def next_due(self) -> float | None:
        return self._entries[0][0] if self._entries else None


class JobRunner:
    """Moves jobs through their states. `commands` collects the commands to execute."""

    def __init__(self, resources: BatchResources, timeline: Timeline, times: Times) -> None:
        self.commands: list[Command] = []
        self._resources = resources
        self._timeline = timeline
        self._times = times
        self._runs: dict[str, Job] = {}
        self._runnable: defaultdict[JobQueue, deque[Job]] = defaultdict(deque)
        """Jobs that may be placed, first in first out, including jobs that no longer may."""
        self._failing_starts: deque[str] = deque()

    def submit(self, job: Job | Array, now: float) -> None:
        self._timeline.at(now + self._times.submitted, partial(self._evaluate, job))

    def place(self, now: float) -> None:
        """Place jobs. A job that cannot be placed blocks the jobs behind it in its queue."""
        for queue in sorted(self._resources.queues.values(), key=lambda each: (-each.priority, each.serial)):
            while (head := self._head(queue)) is not None:
                environment = self._room(head, queue)
                if environment is None:
                    self._block(head, queue, now)
                    break
                self._runnable[queue].popleft()
                self._begin(head, environment, now)

    def cancel(self, job: Job | Array, reason: str, now: float) -> None:
        if isinstance(job, Job):
            if job.state in WAITING:
                job.cancelled = True
                self._fail(job, reason, now)
            return
        if job.state in ENDED:
            return
        job.cancelled, job.reason = True, reason
        self._evaluate(job, now)
        for child in job.children:
            self.cancel(child, reason, now)

    def terminate(self, job: Job | Array, reason: str, now: float) -> None:
        if job.state in ENDED:
            return
        job.terminated = True
        if isinstance(job, Array):
            job.reason = reason
            self._evaluate(job, now)
            for child in job.children:
                self.terminate(child, reason, now)
        elif job.run is None:
            self._fail(job, reason, now)
        else:
            self._stop(job, job.run, reason, now, final=True)

    def expire(self, job: Job, now: float) -> None:
        if job.run is not None:
            self._stop(job, job.run, TIMED_OUT, now, final=True)

    def spot_notice(self, job: Job, now: float) -> None:
        if job.run is not None:
            self._stop(job, job.run, SPOT_INTERRUPTED, now, final=False, grace_seconds=self._times.notice)

    def host_lost(self, job: Job, now: float) -> None:
        if job.run is None:
            return
        run = job.run
        if run.started_at is not None:
            self.commands.append(KillContainer(run.run_id))
        instance = (run.instance_arn or "").rpartition("/")[2]
        self._over(job, run, None, "", f"Host EC2 (instance i-{instance[:17]}) terminated.", now)

    def fail_starts(self, times: int, reason: str) -> None:
        self._failing_starts.extend([reason] * times)

    def container_ended(self, run_id: str, exit_code: int, now: float) -> None:
        """Process the end of a container. Late events of a finished run are ignored."""
        job = self._runs.get(run_id)
        if job is not None and job.run is not None:
            self._over(job, job.run, exit_code, job.run.reason, job.run.ending or EXITED, now)

    def container_refused(self, run_id: str, reason: str, now: float) -> None:
        job = self._runs.get(run_id)
        if job is not None and job.run is not None:
            self._over(job, job.run, None, reason, NOT_STARTED, now)

    def placed(self) -> Iterable[Job]:
        return self._runs.values()

    def _evaluate(self, job: Job | Array, now: float) -> None:
        if job.state is not State.SUBMITTED:
            return
        if isinstance(job, Array):
            job.state, job.changed_at = State.PENDING, now
            job.children = [
                Job(
                    job.serial,
                    f"{job.job_id}:{index}",
                    f"{job.arn}:{index}",
                    job.submission,
                    job,
                    index,
                    state=State.PENDING,
                )
                for index in range(job.size)
            ]
            job.counts[State.PENDING] = job.size
        else:
            job.state = State.PENDING
        waiting = job.children if isinstance(job, Array) else [job]
        self._timeline.at(now + self._times.pending, partial(self._release, waiting))

    def _release(self, jobs: Iterable[Job], now: float) -> None:
        for job in jobs:
            if job.state is State.PENDING:
                self._enqueue(job, now)

    def _enqueue(self, job: Job, now: float) -> None:
        self._move(job, State.RUNNABLE, now)
        self._runnable[job.submission.queue].append(job)

    def _head(self, queue: JobQueue) -> Job | None:
        runnable = self._runnable[queue]
        while runnable and runnable[0].state is not State.RUNNABLE:
            runnable.popleft()
        return runnable[0] if runnable else None

    @staticmethod
    def _room(job: Job, queue: JobQueue) -> ComputeEnvironment | None:
        if queue.stuck:
            return None
        needed = job.submission.resources.vcpus
        for environment in queue.environments:
            if environment.open and environment.used_vcpus + needed <= environment.max_vcpus:
                return environment
        return None

    def _block(self, head: Job, queue: JobQueue, now: float) -> None:
        needed = head.submission.resources.vcpus
        fits = any(needed <= environment.max_vcpus for environment in queue.environments)
        reason = queue.stuck or ("" if fits else TOO_LARGE)
        if head.reason == reason:
            return
        head.reason, head.blocked_since = reason, now
        for action in queue.actions:
            if reason.startswith(action["reason"]):
                due = partial(self._give_up, head, now, CANCELED + action["reason"])
                self._timeline.at(now + action["maxTimeSeconds"], due)

    def _give_up(self, job: Job, blocked_since: float, reason: str, now: float) -> None:
        if job.state is State.RUNNABLE and job.blocked_since == blocked_since:
            self.cancel(job, reason, now)

    def _begin(self, job: Job, environment: ComputeEnvironment, now: float) -> None:
        run_id = f"{job.job_id}/{len(job.attempts) + 1}"
        task = hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()
        cluster = environment.describe()["ecsClusterArn"]
        prefix, name = cluster.replace(":cluster/", ":task/"), job.submission.definition.name
        instance = cluster.replace(":cluster/", ":container-instance/")
        fargate = environment.resources.get("type") in FARGATE
        job.run = JobRun(
            run_id,
            environment,
            environment.arn,
            f"{prefix}/{task}",
            None if fargate else f"{instance}/{task[::-1]}",
            f"{name}/default/{task}",
        )
        job.reason, job.blocked_since = "", None
        environment.used_vcpus += job.submission.resources.vcpus
        self._runs[run_id] = job
        self._move(job, State.STARTING, now)
        self._timeline.at(now + self._times.starting, partial(self._launch, job, job.run))

    def _launch(self, job: Job, run: JobRun, now: float) -> None:
        if job.run is not run:
            return
        own = own_variables(job, run.environment.name)
        if overrides_length(job.submission, own) > MAX_OVERRIDES_LENGTH:
            self._leave(job, run)
            self._fail(job, TOO_LONG, now)
        elif self._failing_starts:
            self._over(job, run, None, self._failing_starts.popleft(), NOT_STARTED, now)
        else:
            run.started_at = now
            self._move(job, State.RUNNING, now)
            environment = {**job.submission.environment, **own}
            self.commands.append(StartContainer(run.run_id, job.job_id, job.submission.command, environment))
            if job.submission.timeout_seconds is not None:
                self._timeline.at(now + job.submission.timeout_seconds, partial(self._time_out, job, run))

    def _time_out(self, job: Job, run: JobRun, now: float) -> None:
        if job.run is run:
            self.expire(job, now)

    def _stop(
        self, job: Job, run: JobRun, reason: str, now: float, *, final: bool, grace_seconds: float | None = None
    ) -> None:
        """Stop a run. A stop that is not final may be followed by one with a shorter grace period."""
        if run.final:
            return
        run.ending, run.final = reason, final
        if run.started_at is None:
            self._over(job, run, None, "", run.ending, now)
            return
        self.commands.append(TerminateContainer(run.run_id))
        self._timeline.at(
            now + (self._times.stop if grace_seconds is None else grace_seconds), partial(self._kill, job, run)
        )

    def _kill(self, job: Job, run: JobRun, _: float) -> None:
        if job.run is run:
            self.commands.append(KillContainer(run.run_id))

    def _leave(self, job: Job, run: JobRun) -> None:
        run.environment.used_vcpus -= job.submission.resources.vcpus
        del self._runs[run.run_id]
        job.run = None

    def _over(self, job: Job, run: JobRun, exit_code: int | None, reason: str, status_reason: str, now: float) -> None:
        self._leave(job, run)
        job.attempts.append(JobAttempt(run, exit_code, reason, status_reason, now))
        submission = job.submission
        if exit_code == 0 and not run.ending:
            job.reason, job.stopped_at = status_reason, now
            self._move(job, State.SUCCEEDED, now)
        elif not run.final and submission.retries.again(len(job.attempts), status_reason, reason, exit_code):
            self._enqueue(job, now)
        else:
            self._fail(job, status_reason, now)

    def _fail(self, job: Job, reason: str, now: float) -> None:
        job.reason, job.stopped_at = reason, now
        self._move(job, State.FAILED, now)

    @staticmethod
    def _move(job: Job, state: State, now: float) -> None:
        array, before = job.array, job.state
        job.state = state
        if array is None:
            return
        array.counts[before] -= 1
        array.counts[state] += 1
        array.changed_at = now
        if array.counts[State.SUCCEEDED] + array.counts[State.FAILED] == array.size:
            array.state, array.stopped_at = State.SUCCEEDED, now
            if array.counts[State.FAILED]:
                array.state, array.reason = State.FAILED, array.reason or CHILD_FAILED

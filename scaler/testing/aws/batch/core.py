"""The state machine of the emulated Batch. Pure: takes the time as an argument, and returns effects as commands.

Behaviour and public error texts follow the service's API reference and user guide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.definitions import JobDefinitions
from scaler.testing.aws.batch.jobs import (
    ENDED,
    PLACED,
    Array,
    Job,
    State,
    describe,
    list_children,
    list_of,
    submission_of,
)
from scaler.testing.aws.batch.resources import BatchResource, BatchResources, JobQueue
from scaler.testing.aws.batch.running import Command, JobRunner, Timeline, Times
from scaler.testing.aws.batch.values import JSON, Invalid
from scaler.testing.aws.faults import ServiceError

MAX_REQUEST_BYTES = 30 * 1024
MAX_DESCRIBED_JOBS = 100
RETENTION_SECONDS = 7 * 24 * 3600
"""How long an ended job can be described."""
QUEUE_DELETED = "JobQueue deleted"

Operation = Callable[[Mapping[str, Any], float], JSON]


class BatchCore:
    """Compute environments, queues, job definitions, and jobs of one account. Times are Unix seconds.

    `call` answers a request, `advance` processes due events, and `running` receives container events and faults. After
    each call, `take_commands` returns the commands to execute, and `next_due` returns the time of the next `advance`.
    """

    def __init__(self, arn_prefix: str, new_id: Callable[[], str], times: Times | None = None) -> None:
        """arn_prefix: such as `arn:aws:batch:us-east-1:123456789012:`. new_id: returns unique ids."""
        self.times = times or Times()
        self._arn_prefix = arn_prefix
        self._new_id = new_id
        self._timeline = Timeline()
        self._resources = resources = BatchResources(arn_prefix, new_id)
        self._definitions = JobDefinitions(arn_prefix)
        self.running = JobRunner(self._resources, self._timeline, self.times)
        self._jobs: dict[str, Job | Array] = {}
        self._serial = 0
        self.operations: dict[str, Operation] = {
            "SubmitJob": self._submit_job,
            "DescribeJobs": self._describe_jobs,
            "ListJobs": self._list_jobs,
            "CancelJob": self._cancel_job,
            "TerminateJob": self._terminate_job,
            "RegisterJobDefinition": lambda request, _: self._definitions.register(request),
            "DescribeJobDefinitions": lambda request, _: self._definitions.describe(request),
            "DeregisterJobDefinition": lambda request, _: self._definitions.deregister(request),
            "CreateComputeEnvironment": partial(self._change, resources.create_environment, "computeEnvironment"),
            "UpdateComputeEnvironment": partial(self._change, resources.update_environment, "computeEnvironment"),
            "DeleteComputeEnvironment": partial(self._change, resources.delete_environment, ""),
            "DescribeComputeEnvironments": lambda request, _: resources.describe("computeEnvironments", request),
            "CreateJobQueue": partial(self._change, resources.create_queue, "jobQueue"),
            "UpdateJobQueue": partial(self._change, resources.update_queue, "jobQueue"),
            "DeleteJobQueue": partial(self._change, resources.delete_queue, ""),
            "DescribeJobQueues": lambda request, _: resources.describe("jobQueues", request),
            "TagResource": self._tag,
            "ListTagsForResource": self._list_tags,
        }

    def call(self, operation: str, request: Mapping[str, Any], now: float) -> JSON:
        self.advance(now)
        try:
            answer = self.operations[operation](request, now)
        except Invalid as error:
            text = f"Error executing request, Exception : {error}, RequestId: {self._new_id()}"
            raise ServiceError("ClientException", text) from error
        self.running.place(now)
        return answer

    def advance(self, now: float) -> None:
        """Process due events in order, each at its own time, however late the call is."""
        while (due := self._timeline.step(now)) is not None:
            self.running.place(due)
        self.running.place(now)

    def next_due(self) -> float | None:
        """Return the time of the next `advance`, or None if only requests or events cause changes."""
        return self._timeline.next_due()

    def take_commands(self) -> list[Command]:
        """Return each command to execute once, in order."""
        commands, self.running.commands = self.running.commands, []
        return commands

    def job(self, job_id: str) -> Job | Array | None:
        parent, colon, index = job_id.partition(":")
        job = self._jobs.get(parent)
        if not colon or job is None:
            return job
        known = isinstance(job, Array) and index.isdecimal() and int(index) < len(job.children)
        return job.children[int(index)] if known and isinstance(job, Array) else None

    def queue(self, wanted: str) -> JobQueue:
        try:
            return self._resources.queue(wanted)
        except Invalid as error:
            raise ServiceError("ClientException", str(error)) from error

    def check(self) -> None:
        used = dict.fromkeys(self._resources.environments.values(), 0.0)
        for job in self.running.placed():
            assert job.state in PLACED
            assert job.run is not None
            used[job.run.environment] += job.submission.resources.vcpus
        for environment, vcpus in used.items():
            assert abs(environment.used_vcpus - vcpus) < 1e-6
            assert vcpus <= environment.max_vcpus + 1e-6 or environment.status == "UPDATING"
        for known in self._jobs.values():
            children = known.children if isinstance(known, Array) else [known]
            for child in children:
                assert (child.run is not None) == (child.state in PLACED)
                assert (child.stopped_at is not None) == (child.state in ENDED)
            if isinstance(known, Array) and children:
                assert all(known.counts[state] == sum(each.state is state for each in children) for state in State)

    def _submit_job(self, request: Mapping[str, Any], now: float) -> JSON:
        size = len(json.dumps(request))
        if size > MAX_REQUEST_BYTES:
            raise Invalid(f"Job size must be less than {MAX_REQUEST_BYTES // 1024} KiB, got {-(-size // 1024)} KiB")
        queue = self._resources.queue(values.need(request, "jobQueue"))
        definition = self._definitions.active(values.need(request, "jobDefinition"))
        submission = submission_of(request, queue, definition, now)
        array_size = values.array_size(request)
        job_id = self._new_id()
        arn = f"{self._arn_prefix}job/{job_id}"
        self._serial += 1
        job: Job | Array
        if array_size is None:
            job = Job(self._serial, job_id, arn, submission)
        else:
            job = Array(self._serial, job_id, arn, submission, array_size)
        self._jobs[job_id] = job
        self.running.submit(job, now)
        return {"jobArn": arn, "jobName": submission.name, "jobId": job_id}

    def _describe_jobs(self, request: Mapping[str, Any], now: float) -> JSON:
        wanted = request.get("jobs") or []
        if len(wanted) > MAX_DESCRIBED_JOBS:
            raise Invalid(f"Maximum number of jobs supported is {MAX_DESCRIBED_JOBS}")
        self._forget_old(now)
        found = [self.job(job_id.removeprefix(f"{self._arn_prefix}job/")) for job_id in wanted]
        return {"jobs": [describe(job) for job in found if job is not None]}

    def _list_jobs(self, request: Mapping[str, Any], now: float) -> JSON:
        values.refuse_members(request, ("multiNodeJobId",))
        if bool(request.get("jobQueue")) == bool(request.get("arrayJobId")):
            raise Invalid("exactly one of jobQueue, arrayJobId and multiNodeJobId must be provided")
        self._forget_old(now)
        if request.get("arrayJobId"):
            array = self.job(request["arrayJobId"])
            if not isinstance(array, Array):
                raise Invalid(f"array job {request['arrayJobId']} does not exist")
            return list_children(request, array)
        queue = self._resources.queue(request["jobQueue"])
        shown = now - self.times.listing
        newest_first = (job for job in reversed(self._jobs.values()) if job.submission.created_at <= shown)
        return list_of(request, newest_first, queue)

    def _cancel_job(self, request: Mapping[str, Any], now: float) -> JSON:
        self.running.cancel(self._existing(request), values.reason(request), now)
        return {}

    def _terminate_job(self, request: Mapping[str, Any], now: float) -> JSON:
        self.running.terminate(self._existing(request), values.reason(request), now)
        return {}

    def _existing(self, request: Mapping[str, Any]) -> Job | Array:
        job_id = values.need(request, "jobId")
        job = self.job(job_id)
        if job is None:
            raise Invalid(f"Job, {job_id}, does not exist")
        return job

    def _forget_old(self, now: float) -> None:
        """Drop jobs that ended long ago. Oldest first: an unfinished job delays the removal of all later jobs."""
        while self._jobs:
            job = next(iter(self._jobs.values()))
            if job.stopped_at is None or job.stopped_at + RETENTION_SECONDS > now:
                return
            del self._jobs[job.job_id]

    def _change(
        self,
        change: Callable[[Mapping[str, Any]], BatchResource | None],
        member: str,
        request: Mapping[str, Any],
        now: float,
    ) -> JSON:
        """Create, update, or delete a resource. member: prefix of the answer's members, empty for a deletion."""
        place = change(request)
        if place is None:
            return {}
        if isinstance(place, JobQueue) and place.status == "DELETING":
            for job in self._jobs.values():
                if job.submission.queue is place:
                    self.running.terminate(job, QUEUE_DELETED, now)
        self._settle_later(place, now)
        return {f"{member}Name": place.name, f"{member}Arn": place.arn} if member else {}

    def _settle_later(self, place: BatchResource, now: float) -> None:
        self._timeline.at(now + self.times.changing, partial(self._settle, place))

    def _settle(self, place: BatchResource, now: float) -> None:
        going = place.status == "DELETING" and isinstance(place, JobQueue)
        if going and any(job.submission.queue is place and job.state not in ENDED for job in self._jobs.values()):
            self._settle_later(place, now)
        else:
            self._resources.settle(place)

    def _tags(self, request: Mapping[str, Any]) -> dict[str, str]:
        arn = values.need(request, "resourceArn")
        job = self._jobs.get(arn.removeprefix(f"{self._arn_prefix}job/"))
        found = job.submission.tags if job else self._resources.tags_of(arn)
        found = self._definitions.tags_of(arn) if found is None else found
        if found is None:
            raise Invalid(f"resource {arn} does not exist")
        return found

    def _tag(self, request: Mapping[str, Any], _: float) -> JSON:
        present = self._tags(request)
        present.update(values.tags(values.need(request, "tags"), present))
        return {}

    def _list_tags(self, request: Mapping[str, Any], _: float) -> JSON:
        return {"tags": self._tags(request)}

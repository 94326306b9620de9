"""The HTTP shell around `BatchCore`, with containers and faults that tests inject."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Sequence

from scaler.errors import UsageError
from scaler.testing.aws.batch.core import BatchCore
from scaler.testing.aws.batch.jobs import Job
from scaler.testing.aws.batch.running import KillContainer, StartContainer, TerminateContainer, Times
from scaler.testing.aws.batch.values import JSON
from scaler.testing.aws.containers import Container, StartError
from scaler.testing.aws.faults import Partial, ServiceError
from scaler.testing.aws.service import Answer, EmulatorContext, ServiceCall, SteppedService

TAGS_PATH = "/v1/tags/"
TAG_OPERATIONS = {"POST": "TagResource", "GET": "ListTagsForResource"}
INSUFFICIENT_CAPACITY = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for instance type m5.large"
)
CANNOT_PULL = "CannotPullContainerError: pull image manifest has been retried 5 time(s): failed to resolve ref"
READY_SECONDS = 10
MAX_KEPT_OUTPUTS = 10_000
"""Number of jobs whose last container output is kept."""


class EmulatedBatch(SteppedService):
    """AWS Batch for clients, with methods for tests. Tests may change `times`. Thread-safe."""

    name = "batch"

    def __init__(self, context: EmulatorContext) -> None:
        self._region = context.region
        self._containers = context.containers
        self._secrets = context.secrets
        self._core = BatchCore(context.arn("batch", ""), lambda: str(uuid.uuid4()))
        self.times: Times = self._core.times
        self._operations = {
            f"/v1/{name.lower()}": name for name in self._core.operations if name not in TAG_OPERATIONS.values()
        }
        """By path."""
        self._running: dict[str, Container] = {}
        self._last: dict[str, Container] = {}
        super().__init__("batch")

    def name_of(self, call: ServiceCall) -> str | None:
        if call.path.startswith(TAGS_PATH):
            return TAG_OPERATIONS.get(call.method)
        return self._operations.get(call.path) if call.method == "POST" else None

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:  # noqa: ARG002 (of RunTask only)
        request: JSON = json.loads(call.body or b"{}")
        if call.path.startswith(TAGS_PATH):
            request["resourceArn"] = call.path.removeprefix(TAGS_PATH)
        return Answer(200, json.dumps(self.call(operation, request)).encode(), {"Content-Type": "application/json"})

    def refuse(self, refusal: ServiceError) -> Answer:
        headers = {"Content-Type": "application/json", "x-amzn-ErrorType": refusal.code}
        return Answer(refusal.status, json.dumps({"message": refusal.message}).encode(), headers)

    def throttle(self) -> ServiceError:
        return ServiceError("TooManyRequestsException", "Too Many Requests", 429)

    def call(self, operation: str, request: JSON) -> JSON:
        """Perform an operation as a client would, without faults. Raises Refusal."""
        with self._changing():
            return self._core.call(operation, request, time.time())

    def furnish(
        self,
        queue: str = "queue",
        definition: str = "definition",
        *,
        max_vcpus: int = 4,
        command: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """Create a compute environment, queue, and job definition of one vCPU on Fargate, and wait until they are
        VALID.

        Raises Refusal if a name is taken, and TimeoutError.
        """
        resources: JSON = {
            "type": "FARGATE",
            "maxvCpus": max_vcpus,
            "subnets": ["subnet-0"],
            "securityGroupIds": ["sg-0"],
        }
        name = f"{queue}-environment"
        self.call(
            "CreateComputeEnvironment",
            {"computeEnvironmentName": name, "type": "MANAGED", "computeResources": resources},
        )
        self._await_valid("DescribeComputeEnvironments", "computeEnvironments", name)
        order = [{"order": 1, "computeEnvironment": name}]
        self.call("CreateJobQueue", {"jobQueueName": queue, "priority": 1, "computeEnvironmentOrder": order})
        self._await_valid("DescribeJobQueues", "jobQueues", queue)
        container: JSON = {
            "image": "emulated",
            "command": list(command),
            "executionRoleArn": "arn:aws:iam::123456789012:role/execution",
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048"}],
            "environment": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        }
        self.call(
            "RegisterJobDefinition",
            {
                "jobDefinitionName": definition,
                "type": "container",
                "platformCapabilities": ["FARGATE"],
                "containerProperties": container,
            },
        )

    def stuck(self, queue: str, reason: str = INSUFFICIENT_CAPACITY) -> None:
        """Block placement from a queue with this reason until `unstuck`. Raises Refusal."""
        with self._changing():
            self._core.queue(queue).stuck = reason

    def unstuck(self, queue: str) -> None:
        """Undo `stuck`. Raises Refusal."""
        with self._changing():
            self._core.queue(queue).stuck = ""

    def kill_container(self, job_id: str, number: int = signal.SIGKILL, reason: str = "") -> None:
        """Send a signal to a job's container. reason: the service's reason for the container's end.

        Raises UsageError if the container is not running.
        """
        with self._changing():
            job = self._job(job_id)
            container = self._running.get(job.run.run_id) if job.run else None
            if job.run is None or container is None:
                raise UsageError(f"the container of job {job_id} is not running: the job is {job.state}")
            job.run.reason = reason
            if number == signal.SIGKILL:
                container.kill()
            else:
                container.send_signal(number)

    def host_lost(self, job_id: str) -> None:
        """Remove the host of a placed job without notice. Raises UsageError for an unknown job."""
        with self._changing():
            self._core.running.host_lost(self._job(job_id), time.time())

    def spot_notice(self, job_id: str) -> None:
        """Reclaim the host of a placed job: SIGTERM now, SIGKILL after `times.notice`. Raises UsageError."""
        with self._changing():
            self._core.running.spot_notice(self._job(job_id), time.time())

    def expire(self, job_id: str) -> None:
        """Expire the time limit of a placed job. Raises UsageError for an unknown job."""
        with self._changing():
            self._core.running.expire(self._job(job_id), time.time())

    def fail_starts(self, times: int = 1, reason: str = CANNOT_PULL) -> None:
        with self._changed:
            self._core.running.fail_starts(times, reason)

    def alive(self) -> list[str]:
        with self._changed:
            return [run_id.partition("/")[0] for run_id in self._running]

    def output(self, job_id: str) -> str:
        """Return the end of a job's last container's output. Raises UsageError if no container ran."""
        with self._changed:
            container = self._last.get(job_id)
        if container is None:
            raise UsageError(f"no container of job {job_id} has run")
        return container.output()

    def state(self, job_id: str) -> str:
        """Return the status of a job, array, or child. Raises UsageError if unknown."""
        with self._changed:
            job = self._core.job(job_id)
            if job is None:
                raise UsageError(f"no job {job_id!r}")
            return job.state.value

    def check(self) -> None:
        """Raise AssertionError if the emulator's state is inconsistent."""
        with self._changed:
            self._core.check()

    def _job(self, job_id: str) -> Job:
        job = self._core.job(job_id)
        if not isinstance(job, Job):
            raise UsageError(f"no job or array child {job_id!r}")
        return job

    def _await_valid(self, operation: str, member: str, name: str) -> None:
        def valid() -> bool:
            found = self._core.call(operation, {member: [name]}, time.time())
            return bool(found[member][0]["status"] == "VALID")

        self.wait_until(valid, READY_SECONDS)

    def _states(self) -> list[str]:
        return [f"{job_id} runs" for job_id in self.alive()]

    def _step(self, now: float) -> float | None:
        with self._changed:
            self._core.advance(now)
            for command in self._core.take_commands():
                match command:
                    case StartContainer():
                        self._start(command)
                    case TerminateContainer(run_id):
                        if run_id in self._running:
                            self._running[run_id].terminate()
                    case KillContainer(run_id):
                        if run_id in self._running:
                            self._running[run_id].kill()
            self._changed.notify_all()
            return self._core.next_due()

    def _start(self, command: StartContainer) -> None:
        def ended(container: Container) -> None:
            self._ended(command.run_id, container)

        try:
            if not command.command:
                raise StartError("no command specified")
            secrets = self._secrets(self._job(command.job_id).submission.definition.container)
            environment = {**secrets, **command.environment}
            container = self._containers.start(list(command.command), environment, command.job_id, ended)
        except StartError as error:
            self._core.running.container_refused(command.run_id, f"CannotStartContainerError: {error}", time.time())
            self._woken.set()
            return
        self._running[command.run_id] = self._last[command.job_id] = container
        while len(self._last) > MAX_KEPT_OUTPUTS:
            del self._last[next(iter(self._last))]

    def _ended(self, run_id: str, container: Container) -> None:
        exit_code = container.poll()
        if exit_code is None:
            raise AssertionError(f"container {container.name} has ended without an exit code")
        with self._changing():
            self._running.pop(run_id, None)
            self._core.running.container_ended(run_id, exit_code, time.time())

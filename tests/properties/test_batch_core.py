"""The emulated Batch under random requests, containers and faults."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler.testing.aws.batch import BatchCore, KillContainer, StartContainer, TerminateContainer, Times
from scaler.testing.aws.batch.jobs import Job

LONG_SECONDS = 1e5
COMPUTE = {"type": "FARGATE", "maxvCpus": 3, "subnets": ["s"], "securityGroupIds": ["g"]}
ENDED = ("SUCCEEDED", "FAILED")


class BatchMachine(RuleBasedStateMachine):
    """Jobs of one or two vCPUs share three; whatever happens, each ends once and all room comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        ids = itertools.count()
        self.core = BatchCore("arn:aws:batch:r:1:", lambda: f"id-{next(ids)}", Times(1, 1, 1, 1, 0, 30, 120))
        self.jobs: list[str] = []
        self.live: set[str] = set()
        """The run ids of containers that run."""
        self.ended: dict[str, str] = {}
        self.call("CreateComputeEnvironment", computeEnvironmentName="c", type="MANAGED", computeResources=COMPUTE)
        self.pass_time(1)
        order = [{"order": 1, "computeEnvironment": "c"}]
        self.call("CreateJobQueue", jobQueueName="q", priority=1, computeEnvironmentOrder=order)
        self.pass_time(1)
        sizes = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "4096"}]
        container = {"image": "i", "command": ["c"], "executionRoleArn": "r", "resourceRequirements": sizes}
        self.call(
            "RegisterJobDefinition", jobDefinitionName="d", type="container", platformCapabilities=["FARGATE"],
            containerProperties=container,
        )  # fmt: skip

    def call(self, operation: str, **request: Any) -> Any:
        return self.core.call(operation, request, self.now)

    @rule(size=st.integers(1, 4), vcpus=st.sampled_from("12"), attempts=st.integers(1, 3), limited=st.booleans())
    def submit(self, size: int, vcpus: str, attempts: int, limited: bool) -> None:
        more: dict[str, Any] = {"arrayProperties": {"size": size}} if size > 1 else {}
        if limited:
            more["timeout"] = {"attemptDurationSeconds": 60}
        job = self.call(
            "SubmitJob", jobName="j", jobQueue="q", jobDefinition="d", retryStrategy={"attempts": attempts},
            containerOverrides={"resourceRequirements": [{"type": "VCPU", "value": vcpus}]}, **more,
        )["jobId"]  # fmt: skip
        self.jobs += [job] if size == 1 else [job, *(f"{job}:{index}" for index in range(size))]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 59.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.core.advance(self.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), exit_code=st.sampled_from([0, 1, 143]))
    def end(self, data: st.DataObject, exit_code: int) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.live)))
        self.live.remove(run_id)
        self.core.running.container_ended(run_id, exit_code, self.now)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), verb=st.sampled_from(["CancelJob", "TerminateJob", "host", "spot", "expire"]))
    def meddle(self, data: st.DataObject, verb: str) -> None:
        job_id = data.draw(st.sampled_from(self.jobs))
        job = self.core.job(job_id)
        if job is None:
            return  # the children of an array that was not evaluated yet
        if verb in ("CancelJob", "TerminateJob"):
            self.call(verb, jobId=job_id, reason=verb)
        elif isinstance(job, Job):
            faults = {"host": self.core.running.host_lost, "spot": self.core.running.spot_notice}
            faults.get(verb, self.core.running.expire)(job, self.now)

    @rule(stuck=st.booleans())
    def hold(self, stuck: bool) -> None:
        self.core.queue("q").stuck = "CAPACITY" if stuck else ""

    @rule()
    def fail_a_start(self) -> None:
        self.core.running.fail_starts(1, "CannotPullContainerError")

    @invariant()
    def all_holds(self) -> None:
        self.core.advance(self.now)
        self.core.check()
        for command in self.core.take_commands():
            match command:
                case StartContainer(run_id):
                    assert run_id not in self.live
                    self.live.add(run_id)
                case TerminateContainer(run_id):
                    assert run_id in self.live
                case KillContainer(run_id):
                    self.live.remove(run_id)
                    self.core.running.container_ended(run_id, 137, self.now)
        for job_id in self.jobs:
            job = self.core.job(job_id)
            if job is None:
                continue
            assert self.ended.get(job_id, job.state) == job.state, "a job that has ended goes on"
            if job.state in ENDED:
                self.ended[job_id] = job.state

    def teardown(self) -> None:
        self.core.queue("q").stuck = ""
        for _ in range(10 * len(self.jobs) + 10):
            self.now += LONG_SECONDS / 1000
            self.all_holds()
            while self.live:
                run_id = self.live.pop()
                self.core.running.container_ended(run_id, 0, self.now)
        states = {job_id: job.state.value for job_id in self.jobs if (job := self.core.job(job_id)) is not None}
        assert set(states.values()) <= set(ENDED), states
        self.core.check()


TestBatch = BatchMachine.TestCase
TestBatch.settings = settings(stateful_step_count=40)

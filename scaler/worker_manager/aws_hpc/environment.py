"""The compute environment and the job queue: made, shown and removed. Batch takes its time for each change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws.setup_tools import MANAGED_TAG, NOT_OURS, Steps
from scaler.worker_manager.aws_hpc.requests import Fields
from scaler.worker_manager.aws_hpc.service import ALIVE
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.wanted import differences

VALID_SECONDS = 300.0
"""How long a change may take. Batch needs seconds for Fargate, and minutes when instances must go first."""
PAUSE_SECONDS = 1.0
ROLE_SECONDS = 30.0
"""A role that was made just now is not known everywhere at once."""
TAGS = {MANAGED_TAG: "true"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Compute environments and queues are alike, but for the words."""

    words: str
    member: str
    """Of the answers and requests for several."""
    one: str
    """Of the requests for one."""
    operation: str

    def describe(self, batch: AwsCalls, name: str) -> Fields | None:
        """Return it as it is; None when there is none, or it is gone."""
        found = batch.call(f"Describe{self.operation}s", **{self.member: [name]})[self.member]
        return found[0] if found and found[0].get("status") != "DELETED" else None


ENVIRONMENT = _Kind("compute environment", "computeEnvironments", "computeEnvironment", "ComputeEnvironment")
QUEUE = _Kind("job queue", "jobQueues", "jobQueue", "JobQueue")


class Environment:
    """A compute environment and its queue, both of the queue's name. All methods raise AwsError."""

    def __init__(self, config: AwsHpcConfig, batch: AwsCalls, steps: Steps, *, pause_seconds: float) -> None:
        self._batch = batch
        self._steps = steps
        self._name = config.job_queue
        self._pause_seconds = pause_seconds

    def ensure(self, resources: Fields, service_role: str) -> None:
        """Make both, or have the environment be as wanted, and wait until they are VALID.

        service_role: the ARN of the role that Batch itself acts in.
        """
        queue, found = self._settled(QUEUE), self._settled(ENVIRONMENT)
        what = f"compute environment {self._name}"
        if queue is not None and not _is_ours(queue):
            self._steps.exists(f"job queue {self._name}", NOT_OURS)
            return
        if found is None:
            size = f"{resources['type']}, {_cpus(resources)}"
            self._steps.create(f"{what}: {size}", lambda: self._create(resources, service_role))
        else:
            self._change(found, resources, what)
        if queue is None:
            self._steps.create(f"job queue {self._name}", self._create_queue)
        elif queue["state"] != "ENABLED":  # a teardown was interrupted
            self._steps.change(f"job queue {self._name}: enabled", lambda: self._update(QUEUE, state="ENABLED"))
        else:
            self._exists(QUEUE)

    def show(self) -> None:
        """Say what is there."""
        for kind in (ENVIRONMENT, QUEUE):
            what = f"{kind.words} {self._name}"
            found = kind.describe(self._batch, self._name)
            if found is None:
                self._steps.missing(what)
                continue
            resources = found.get("computeResources")
            more = f", {resources['type']}, {_cpus(resources)}" if resources else ""
            reason = "" if found["status"] == "VALID" else f": {found.get('statusReason')}"
            owner = "" if _is_ours(found) else NOT_OURS
            self._steps.exists(f"{what}: {found['state']}, {found['status']}{reason}{more}", owner)

    def remove(self) -> bool:
        """Remove both, the queue first, as far as they are ours. Returns False when jobs are in the queue."""
        queue = QUEUE.describe(self._batch, self._name)
        if queue is not None and _is_ours(queue) and (jobs := self._jobs()):
            self._steps.keep(f"job queue {self._name}", f"{jobs} jobs are in it: stop their worker manager first")
            return False
        for kind in (QUEUE, ENVIRONMENT):
            what = f"{kind.words} {self._name}"
            found = kind.describe(self._batch, self._name)
            if found is None:
                self._steps.missing(what)
            elif not _is_ours(found):
                self._steps.keep(what, NOT_OURS)
            else:
                self._steps.remove(what, partial(self._remove, kind))
        return True

    def _create(self, resources: Fields, service_role: str) -> None:
        deadline = time.monotonic() + ROLE_SECONDS
        while True:
            try:
                self._batch.call(
                    "CreateComputeEnvironment",
                    computeEnvironmentName=self._name,
                    type="MANAGED",
                    state="ENABLED",
                    computeResources=resources,
                    serviceRole=service_role,
                    tags=TAGS,
                )
                break
            except AwsError as error:
                if not _is_about_roles(error) or time.monotonic() > deadline:
                    raise
                time.sleep(self._pause_seconds)
        self._await_valid(ENVIRONMENT)

    def _change(self, found: Fields, resources: Fields, what: str) -> None:
        current: Fields = found.get("computeResources") or {}
        if not _is_ours(found):
            self._steps.exists(what, NOT_OURS)
        elif current.get("type") != resources["type"]:
            self._steps.keep(what, f"it is {current.get('type')}: to have {resources['type']}, run teardown first")
        elif changes := differences(current, resources):
            parts = ", ".join(f"{name} = {value}" for name, value in changes.items())
            self._steps.change(
                f"{what}: {parts}", lambda: self._update(ENVIRONMENT, state="ENABLED", computeResources=changes)
            )
        elif found["state"] != "ENABLED":
            self._steps.change(f"{what}: enabled", lambda: self._update(ENVIRONMENT, state="ENABLED"))
        else:
            self._exists(ENVIRONMENT)

    def _create_queue(self) -> None:
        order = [{"order": 1, "computeEnvironment": self._name}]
        self._batch.call(
            "CreateJobQueue",
            jobQueueName=self._name,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=order,
            tags=TAGS,
        )
        self._await_valid(QUEUE)

    def _jobs(self) -> int:
        """Return how many jobs have not ended, or 1000 of each state. One may go on from state to state meanwhile."""
        pages = [
            self._batch.call("ListJobs", jobQueue=self._name, jobStatus=status)["jobSummaryList"] for status in ALIVE
        ]
        return len({job["jobId"] for page in pages for job in page})

    def _remove(self, kind: _Kind) -> None:
        found = self._settled(kind)
        if found is None:
            return
        if found["state"] != "DISABLED":
            self._batch.call(f"Update{kind.operation}", **{kind.one: self._name}, state="DISABLED")
            self._await(kind, _is_over, "is still changing")
        self._batch.call(f"Delete{kind.operation}", **{kind.one: self._name})
        self._await(kind, lambda shown: shown is None, "is not removed")

    def _settled(self, kind: _Kind) -> Fields | None:
        """Return it when what an interrupted run has begun with it is over; None when there is none (any more)."""
        if self._steps.dry_run:
            return kind.describe(self._batch, self._name)
        return self._await(kind, _is_over, "is still changing")

    def _update(self, kind: _Kind, **changes: Any) -> None:
        self._batch.call(f"Update{kind.operation}", **{kind.one: self._name}, **changes)
        self._await_valid(kind)

    def _exists(self, kind: _Kind) -> None:
        self._steps.exists(f"{kind.words} {self._name}")
        if not self._steps.dry_run:
            self._await_valid(kind)

    def _await_valid(self, kind: _Kind) -> None:
        self._await(kind, lambda shown: shown is not None and shown["status"] == "VALID", "is not VALID")

    def _await(self, kind: _Kind, fits: Callable[[Fields | None], bool], lack: str) -> Fields | None:
        """Wait until it is as it should be, and return it; None when there is none. Raises AwsError."""
        deadline = time.monotonic() + VALID_SECONDS
        while not fits(shown := kind.describe(self._batch, self._name)):
            status = shown["status"] if shown else "missing"
            if status == "INVALID" or time.monotonic() > deadline:
                reason = (shown or {}).get("statusReason") or "no reason given"
                raise AwsError(f"the {kind.words} {self._name} {lack}: it is {status} ({reason})", "refused")
            time.sleep(self._pause_seconds)
        return shown


def _is_over(shown: Fields | None) -> bool:
    return shown is None or shown["status"] in ("VALID", "INVALID")


def _is_about_roles(error: AwsError) -> bool:
    return "profile" in error.message.lower() or "role" in error.message.lower()


def _is_ours(found: Fields) -> bool:
    return MANAGED_TAG in (found.get("tags") or {})


def _cpus(resources: Fields) -> str:
    return f"up to {resources['maxvCpus']} vCPUs"

"""The compute environment and the job queue as resources. Batch needs seconds to minutes for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.setup import MANAGED_TAG, Account, Change, Fields, Resource
from scaler.worker_manager.aws_hpc.service import ALIVE

VALID_SECONDS = 300.0
"""How long a change may take: seconds on Fargate, minutes when instances must go first."""
TAGS = {MANAGED_TAG: "true"}


class _Changing(Resource):
    """What Batch changes in the background: each step waits until the last change is over, also an interrupted one."""

    words: str
    member: str
    """Its name in requests for one; with an s, in answers."""

    def __init__(self, account: Account, name: str) -> None:
        super().__init__(account, f"{self.words} {name}")
        self._name = name
        self._batch = account.client("batch")
        self._operation = self.member[0].upper() + self.member[1:]

    def describe(self) -> Fields | None:
        found = self._batch.call(f"Describe{self._operation}s", **{f"{self.member}s": [self._name]})[f"{self.member}s"]
        return found[0] if found and found[0].get("status") != "DELETED" else None

    def settled(self) -> Fields | None:
        """Return it when no change is under way; None when it does not exist."""
        return self.describe() if self.account.dry_run else self._await(_is_settled, "is still changing")

    def ensure(self) -> None:
        self.settled()
        super().ensure()

    def exists(self, found: Fields) -> None:
        super().exists(found)
        if not self.account.dry_run and self.is_ours(found):
            self._await_valid()

    def detail(self, found: Fields) -> str:
        resources = found.get("computeResources")
        reason = "" if found["status"] == "VALID" else f": {found.get('statusReason')}"
        return f": {found['state']}, {found['status']}{reason}{f', {_size(resources)}' if resources else ''}"

    def create(self) -> None:
        self.account.when_roles_are_known(self._create)
        self._await_valid()

    def delete(self, _: Fields) -> None:
        settled = self.settled()
        if settled is None:
            return
        if settled["state"] != "DISABLED":
            self._update(state="DISABLED")
            self._await(_is_settled, "is still changing")
        self._batch.call(f"Delete{self._operation}", **{self.member: self._name})
        self._await(lambda shown: shown is None, "is not removed")

    def _create(self) -> None:
        raise NotImplementedError

    def _update(self, **changes: Any) -> None:
        self._batch.call(f"Update{self._operation}", **{self.member: self._name}, **changes)

    def _change(self, text: str, **changes: Any) -> Change:
        def change() -> None:
            self._update(**changes)
            self._await_valid()

        return f"{self.what}: {text}", change

    def _await_valid(self) -> None:
        self._await(lambda shown: shown is not None and shown["status"] == "VALID", "is not VALID")

    def _await(self, fits: Callable[[Fields | None], bool], lack: str) -> Fields | None:
        """Wait until it is as it should be, and return it; None when it does not exist. Raises AwsError."""
        deadline = time.monotonic() + VALID_SECONDS
        while not fits(shown := self.describe()):
            status = shown["status"] if shown else "missing"
            if status == "INVALID" or time.monotonic() > deadline:
                reason = (shown or {}).get("statusReason") or "no reason given"
                raise AwsError(f"the {self.what} {lack}: it is {status} ({reason})", "refused")
            time.sleep(self.account.pause_seconds)
        return shown


class JobQueue(_Changing):
    """The queue; its compute environment has the same name."""

    words = "job queue"
    member = "jobQueue"

    def changes(self, found: Fields) -> Sequence[Change]:
        # One that is disabled is what an interrupted teardown has left.
        return () if found["state"] == "ENABLED" else [self._change("enabled", state="ENABLED")]

    def in_use(self, _: Fields) -> str:
        # A job may go on from state to state between the calls. Each lists 1000 at most.
        pages = [self._batch.call("ListJobs", jobQueue=self._name, jobStatus=status) for status in ALIVE]
        jobs = len({job["jobId"] for page in pages for job in page["jobSummaryList"]})
        return f"{jobs} jobs are in it: stop their worker manager first" if jobs else ""

    def _create(self) -> None:
        order = [{"order": 1, "computeEnvironment": self._name}]
        self._batch.call(
            "CreateJobQueue",
            jobQueueName=self._name,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=order,
            tags=TAGS,
        )


class ComputeEnvironment(_Changing):
    """The compute environment of a queue; one whose queue is not ours is left alone."""

    words = "compute environment"
    member = "computeEnvironment"

    def __init__(
        self,
        account: Account,
        name: str,
        queue: JobQueue,
        resources: Callable[[], Fields],
        service_role: Callable[[], str],
    ) -> None:
        """resources: its compute resources. service_role: the ARN of the role that Batch itself acts in."""
        super().__init__(account, name)
        self._queue = queue
        self._resources = resources
        self._service_role = service_role

    def ensure(self) -> None:
        queue = self._queue.settled()
        if queue is None or self._queue.is_ours(queue):
            self.creation = f"{self.what}: {_size(self._resources())}"
            super().ensure()

    def exists(self, found: Fields) -> None:
        wanted, current = self._resources()["type"], (found.get("computeResources") or {}).get("type")
        if self.is_ours(found) and current != wanted:
            self.account.line("kept", self.what, f"it is {current}: to have {wanted}, run teardown first")
        else:
            super().exists(found)

    def changes(self, found: Fields) -> Sequence[Change]:
        wanted, current = self._resources(), found.get("computeResources") or {}
        if current.get("type") != wanted["type"]:
            return ()
        if changed := differences(current, wanted):
            text = ", ".join(f"{name} = {value}" for name, value in changed.items())
            return [self._change(text, state="ENABLED", computeResources=changed)]
        return () if found["state"] == "ENABLED" else [self._change("enabled", state="ENABLED")]

    def _create(self) -> None:
        self._batch.call(
            "CreateComputeEnvironment",
            computeEnvironmentName=self._name,
            type="MANAGED",
            state="ENABLED",
            computeResources=self._resources(),
            serviceRole=self._service_role(),
            tags=TAGS,
        )


def differences(current: Mapping[str, Any], wanted: Fields) -> Fields:
    """Return the compute resources to change; what the service has beyond the wanted ones stays."""
    return {
        name: value
        for name, value in wanted.items()
        if name in ("maxvCpus", "subnets", "securityGroupIds") and _unordered(current.get(name)) != _unordered(value)
    }


def _unordered(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value


def _is_settled(shown: Fields | None) -> bool:
    return shown is None or shown["status"] in ("VALID", "INVALID")


def _size(resources: Fields) -> str:
    return f"{resources['type']}, up to {resources['maxvCpus']} vCPUs"

"""The compute environment and the job queue as resources. Batch needs seconds to minutes for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws.setup import MANAGED, Account, Change, Fields, Resource, is_ours
from scaler.worker_manager.aws_hpc.service import ALIVE

VALID_SECONDS = 300.0
"""How long a change may take: seconds on Fargate, minutes when instances must go first."""


@dataclass(frozen=True, slots=True)
class _Changing:
    """What Batch changes in the background: each step waits until the last change is over, also an interrupted one."""

    account: Account
    words: str
    member: str
    """Its name in requests for one; with an s, in those for several."""
    name: str

    @property
    def what(self) -> str:
        return f"{self.words} {self.name}"

    def call(self, verb: str, name: Mapping[str, Any], plural: str = "", **parameters: Any) -> Fields:
        operation = f"{verb}{self.member[0].upper()}{self.member[1:]}{plural}"
        return self.account.call("batch", operation, **name, **parameters)

    def describe(self) -> Fields | None:
        several = f"{self.member}s"
        found = self.call("Describe", {several: [self.name]}, "s")[several]
        return found[0] if found and found[0].get("status") != "DELETED" else None

    def settle(self) -> Fields | None:
        """Return it when no change is under way; None when it does not exist."""
        return self.describe() if self.account.dry_run else self._await(_is_settled, "is still changing")

    def update(self, **changes: Any) -> None:
        self.call("Update", {self.member: self.name}, **changes)

    def change(self, text: str, **changes: Any) -> Change:
        def change() -> None:
            self.update(**changes)
            self.await_valid()

        return f"{self.what}: {text}", change

    def await_valid(self) -> None:
        self._await(lambda shown: shown is not None and shown["status"] == "VALID", "is not VALID")

    def resource(self, create: Callable[[], object], **more: Any) -> Resource:
        def create_and_wait() -> None:
            self.account.when_roles_are_known(create)
            self.await_valid()

        return Resource(
            account=self.account,
            what=self.what,
            describe=self.describe,
            create=create_and_wait,
            delete=self._delete,
            settle=self.settle,
            confirm=self.await_valid,
            detail=_detail,
            **more,
        )

    def _delete(self, _: Fields) -> None:
        settled = self.settle()
        if settled is None:
            return
        if settled["state"] != "DISABLED":
            self.update(state="DISABLED")
            self._await(_is_settled, "is still changing")
        self.call("Delete", {self.member: self.name})
        self._await(lambda shown: shown is None, "is not removed")

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


def environment_and_queue(
    account: Account, name: str, resources: Callable[[], Fields], service_role: Callable[[], str]
) -> tuple[Resource, Resource]:
    """Return a compute environment and its queue, of one name.

    resources: the compute resources. service_role: the ARN of the role that Batch itself acts in. An environment whose
    queue is not ours is left alone.
    """
    environment = _Changing(account, "compute environment", "computeEnvironment", name)
    queue = _Changing(account, "job queue", "jobQueue", name)

    def create_environment() -> None:
        environment.call(
            "Create",
            {"computeEnvironmentName": name},
            type="MANAGED",
            state="ENABLED",
            computeResources=resources(),
            serviceRole=service_role(),
            tags=MANAGED,
        )

    def create_queue() -> None:
        order = [{"order": 1, "computeEnvironment": name}]
        names = {"jobQueueName": name}
        queue.call("Create", names, state="ENABLED", priority=1, computeEnvironmentOrder=order, tags=MANAGED)

    def conflict(found: Fields) -> str:
        wanted, current = resources()["type"], (found.get("computeResources") or {}).get("type")
        return "" if current == wanted else f"it is {current}: to have {wanted}, run teardown first"

    def changes(found: Fields) -> Sequence[Change]:
        if changed := differences(found.get("computeResources") or {}, resources()):
            text = ", ".join(f"{name} = {value}" for name, value in changed.items())
            return [environment.change(text, state="ENABLED", computeResources=changed)]
        return enabled(environment, found)

    def enabled(thing: _Changing, found: Fields) -> Sequence[Change]:
        # One that is disabled is what an interrupted teardown has left.
        return [] if found["state"] == "ENABLED" else [thing.change("enabled", state="ENABLED")]

    def jobs_in_queue(_: Fields) -> str:
        # A job may go on from state to state between the calls. Each lists 1000 at most.
        pages = [account.call("batch", "ListJobs", jobQueue=name, jobStatus=status) for status in ALIVE]
        jobs = len({job["jobId"] for page in pages for job in page["jobSummaryList"]})
        return f"{jobs} jobs are in it: stop their worker manager first" if jobs else ""

    def is_wanted() -> bool:
        found = queue.settle()
        return found is None or is_ours(found)

    return (
        environment.resource(
            create_environment,
            creation=lambda: f"{environment.what}: {_size(resources())}",
            conflict=conflict,
            changes=changes,
            is_wanted=is_wanted,
        ),
        queue.resource(create_queue, changes=lambda found: enabled(queue, found), in_use=jobs_in_queue),
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


def _detail(found: Fields) -> str:
    resources = found.get("computeResources")
    reason = "" if found["status"] == "VALID" else f": {found.get('statusReason')}"
    return f": {found['state']}, {found['status']}{reason}{f', {_size(resources)}' if resources else ''}"


def _size(resources: Fields) -> str:
    return f"{resources['type']}, up to {resources['maxvCpus']} vCPUs"

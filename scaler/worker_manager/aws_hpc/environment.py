"""The compute environment and the job queue as resources. Each change takes seconds to minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from scaler.worker_manager.aws.calls import AwsError, Fields
from scaler.worker_manager.aws.setup import MANAGED, Account, Change, Resource, is_ours
from scaler.worker_manager.aws_hpc.backend import ALIVE

CHANGEABLE = ("maxvCpus", "subnets", "securityGroupIds")
VALID_SECONDS = 300.0  # time limit of a change: seconds on Fargate, minutes if instances must end first


class _Changing(Resource):
    """A resource with slow changes: each step waits for the previous change, even by an interrupted run."""

    service = "batch"
    member: ClassVar[str]  # its name in requests; plural with an s

    def ask(self, verb: str, *, plural: str = "", **parameters: Any) -> Fields:
        return self.call(f"{verb}{self.member[0].upper()}{self.member[1:]}{plural}", **parameters)

    def describe(self) -> Fields | None:
        several = f"{self.member}s"
        found = self.ask("Describe", plural="s", **{several: [self.name]})[several]
        return found[0] if found and found[0].get("status") != "DELETED" else None

    def settle(self) -> Fields | None:
        return self.describe() if self.account.dry_run else self._await(_is_settled, "is still changing")

    def await_valid(self) -> None:
        self._await(lambda shown: shown is not None and shown["status"] == "VALID", "is not VALID")

    def ensure(self) -> None:
        self.settle()
        super().ensure()
        found = None if self.account.dry_run else self.describe()
        if found is not None and is_ours(found):
            self.await_valid()

    def made(self, **parameters: Any) -> None:
        parameters |= {f"{self.member}Name": self.name, "state": "ENABLED", "tags": MANAGED}
        self.account.when_roles_are_known(lambda: self.ask("Create", **parameters))
        self.await_valid()

    def changes(self, found: Fields) -> Sequence[Change]:
        # An interrupted teardown leaves a disabled one.
        return [] if found["state"] == "ENABLED" else [self.change("enabled")]

    def change(self, text: str, **changes: Any) -> Change:
        def change() -> None:
            self.ask("Update", **{self.member: self.name}, state="ENABLED", **changes)
            self.await_valid()

        return f"{self.what}: {text}", change

    def delete(self, _: Fields) -> None:
        settled, name = self.settle(), {self.member: self.name}
        if settled is None:
            return
        if settled["state"] != "DISABLED":
            self.ask("Update", **name, state="DISABLED")
            self.settle()
        self.ask("Delete", **name)
        self._await(lambda shown: shown is None, "is not removed")

    def detail(self, found: Fields) -> str:
        resources = found.get("computeResources")
        reason = "" if found["status"] == "VALID" else f": {found.get('statusReason')}"
        return f": {found['state']}, {found['status']}{reason}{f', {_size(resources)}' if resources else ''}"

    def _await(self, fits: Callable[[Fields | None], bool], lack: str) -> Fields | None:
        deadline = time.monotonic() + VALID_SECONDS
        while not fits(shown := self.describe()):
            status = shown["status"] if shown else "missing"
            if status == "INVALID" or time.monotonic() > deadline:
                reason = (shown or {}).get("statusReason") or "no reason given"
                raise AwsError(f"the {self.what} {lack}: it is {status} ({reason})", "refused")
            self.account.pause()
        return shown


class QueueResource(_Changing):
    kind, member = "job queue", "jobQueue"

    def create(self) -> None:
        self.made(priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": self.name}])

    def in_use(self, _: Fields) -> str:
        # A job may change state between the calls. Each call lists at most 1000.
        pages = [self.call("ListJobs", jobQueue=self.name, jobStatus=status) for status in ALIVE]
        jobs = len({job["jobId"] for page in pages for job in page["jobSummaryList"]})
        return f"it has jobs ({jobs}): stop their worker manager first" if jobs else ""


class EnvironmentResource(_Changing):
    """The queue's compute environment. Not touched if the queue is not ours."""

    kind, member = "compute environment", "computeEnvironment"

    def __init__(
        self, account: Account, queue: QueueResource, resources: Callable[[], Fields], service_role: Callable[[], str]
    ) -> None:
        super().__init__(account, queue.name)
        self._queue, self._resources, self._service_role = queue, resources, service_role

    def ensure(self) -> None:
        queue = self._queue.settle()
        if queue is not None and not is_ours(queue):
            return
        found, wanted = self.settle(), self._resources()["type"]
        current = (found or {}).get("computeResources", {}).get("type")
        if found is not None and is_ours(found) and current != wanted:
            self.account.line("kept", self.what, f"it is {current}: to have {wanted}, run teardown first")
        else:
            super().ensure()

    def creation(self) -> str:
        return f"{self.what}: {_size(self._resources())}"

    def create(self) -> None:
        self.made(type="MANAGED", computeResources=self._resources(), serviceRole=self._service_role())

    def changes(self, found: Fields) -> Sequence[Change]:
        current = found.get("computeResources") or {}
        # Keep additional values in the service.
        changed = {
            name: wish
            for name, wish in self._resources().items()
            if name in CHANGEABLE and _unordered(current.get(name)) != _unordered(wish)
        }
        if not changed:
            return super().changes(found)
        text = ", ".join(f"{name} = {value}" for name, value in changed.items())
        return [self.change(text, computeResources=changed)]


def _unordered(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value


def _is_settled(shown: Fields | None) -> bool:
    return shown is None or shown["status"] in ("VALID", "INVALID")


def _size(resources: Fields) -> str:
    return f"{resources['type']}, up to {resources['maxvCpus']} vCPUs"

"""ECS as a state machine from requests and time to answers and container commands. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scaler.testing.aws.ecs.definitions import TaskDefinitions
from scaler.testing.aws.ecs.rules import (
    MAX_DESCRIBED,
    STARTED_BY,
    EcsRates,
    EcsTimes,
    Fields,
    RateLimit,
    checked_tags,
    invalid,
    page,
    tag_pairs,
    throttled,
)
from scaler.testing.aws.ecs.run import EcsClusters, read_run
from scaler.testing.aws.ecs.task import Command, EcsTask, Running, StartTask, Stopped, shown_task
from scaler.testing.aws.faults import Partial, ServiceError

TOKEN_SECONDS = 24 * 3600
"""How long a clientToken is remembered."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    request: Fields
    arns: list[str]
    failures: list[Fields]
    at: float


class EcsCore:
    """ECS in one account and region. Times are monotonic Unix seconds.

    Invariant: `alive` contains exactly the tasks that are not STOPPED.
    """

    def __init__(
        self, arn_of: Callable[[str], str], new_id: Callable[[], str], times: EcsTimes, rates: EcsRates
    ) -> None:
        """arn_of: makes the ARN of a resource name. new_id: returns 32 unique hexadecimal digits."""
        self.times = times
        self.rates = rates
        self.alive: dict[str, EcsTask] = {}
        """By ARN, in start order."""
        self._arn_of = arn_of
        self._new_id = new_id
        self._tasks: dict[str, EcsTask] = {}
        self._clusters = EcsClusters(arn_of, self._count_tasks)
        self._definitions = TaskDefinitions(arn_of)
        self._tokens: dict[str, _Remembered] = {}
        self._run_calls = RateLimit(rates.run_calls_at_once)
        self._launches = RateLimit(rates.launches_at_once)
        self._failing_starts: list[str] = []
        self._commands: list[Command] = []
        clusters, definitions = self._clusters, self._definitions
        self._operations: dict[str, Callable[[Fields, float], Fields]] = {
            "StopTask": self._stop,
            "ListTasks": self._list,
            "DescribeTasks": self._describe,
            "RegisterTaskDefinition": definitions.register,
            "DescribeTaskDefinition": lambda request, _: definitions.describe(request),
            "DeregisterTaskDefinition": definitions.deregister,
            "ListTaskDefinitions": lambda request, _: definitions.list(request),
            "CreateCluster": lambda request, _: clusters.create(request),
            "DescribeClusters": lambda request, _: clusters.describe(request),
            "DeleteCluster": lambda request, _: clusters.delete(request),
            "PutClusterCapacityProviders": lambda request, _: clusters.put_providers(request),
            "TagResource": self._tag,
            "ListTagsForResource": lambda request, _: {"tags": tag_pairs(self._tags(request))},
        }
        """All operations but RunTask, which a fault may serve partially."""

    def call(self, operation: str, request: Fields, now: float, partial: Partial | None = None) -> Fields:
        if operation == "RunTask":
            return self._run(request, now, partial)
        if operation not in self._operations:
            raise ServiceError("UnknownOperationException", f"The emulator has no ECS operation {operation}.")
        return self._operations[operation](request, now)

    def step(self, now: float) -> list[Command]:
        commands, self._commands = self._commands, []
        for task in list(self.alive.values()):
            while task.due <= now:
                for command in task.advance(now, self.times):
                    if isinstance(command, StartTask) and self._failing_starts:
                        task.failed_to_start(self._failing_starts.pop(0), now, self.times)
                    else:
                        commands.append(command)
            if isinstance(task.phase, Stopped):
                del self.alive[task.arn]
        self._forget(now)
        return commands

    def due(self) -> float | None:
        """Return the time of the next step, or None if only events cause changes."""
        due = -math.inf if self._commands else min((task.due for task in self.alive.values()), default=math.inf)
        return None if due == math.inf else due

    def started(self, arn: str, now: float) -> None:
        self._tasks[arn].started(now, self.times)

    def start_failed(self, arn: str, reason: str, now: float) -> None:
        self._tasks[arn].failed_to_start(reason, now, self.times)

    def exited(self, arn: str, code: int, reason: str, now: float) -> None:
        self._tasks[arn].exited(code, reason, now, self.times)

    def spot_notice(self, name: str, now: float) -> None:
        """Reclaim the capacity of a task on FARGATE_SPOT. Raises LookupError, and ValueError for other tasks."""
        task = self.find(name)
        if task.order.provider != "FARGATE_SPOT":
            raise ValueError(f"{name} is not on FARGATE_SPOT, so it gets no spot notice")
        self._commands += task.give_notice(now, self.times)

    def fail_starts(self, times: int, reason: str) -> None:
        self._failing_starts += [reason] * times

    def find(self, name: str) -> EcsTask:
        if name in self._tasks:
            return self._tasks[name]
        task_id = name.rpartition("/")[2]
        for task in self._tasks.values():
            if task.arn.endswith(f"/{task_id}"):
                return task
        raise LookupError(f"there is no task {name}")

    def tasks(self) -> Iterable[EcsTask]:
        return self._tasks.values()

    def _run(self, request: Fields, now: float, partial: Partial | None) -> Fields:
        rates = self.rates
        if not self._run_calls.take(1, now, rates.run_calls_per_second, rates.run_calls_at_once):
            raise throttled()
        token = request.get("clientToken")
        known = self._tokens.get(token) if token else None
        if known is not None:
            if known.request != request:
                raise ServiceError(
                    "ConflictException", "The provided clientToken is already in use with a different RunTask request."
                )
            return self._ran(known)
        wanted, tags = read_run(request, self._clusters, self._definitions)
        orders = wanted if partial is None else wanted[: partial.count]
        if not self._launches.take(len(orders), now, rates.launches_per_second, rates.launches_at_once):
            raise throttled()
        arns = []
        for order in orders:
            arn = self._arn_of(f"task/{order.cluster_arn.rpartition('/')[2]}/{self._new_id()}")
            self._tasks[arn] = self.alive[arn] = EcsTask(arn, order, dict(tags), now, self.times)
            arns.append(arn)
        failures = [{"reason": partial.reason} for _ in wanted[len(orders) :]] if partial is not None else []
        remembered = _Remembered(request, arns, failures, now)
        if token:
            self._tokens[token] = remembered
        return self._ran(remembered)

    def _ran(self, remembered: _Remembered) -> Fields:
        tasks = [self._tasks[arn] for arn in remembered.arns if arn in self._tasks]
        return {"tasks": [shown_task(task, with_tags=True) for task in tasks], "failures": remembered.failures}

    def _stop(self, request: Fields, now: float) -> Fields:
        cluster = self._clusters.find(request.get("cluster"))
        task = self._get(cluster.arn, request.get("task") or "")
        if task is None:
            raise invalid("The referenced task was not found.")
        task.ask_to_stop("UserInitiated", request.get("reason") or "Task stopped by user", now, self.times)
        return {"task": shown_task(task, with_tags=False)}

    def _list(self, request: Fields, now: float) -> Fields:
        cluster = self._clusters.find(request.get("cluster"))
        started_by, family = request.get("startedBy"), request.get("family")
        if started_by is not None:
            if any(request.get(name) for name in ("family", "serviceName", "containerInstance", "launchType")):
                raise invalid("startedBy must be the only filter.")
            if not STARTED_BY.fullmatch(started_by):
                raise invalid("startedBy is not valid.")
        desired = request.get("desiredStatus") or "RUNNING"
        if desired not in ("RUNNING", "PENDING", "STOPPED"):
            raise invalid(f"Invalid desired status {desired}.")
        arns = [
            task.arn
            for task in self._tasks.values()
            if task.order.cluster_arn == cluster.arn
            and desired == ("RUNNING" if task.stop is None else "STOPPED")
            and started_by in (None, task.order.started_by)
            and family in (None, task.order.definition.body["family"])
            and request.get("launchType") in (None, "FARGATE")
            and not (request.get("serviceName") or request.get("containerInstance"))
            and self._is_visible(task, now)
        ]
        listed, more = page(arns, request)
        return {"taskArns": listed, **more}

    def _describe(self, request: Fields, now: float) -> Fields:
        cluster = self._clusters.find(request.get("cluster"))
        names = request.get("tasks") or []
        if not 1 <= len(names) <= MAX_DESCRIBED:
            raise invalid(f"Tasks must have 1 to {MAX_DESCRIBED} items.")
        with_tags = "TAGS" in (request.get("include") or ())
        tasks, failures = [], []
        for name in names:
            task = self._get(cluster.arn, name)
            if task is not None and self._is_visible(task, now):
                tasks.append(shown_task(task, with_tags=with_tags))
            else:
                failures.append({"arn": self._task_arn(cluster.arn, name), "reason": "MISSING"})
        return {"tasks": tasks, "failures": failures}

    def _get(self, cluster_arn: str, name: str) -> EcsTask | None:
        task = self._tasks.get(self._task_arn(cluster_arn, name))
        return task if task is not None and task.order.cluster_arn == cluster_arn else None

    def _task_arn(self, cluster_arn: str, name: str) -> str:
        return name if ":" in name else self._arn_of(f"task/{cluster_arn.rpartition('/')[2]}/{name}")

    def _is_visible(self, task: EcsTask, now: float) -> bool:
        return now >= task.created_at + self.times.hidden

    def _tag(self, request: Fields, _: float) -> Fields:
        self._tags(request).update(checked_tags(request.get("tags")))
        return {}

    def _tags(self, request: Fields) -> dict[str, str]:
        arn = request.get("resourceArn") or ""
        if arn in self._tasks:
            return self._tasks[arn].tags
        if ":cluster/" in arn:
            return self._clusters.find(arn).tags
        definition = self._definitions.find(arn) if ":task-definition/" in arn else None
        if definition is None:
            raise invalid("The specified resource was not found.")
        return definition.tags

    def _count_tasks(self, cluster_arn: str) -> tuple[int, int]:
        phases = [task.phase for task in self.alive.values() if task.order.cluster_arn == cluster_arn]
        running = sum(isinstance(phase, Running) for phase in phases)
        return running, len(phases) - running

    def _forget(self, now: float) -> None:
        for arn, task in list(self._tasks.items()):
            if isinstance(task.phase, Stopped) and task.phase.at + self.times.stopped_visible <= now:
                del self._tasks[arn]
        for token, remembered in list(self._tokens.items()):
            if remembered.at + TOKEN_SECONDS <= now:
                del self._tokens[token]

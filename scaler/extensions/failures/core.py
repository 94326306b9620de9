"""Keeps recent failures: how each task ended, and everything needed to replay it. Pure.

Replay data: the spec, functions, arguments, and inputs as sent to the worker. Their stored objects are *held* until the
owner disconnects.

Limited by MAX_FAILURES and by bytes. The oldest failures are dropped first, and held objects before failures.
Invariant: an object is held exactly while a failure lists it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scaler.config.setting import SettingsModel
from scaler.extensions.interface import SchedulerPart
from scaler.monitor.messages import FailedTask, ReadFailure
from scaler.protocol.messages import is_stored, stored_bytes
from scaler.scheduler.core.changes import TaskFailed, TasksEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, HoldObjects
from scaler.scheduler.core.rooms import UNKNOWN, Now
from scaler.scheduler.core.state import ClientRecord

MAX_FAILURES = 1_000
MAX_FAILURE_BYTES = 64 * 1024 * 1024
"""Maximum total bytes of exceptions, functions, arguments, and inputs."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Maximum total bytes of held objects."""
_RECORD_BYTES = 1024


@dataclass(slots=True, eq=False)
class Failure:
    """ended: the task as a batch of one. ran: its replay data."""

    ended: TasksEnded
    ran: FailedTask
    size_bytes: int
    held: list[bytes] = field(default_factory=list)


class Failures(SchedulerPart):
    changes = (TaskFailed,)
    questions = (ReadFailure,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self.held_bytes = 0
        self._kept: OrderedDict[bytes, Failure] = OrderedDict()
        self._held: dict[bytes, int] = {}
        """Sizes of held objects."""
        self._uses: Counter[bytes] = Counter()
        """Number of failures that list an object."""
        self._newly_held: list[bytes] = []
        self._released: list[bytes] = []
        self._size_bytes = 0

    def remembered(self) -> Failures:
        return self

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        failure = self._kept.get(task)
        return (failure.ended, 0) if failure is not None else None

    def latest(self, limit: int) -> Iterable[tuple[TasksEnded, int]]:
        return [(failure.ended, 0) for failure in self._kept.values()][-limit:]

    def on_changes(self, changes: Sequence[TaskFailed], _now: Now) -> Iterable[Command]:
        for change in changes:
            self._add(change)
        held, self._newly_held, released, self._released = self._newly_held, [], self._released, []
        return [HoldObjects(held, released)] if held or released else []

    def _add(self, failed: TaskFailed) -> None:
        ended, [task] = failed.ended, failed.ended.ids
        ran = FailedTask(task, [], [], "it never started, or its client disconnected: submit it again")
        if failed.run is not None:
            ran = FailedTask(task, failed.functions, [failed.run])
        size = _RECORD_BYTES + len(ended.failure_records[0].payload) + sum(map(len, _payloads(ran)))
        if task in self._kept:
            self._drop(task)
        self._kept[task] = failure = Failure(ended, ran, size)
        self._size_bytes += size
        self._hold(failure)
        while len(self._kept) > MAX_FAILURES or self._size_bytes > MAX_FAILURE_BYTES:
            self._drop(next(iter(self._kept)))

    def on_question(self, question: ReadFailure, client: ClientRecord, state: ClusterState) -> FailedTask:
        task = question.task
        if not state.may_see(client, task):
            why = UNKNOWN
        elif task in self._kept:
            return self._kept[task].ran
        else:
            why = state.rooms.explainer.why(task) or "the scheduler has no failure of this task"
        return FailedTask(task, [], [], f"{why}; only a task that ran and failed can")

    def _hold(self, failure: Failure) -> None:
        sizes: dict[bytes, int] = {}
        for payload in filter(is_stored, _payloads(failure.ran)):
            identifier, known_bytes = payload[1:17], self.cluster.rooms.stores.size_of(payload[1:17])
            sizes[identifier] = max(sizes.get(identifier, 0), stored_bytes(payload), known_bytes)
        for identifier, size_bytes in sizes.items():
            if identifier not in self._held:
                if size_bytes > MAX_HELD_BYTES:
                    continue
                self._held[identifier] = size_bytes
                self.held_bytes += size_bytes
                self._newly_held.append(identifier)
            self._uses[identifier] += 1
            failure.held.append(identifier)
        for each in self._kept.values():
            if self.held_bytes <= MAX_HELD_BYTES:
                break
            self._release(each)

    def _release(self, failure: Failure) -> None:
        for identifier in failure.held:
            self._uses[identifier] -= 1
            if not self._uses[identifier]:
                del self._uses[identifier]
                self.held_bytes -= self._held.pop(identifier)
                self._released.append(identifier)
        failure.held.clear()

    def _drop(self, task: bytes) -> None:
        failure = self._kept.pop(task)
        self._size_bytes -= failure.size_bytes
        self._release(failure)


def _payloads(ran: FailedTask) -> list[bytes]:
    functions = [payload for _, payload in ran.functions]
    return functions + [each for run in ran.runs for each in (*run.payloads, *run.inputs[0])]

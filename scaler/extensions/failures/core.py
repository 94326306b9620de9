"""Keeps recent failures: how each task ended, and everything needed to replay it. Pure.

For a replay by another client: the spec, functions, arguments, and inputs as sent to the worker. Objects in the storage
are kept under an alias (*pin*), because their owner may leave.

Limited by MAX_FAILURES and by bytes. The oldest failures are dropped first, and pins before failures. Invariant: an
object has a pin exactly while a failure lists it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from scaler.config.setting import SettingsModel
from scaler.extensions.interface import SchedulerPart
from scaler.ids import SHARED_OWNER
from scaler.protocol.messages import FailedTask, LinkObject, ReadFailure, is_stored, stored_reference
from scaler.scheduler.core.changes import ObjectLinked, TaskFailed, TasksEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import AliasObjects, Command
from scaler.scheduler.core.explain import UNKNOWN, explain
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord

MAX_FAILURES = 1_000
MAX_FAILURE_BYTES = 64 * 1024 * 1024
"""Bytes of exceptions, functions, arguments, and inputs, over all failures."""
MAX_PINNED_BYTES = 256 * 1024 * 1024
"""Bytes of pinned objects; the storage reports the size with each link."""
_RECORD_BYTES = 1024


@dataclass(slots=True, eq=False)
class Failure:
    """ended: the task as a batch of one. ran: its replay data, with unpinned references."""

    ended: TasksEnded
    ran: FailedTask
    size_bytes: int
    pinned: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Pin:
    name: bytes
    size_bytes: int = 0
    uses: int = 0


class Failures(SchedulerPart):
    changes = (TaskFailed, ObjectLinked)
    questions = (ReadFailure,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self.pinned_bytes = 0
        self._links: list[LinkObject] = []
        self._dropped: list[bytes] = []
        self._kept: OrderedDict[bytes, Failure] = OrderedDict()
        self._pins: dict[bytes, _Pin] = {}
        self._linking: dict[int, _Pin] = {}
        self._number = 0
        self._size_bytes = 0

    def remembered(self) -> Failures:
        return self

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        failure = self._kept.get(task)
        return (failure.ended, 0) if failure is not None else None

    def latest(self, limit: int) -> Iterable[tuple[TasksEnded, int]]:
        return [(failure.ended, 0) for failure in self._kept.values()][-limit:]

    def on_changes(self, changes: Sequence[TaskFailed | ObjectLinked], _now: Now) -> Iterable[Command]:
        for change in changes:
            if isinstance(change, TaskFailed):
                self._add(change)
            else:
                self._linked(*change)
        links, self._links, dropped, self._dropped = self._links, [], self._dropped, []
        return [AliasObjects(links, dropped)] if links or dropped else []

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
        self._pin(failure)
        while len(self._kept) > MAX_FAILURES or self._size_bytes > MAX_FAILURE_BYTES:
            self._drop(next(iter(self._kept)))

    def on_question(self, question: ReadFailure, client: ClientRecord, state: ClusterState) -> FailedTask:
        task = question.task
        if not state.may_see(client, task):
            why = UNKNOWN
        elif task in self._kept:
            return self._what_ran(self._kept[task])
        else:
            why = explain(state, task, state.now)
        return FailedTask(task, [], [], f"{why}; only a task that ran and failed can")

    def _what_ran(self, failure: Failure) -> FailedTask:
        ran, pinned = failure.ran, self._pinned
        runs = [
            replace(run, payloads=[*map(pinned, run.payloads)], inputs=[tuple(map(pinned, run.inputs[0]))])
            for run in ran.runs
        ]
        return replace(ran, functions=[(each, pinned(payload)) for each, payload in ran.functions], runs=runs)

    # -- objects in the storage

    def _pin(self, failure: Failure) -> None:
        for target in {each[1:17] for each in _payloads(failure.ran) if is_stored(each)}:
            pin = self._pins.get(target)
            if pin is None:
                self._number += 1
                # A new alias each time, since a forgotten one cannot be reused.
                digest = blake2b(self._number.to_bytes(8, "big"), key=self.cluster.secret, digest_size=8).digest()
                name = SHARED_OWNER + digest
                pin = self._pins[target] = self._linking[self._number] = _Pin(name)
                self._links.append(LinkObject(self._number, name, target))
            pin.uses += 1
            failure.pinned.append(target)

    def _linked(self, number: int, size_bytes: int) -> None:
        """Record the storage's answer to a link: the object's size, or 0 if the object is gone."""
        pin = self._linking.pop(number, None)  # a restarted storage may answer twice
        if pin is None or not pin.uses:
            return
        pin.size_bytes = size_bytes
        self.pinned_bytes += size_bytes
        for failure in self._kept.values():
            if self.pinned_bytes <= MAX_PINNED_BYTES:
                break
            if size_bytes <= MAX_PINNED_BYTES or any(self._pins[target] is pin for target in failure.pinned):
                self._unpin(failure)

    def _unpin(self, failure: Failure) -> None:
        for target in failure.pinned:
            pin = self._pins[target]
            pin.uses -= 1
            if not pin.uses:
                del self._pins[target]
                self.pinned_bytes -= pin.size_bytes
                self._dropped.append(pin.name)
        failure.pinned.clear()

    def _pinned(self, payload: bytes) -> bytes:
        pin = self._pins.get(payload[1:17]) if is_stored(payload) else None
        return payload if pin is None else stored_reference(pin.name, pin.size_bytes)

    def check(self) -> None:
        listed = Counter(target for failure in self._kept.values() for target in failure.pinned)
        assert listed == {target: pin.uses for target, pin in self._pins.items()}, "pins"
        assert self.pinned_bytes == sum(pin.size_bytes for pin in self._pins.values()) <= MAX_PINNED_BYTES
        assert self._size_bytes == sum(failure.size_bytes for failure in self._kept.values()) <= MAX_FAILURE_BYTES

    def _drop(self, task: bytes) -> None:
        failure = self._kept.pop(task)
        self._size_bytes -= failure.size_bytes
        self._unpin(failure)


def _payloads(ran: FailedTask) -> list[bytes]:
    functions = [payload for _, payload in ran.functions]
    return functions + [each for run in ran.runs for each in (*run.payloads, *run.inputs[0])]

"""Recent failures: how each task ended, its output, and everything needed to replay it.

For a replay by another client: the spec, functions, arguments, and inputs as sent to the worker. Objects in the storage
are kept under an alias (*pin*), because their owner may leave.

Limited by MAX_FAILURES and by bytes. The oldest failures are dropped first, and pins before failures. Invariant: an
object has a pin exactly while a failure lists it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from scaler.ids import SHARED_OWNER
from scaler.protocol.messages import FailedTask, LinkObject, RunGroup, TaskLog, is_stored, stored_reference
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.logs import Logs
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.state import Task

MAX_FAILURES = 1_000
MAX_FAILURE_BYTES = 64 * 1024 * 1024
"""Bytes of exceptions, functions, arguments, and inputs, over all failures. Output is limited by `Logs`."""
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


class Failures:
    """links: requests for the storage; the caller sends them and clears the list."""

    def __init__(self, objects: ObjectTable, secret: bytes = b"") -> None:
        """secret: derives unguessable aliases. Replays and tests need none."""
        self._secret = secret
        self.links: list[LinkObject] = []
        self.logs = Logs()
        self.pinned_bytes = 0
        self._objects = objects
        self._kept: OrderedDict[bytes, Failure] = OrderedDict()
        self._pins: dict[bytes, _Pin] = {}
        self._linking: dict[int, _Pin] = {}
        self._number = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, task: bytes) -> bool:
        return task in self._kept

    def __iter__(self) -> Iterator[TasksEnded]:
        return (failure.ended for failure in self._kept.values())

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        failure = self._kept.get(task)
        return (failure.ended, 0) if failure is not None else None

    def add(self, task: Task, ended: TasksEnded, inputs: Sequence[bytes] | None, printed: Logs) -> None:
        """Keep a failed task and its output. inputs: None if the task never started."""
        ran = FailedTask(task.id, [], [], "it never started, or its client had left: submit it again")
        if inputs is not None:
            spec = task.group.spec
            functions = [(each, self._objects.functions[each].payload) for each in spec.registered]
            run = RunGroup(spec, [task.id], [task.attempt], [task.payload], [tuple(inputs)])
            ran = FailedTask(task.id, functions, [run])
        size = _RECORD_BYTES + len(ended.failure_records[0].payload) + sum(map(len, _payloads(ran)))
        if task.id in self._kept:
            self._drop(task.id)
        self._kept[task.id] = failure = Failure(ended, ran, size)
        self._size_bytes += size
        printed.move(task.id, self.logs)
        self._pin(failure)
        while len(self._kept) > MAX_FAILURES or self._size_bytes > MAX_FAILURE_BYTES:
            self._drop(next(iter(self._kept)))

    def log(self, task: bytes) -> TaskLog:
        log = self.logs.read(task)
        log.traceback = self._kept[task].ended.failure(0).traceback.encode("utf-8", "replace")
        return log

    def what_ran(self, task: bytes) -> FailedTask:
        ran, pinned = self._kept[task].ran, self._pinned
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
                digest = blake2b(self._number.to_bytes(8, "big"), key=self._secret, digest_size=8).digest()
                name = SHARED_OWNER + digest
                pin = self._pins[target] = self._linking[self._number] = _Pin(name)
                self.links.append(LinkObject(self._number, name, target))
            pin.uses += 1
            failure.pinned.append(target)

    def linked(self, number: int, size_bytes: int) -> None:
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
                self._objects.forgotten.append(pin.name)
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
        self.logs.drop(task)


def _payloads(ran: FailedTask) -> list[bytes]:
    functions = [payload for _, payload in ran.functions]
    return functions + [each for run in ran.runs for each in (*run.payloads, *run.inputs[0])]

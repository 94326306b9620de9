"""State shared by both executors: queue, specs, functions, retained results, and the current step's commands. Pure."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.ids import PEER_ID_BYTES
from scaler.needs import NEAR
from scaler.protocol.messages import SPLIT_BATCH_BYTES, Done, Message, Outcome, Returned, Spec, WorkerReport, split
from scaler.worker.agent.events import Command, LogLevel, ShowDegradedReason, WriteLog
from scaler.worker.agent.state import Attempt, KillReason, KnownSpec, Rank
from scaler.worker.frames import Snapshot

Status = tuple[bool, bool, bytes, float, int, str]
"""State of a processor in a heartbeat: ready, suspended, running task, its seconds so far, lane, wait reason."""
MAX_SPECS = 4096
MAX_RETAINED_BYTES = 64 * 1024 * 1024
"""Maximum size of retained results; the oldest are dropped. After a scheduler restart, their tasks run again, or are
lost if retries=0."""
ROW_BYTES = 192
"""Assumed size of a result without its payload."""
RanAt = tuple[int, ...]
"""Start (us), lane (0: never ran), time to fetch stored inputs (us), their bytes, finished and failed chunk calls."""
NOWHERE: RanAt = 0, 0, 0, 0, 0, 0


class RetainedResults:
    """Reported results, retained for a restarted scheduler.

    A scheduler may stop after it has acknowledged results that clients have not received or that tasks still need.
    Therefore an agent retains each Done until the scheduler releases it. Both sides number the Done messages of a
    session from 1. Invariants: `size_bytes` is the total size of `_batches`, and `_batches` is sorted by number.
    """

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Done, int]] = {}
        self._number = 0
        self.size_bytes = 0
        self.once: set[bytes] = set()
        """Tasks with retries=0 whose results are retained."""

    def keep(self, done: Done) -> list[Done]:
        is_small = ROW_BYTES * len(done.ids) + sum(map(len, done.payloads)) <= SPLIT_BATCH_BYTES
        parts = [done] if is_small else split(done)
        for part in parts:
            size = ROW_BYTES * len(part.ids) + sum(map(len, part.payloads))
            self._number += 1
            self._batches[self._number] = part, size
            self.size_bytes += size
        while self.size_bytes > MAX_RETAINED_BYTES:
            self._drop(next(iter(self._batches)))
        return parts

    def release(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._batches:
                self._drop(number)

    def take_all(self) -> list[Done]:
        """Remove and return everything, oldest first."""
        found = [done for done, _ in self._batches.values()]
        self._batches.clear()
        self._number = self.size_bytes = 0
        return found

    def _drop(self, number: int) -> None:
        done, size = self._batches.pop(number)
        self.size_bytes -= size
        if self.once:
            self.once.difference_update(done.ids)


_Entry = tuple[Rank, int, Attempt]
ROUND = 1 << 40
"""A place in the queue is round * ROUND + arrival number, because a single integer compares fast."""


class AttemptQueue:
    """Undispatched attempts, ordered by rank, then round robin among clients, then first in, first out.

    A client's single task waits for at most one task from each other client. Requeued attempts keep their places.
    Removed attempts are skipped lazily, in O(1). Invariants: `attempts` contains all queued and dispatched attempts;
    `waiting` is the number of queued attempts.
    """

    def __init__(self) -> None:
        self.attempts: dict[bytes, Attempt] = {}
        self._in_order: deque[_Entry] = deque()
        """Entries that arrived in dispatch order. The heap contains the rest."""
        self._heap: list[_Entry] = []
        self._round = 0
        self._rounds: dict[bytes, int] = {}
        self.waiting = 0
        self.added = 0
        """Number of attempts ever added. Requeues do not count."""

    def nested_rank(self, spec: Spec) -> Rank:
        """Return the rank of nested tasks, which precede their parent's siblings so that fewer parents wait at once."""
        parent = self.attempts.get(spec.parent)
        return (-spec.priority, -1 if parent is None else parent.rank[1] - 1)

    def add(self, items: Iterable[Attempt]) -> list[Attempt]:
        """Add attempts. Returns the duplicates, whose tasks are already queued or dispatched."""
        attempts, rounds, present = self.attempts, self._rounds, self._round
        added, in_order, refused = self.added, self._in_order, list[Attempt]()
        for item in items:
            if item.id in attempts:
                refused.append(item)
                continue
            added += 1
            client = item.id[:PEER_ID_BYTES]
            last = rounds.get(client, 0)
            number = rounds[client] = (last if last > present else present) + 1  # noqa: FURB136 (max takes longer)
            item.place = number * ROUND + added
            attempts[item.id] = item
            entry = item.rank, item.place, item
            if not in_order or in_order[-1] < entry:
                in_order.append(entry)
            else:
                heapq.heappush(self._heap, entry)
        self.waiting += added - self.added
        self.added = added
        if len(rounds) > 64 + 2 * self.waiting:
            self._rounds = {each: last for each, last in rounds.items() if last > present}
        return refused

    def take(self) -> Attempt | None:
        in_order, heap = self._in_order, self._heap
        while in_order or heap:
            if heap and not (in_order and in_order[0] < heap[0]):
                item = heapq.heappop(heap)[2]
            else:
                item = in_order.popleft()[2]
            if self.attempts.get(item.id) is item:
                self.waiting -= 1
                self._round = item.place // ROUND
                return item
        return None

    def take_nested(self) -> Attempt | None:
        passed = []
        while (item := self.take()) is not None and not item.rank[1]:
            passed.append(item)
        self.put_back(passed)
        return item

    def put_back(self, items: Iterable[Attempt]) -> None:
        for item in items:
            item.executor = 0
            item.request = None
            heapq.heappush(self._heap, (item.rank, item.place, item))
            self.waiting += 1

    def remove(self, items: Iterable[Attempt]) -> None:
        for item in items:
            del self.attempts[item.id]
            self.waiting -= 1
        if not self.waiting:
            self._in_order.clear()
            self._heap.clear()

    def drain(self) -> list[Attempt]:
        items = []
        while (item := self.take()) is not None:
            del self.attempts[item.id]
            items.append(item)
        return items


class ExecutorBase(ABC):
    """Runs attempts in this host's processors (`pool.py`) or as calls to a service (`scaler.offload.calls`)."""

    def __init__(self, config: WorkerConfig, now: float) -> None:
        self.config = config
        self.queue = AttemptQueue()
        self.functions: dict[bytes, bytes] = {}
        self._specs: OrderedDict[Spec, KnownSpec] = OrderedDict()
        self._spec_count = 0
        self.commands: list[Command] = []
        self._ended: list[tuple[object, ...]] = []
        """Rows of the next Done, which is inserted into the commands at `_ended_at`."""
        self._ended_at = 0
        self.retained = RetainedResults()
        self._has_results = False
        self.storage_address = ""
        """Address of the store that tasks use: the host's store or the object storage."""
        self.object_storage_address = ""
        self.degraded_reason = ""
        """Why tasks cannot run now, or ""."""
        self.broken = ""
        """Why no task can ever start here again, or ""."""
        self.wake_at = now
        self.memory_kills = self.processors_replaced = 0
        self.dispatch_seconds = 0.0
        """Measured seconds from dispatch until a task starts in a service; 0: not measured."""
        self.paid_seconds, self.paid_tasks = 0.0, 0
        """Total paid seconds of all calls since the start, and number of running calls."""
        self._lanes = 0
        self._free_lanes: list[int] = []

    def wake_by(self, time: float) -> None:
        self.wake_at = min(self.wake_at, time)

    @property
    def queued(self) -> int:
        """Attempts that have not started."""
        return self.queue.waiting

    @abstractmethod
    def take(self, item: Any, now: float) -> None:
        """Handle an input of this executor."""

    @abstractmethod
    def settle(self, now: float, may_start: bool) -> None:
        """Dispatch attempts. Called once after the inputs of a step."""

    @abstractmethod
    def tick(self, snapshots: Mapping[int, Snapshot], now: float, may_start: bool) -> None:
        """Handle `TimeElapsed`."""

    @abstractmethod
    def end(self, items: Iterable[Attempt], reason: KillReason) -> None:
        """End dispatched attempts."""

    def admit(self, environment: bytes, items: list[Attempt], now: float) -> list[Attempt]:  # noqa: ARG002
        """Return the attempts to queue for an environment. Reports the rest as returned or failed."""
        text = "its worker passes tasks to a service, which has no environments: select other workers by a capability"
        self._refuse(items, text)
        return []

    def _refuse(self, items: Iterable[Attempt], text: str) -> None:
        """Fail attempts before they are queued."""
        for item in items:
            if self.queue.attempts.setdefault(item.id, item) is item:
                self.killed(item, Outcome.REJECTED, text)

    @abstractmethod
    def storage_moved(self) -> None:
        """Pass the new storage addresses to processors or calls."""

    @abstractmethod
    def statuses(self, snapshots: Mapping[int, Snapshot], now: float) -> dict[int, Status]:
        """Return the statuses of processors or calls, by number."""

    def resting(self, _now: float) -> Collection[int]:
        return ()

    def take_lane(self) -> int:
        """Return the lowest free timeline lane (from 1) for a processor or call."""
        if self._free_lanes:
            return heapq.heappop(self._free_lanes)
        self._lanes += 1
        return self._lanes

    def free_lane(self, lane: int) -> None:
        heapq.heappush(self._free_lanes, lane)

    def know(self, spec: Spec) -> KnownSpec:
        """Return the spec with its number. Specs that differ only in the submitter share a number."""
        if spec.parent:
            spec = replace(spec, parent=b"")
        known = self._specs.get(spec)
        if known is not None:
            self._specs.move_to_end(spec)
            return known
        self._spec_count += 1
        limits = [limit for limit in (spec.timeout_seconds, self.config.task_timeout_seconds) if limit > 0]
        near = next((name for name, _ in spec.needs if name.startswith(NEAR)), "")
        known = self._specs[spec] = KnownSpec(self._spec_count, spec, min(limits, default=0.0), near=near)
        if len(self._specs) > MAX_SPECS:
            self._forgotten([self._specs.popitem(last=False)[1]], set())
        return known

    def forget_functions(self, identifiers: set[bytes]) -> None:
        for identifier in identifiers:
            self.functions.pop(identifier, None)
        stale = [spec for spec in self._specs if not identifiers.isdisjoint(spec.registered)]
        self._forgotten([self._specs.pop(spec) for spec in stale], identifiers)

    def _forgotten(self, specs: list[KnownSpec], functions: set[bytes]) -> None:  # noqa: B027
        """Drop everything that an executor has derived from these specs and functions."""

    def forget_all(self) -> str:
        """Drop all attempts, functions, and specs. Returns why the agent cannot continue, or ""."""
        self.queue.drain()
        self.queue.attempts.clear()
        self.functions.clear()
        self._specs.clear()
        self.retained = RetainedResults()
        return ""

    def report(self) -> None:
        """Report all attempts and results to a scheduler that opened a new session, before any other message."""
        self._close_done()
        earlier, self.commands = self.commands, []
        for command in earlier:
            if isinstance(command, Done):
                self.retained.keep(command)
            elif not isinstance(command, Message):
                self.commands.append(command)
        attempts, suspended, once = self.queue.attempts, self.suspended(), self.retained.once
        for item in attempts.values():
            item.announced_started = False
        items = [*attempts.values()]
        self.forget_functions(self.functions.keys() - {each for item in items for each in item.spec.wire.registered})
        report = WorkerReport(
            [item.id for item in items],
            [item.attempt for item in items],
            [item.id in suspended for item in items],
            [not item.spec.wire.retries for item in items],
            [item.devices for item in items],
        )
        self.commands.append(report)
        for done in self.retained.take_all():
            report.ids += done.ids
            report.attempts += done.attempts
            report.suspended += [False] * len(done.ids)
            report.once += [identifier in once for identifier in done.ids]
            report.devices += [()] * len(done.ids)
            self._has_results = True
            self.commands.append(done)
        if not any(report.devices):
            report.devices = []

    def suspended(self) -> set[bytes]:
        return set()

    def reclaim(self) -> None:  # noqa: B027 (calls need nothing)
        """Put all unstarted attempts back into the queue."""

    def ended(
        self,
        item: Attempt,
        outcome: int,
        payload: bytes,
        duration_us: int = 0,
        cpu_us: int = 0,
        peak_bytes: int = 0,
        ran: RanAt = NOWHERE,
    ) -> None:
        del self.queue.attempts[item.id]
        if not item.spec.wire.retries:
            self.retained.once.add(item.id)
        if not self._ended:
            self._ended_at = len(self.commands)
        self._ended.append((item.id, item.attempt, outcome, payload, duration_us, cpu_us, peak_bytes, *ran))

    def killed(
        self,
        item: Attempt,
        outcome: Outcome,
        text: str,
        peak_bytes: int = 0,
        duration_us: int = 0,
        began_us: int = 0,
        lane: int = 0,
    ) -> None:
        """Remove a dispatched attempt and report that it produced no result. lane: as in `RanAt`."""
        if outcome is Outcome.NOT_STARTED and item.spec.wire.retries == 0:
            outcome = Outcome.WORKER_LOST  # the task may have started and may not run twice
        payload = text.encode("utf-8", "replace")
        self.ended(item, outcome, payload, duration_us, 0, peak_bytes, (began_us, lane, 0, 0, 0, 0))

    def time_out(self, item: Attempt) -> None:
        text = f"the task ran longer than its time limit of {item.spec.limit_seconds:g} s and was stopped"
        self.end([item], KillReason(Outcome.TIMED_OUT, text))

    def returned(self, items: list[Attempt], started: bool) -> None:
        """Report attempts as returned (started=False) or as continuing (started=True)."""
        if items:
            ids = [item.id for item in items]
            for part in split(Returned(ids, [item.attempt for item in items], [started] * len(items))):
                self.send(part)

    def give_back(self, items: list[Attempt]) -> None:
        self.queue.remove(items)
        self.returned(items, started=False)

    def close(self) -> None:
        """Return unstarted attempts and report started attempts before the agent exits."""
        begun = [item for item in self.queue.attempts.values() if item.executor]
        self.returned(self.queue.drain(), started=False)
        self.returned(begun, started=True)

    def send(self, message: Message) -> None:
        self._close_done()
        self.commands.append(message)

    def log(self, text: str, task: bytes = b"", level: LogLevel = "warning") -> None:
        self.commands.append(WriteLog(text, task, level))

    def show_degraded(self, text: str) -> None:
        """Show why tasks cannot run, including in heartbeats; "" clears the reason."""
        if text != self.degraded_reason:
            self.degraded_reason = text
            self.commands.append(ShowDegradedReason(text))

    def obstacle(self) -> str:
        """Return why tasks cannot run right now, even briefly, or ""."""
        return self.degraded_reason

    def take_commands(self) -> list[Command]:
        self._close_done()
        commands, self.commands = self.commands, []
        if self._has_results:
            self._has_results = False
            keep = self.retained.keep
            return [part for each in commands for part in (keep(each) if type(each) is Done else (each,))]
        return commands

    def _close_done(self) -> None:
        if self._ended:
            done = Done(*map(list, zip(*self._ended, strict=True)))
            if not any(done.cpu_us) and not any(done.peak_bytes):
                done.cpu_us, done.peak_bytes = [], []
            if not any(done.inputs_us):
                done.inputs_us, done.inputs_bytes = [], []
            if not any(done.calls):
                done.calls, done.failed_calls = [], []
            self.commands.insert(self._ended_at, done)
            self._ended = []
            self._has_results = True

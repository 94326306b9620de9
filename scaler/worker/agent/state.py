"""What both executors have: attempts that the scheduler sent, the specs and functions that they refer to, and the
commands of the current step. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from scaler.config.worker import WorkerConfig
from scaler.ids import PEER_ID_BYTES
from scaler.protocol.messages import Done, Message, Outcome, Returned, Spec, WorkerReport
from scaler.worker.agent.events import Command, LogLevel, ShowDegradedReason, WriteLog
from scaler.worker.agent.retained import RetainedResults

Rank = tuple[int, int]
"""Order of attempts, as in the scheduler: priority, then depth of nesting, both descending and so both negative."""
Status = tuple[bool, bool, bytes, float, int, str]
"""What a heartbeat shows of a processor: whether it is ready, and suspended; the task that it runs, for how long, and
on which lane."""
MAX_SPECS = 4096
"""Specs that an agent remembers. One that returns after it fell out is announced to the processors again."""
UNKNOWN_COST_US = 10_000.0
"""Assumed duration of a task whose function has no measurement."""
_WEIGHT = 0.25


def micros(seconds: float) -> int:
    """Return a clock's reading in whole microseconds: the same as its nanoseconds // 1000, despite float rounding."""
    return int(seconds * 1e6 + 5e-4)


@dataclass(slots=True, eq=False)
class KnownSpec:
    """A spec of the scheduler, and the number by which processors know it."""

    number: int
    wire: Spec
    limit_seconds: float
    """0: none."""
    mean_us: float = UNKNOWN_COST_US
    """How long its tasks take here: a moving mean."""

    def observe(self, duration_us: float) -> None:
        if self.mean_us == UNKNOWN_COST_US:
            self.mean_us = float(duration_us)
        else:
            self.mean_us += _WEIGHT * (duration_us - self.mean_us)

    @property
    def functions(self) -> tuple[bytes, ...]:
        """Ids of the function and what else a processor needs for it."""
        return self.wire.registered


class KillReason(NamedTuple):
    """What becomes of a running attempt that is ended."""

    outcome: Outcome
    text: str
    peak_bytes: int = 0
    """0: not known."""


CANCELLED = KillReason(Outcome.CANCELLED, "cancelled")
RECALLED = KillReason(Outcome.NOT_STARTED, "recalled")
"""Not for attempts that run: the request to give one back if it has not started, and to let it go on if it has."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of one task, from Run until Done or Returned."""

    id: bytes
    attempt: int
    spec: KnownSpec
    payload: bytes
    inputs: tuple[bytes, ...]
    rank: Rank
    place: int = 0
    """Its place among those of its rank: see `ROUND`."""
    executor: int = 0
    """Number of the processor that it was dispatched to, or of its call; 0: it is in the queue."""
    cost_us: float = 0.0
    """What it was assumed to cost when it was dispatched to a processor."""
    announced_started: bool = False
    request: KillReason | None = None
    """What is to become of it when its processor's tasks are reclaimed."""
    dispatched_at: float = 0.0
    started_at: float = 0.0
    """These two: of a call. 0: it has not started, as far as is known."""
    lane: int = 0
    """Of a call."""
    devices: tuple[int, ...] = ()
    """Indexes of its gpus among those of this worker."""
    follower: Attempt | None = None
    """What runs as soon as this has succeeded, with its value."""
    is_sent_with_follower: bool = False
    """Its processor goes on with the follower by itself."""
    is_reported: bool = False
    """It follows another one, and a restarted scheduler was told that it is here: it must be given back."""

    def run(self) -> Iterator[Attempt]:
        """Yield this, and what its processor does behind it by itself."""
        item: Attempt | None = self
        while item is not None:
            yield item
            item = item.follower if item.is_sent_with_follower else None

    def followers(self) -> Iterator[Attempt]:
        """Yield what is to run behind this, in order."""
        item = self.follower
        while item is not None:
            yield item
            item = item.follower

    def fill(self, value: bytes) -> None:
        """Take the payload of the value of the task before."""
        self.inputs = tuple([each or value for each in self.inputs])


_Entry = tuple[Rank, int, Attempt]
ROUND = 1 << 40
"""A place is the number of a client's turn, times this, and the number of the arrival: one integer compares quickly."""


class AttemptQueue:
    """Attempts that are not dispatched: by rank, then clients go round robin, first in, first out within a client. So
    the single task of a client waits for one task of each other client here, whatever those have queued. What is put
    back has its old place.

    Removal is O(1): the removed are skipped. Invariant: `attempts` has every attempt that is here or dispatched;
    `waiting` counts the former.
    """

    def __init__(self) -> None:
        self.attempts: dict[bytes, Attempt] = {}
        self._in_order: deque[_Entry] = deque()
        """Those that came in the order in which they are taken."""
        self._heap: list[_Entry] = []
        """The others."""
        self._round = 0
        """Of the attempt that was taken last."""
        self._rounds: dict[bytes, int] = {}
        """Of the last attempt of each client."""
        self.waiting = 0
        self.added = 0
        """Attempts that ever came; those that are put back do not count."""

    def rank(self, spec: Spec) -> Rank:
        """Return the rank of tasks: children go before their parent's siblings, so that fewer parents wait at once."""
        if not spec.parent:
            return (-spec.priority, 0)
        parent = self.attempts.get(spec.parent)
        return (-spec.priority, -1 if parent is None else parent.rank[1] - 1)

    def add(self, items: Iterable[Attempt], room: int) -> list[Attempt]:
        """Add attempts while there is room for more. Returns those that are not added: it has them, or is full."""
        attempts, rounds, present = self.attempts, self._rounds, self._round
        added, in_order, refused = self.added, self._in_order, list[Attempt]()
        full = added + room
        for item in items:
            if added >= full or item.id in attempts:
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
        """Return the next one that a task has submitted; the others keep their places."""
        passed = []
        while (item := self.take()) is not None and not item.rank[1]:
            passed.append(item)
        self.put_back(passed)
        return item

    def put_back(self, items: Iterable[Attempt]) -> None:
        """Put attempts that were dispatched to where they were."""
        for item in items:
            item.executor = 0
            item.request = None
            item.is_sent_with_follower = False
            heapq.heappush(self._heap, (item.rank, item.place, item))
            self.waiting += 1

    def follow(self, before: Attempt, item: Attempt) -> None:
        """Put an attempt in the place of the one before, which has ended."""
        self.attempts[item.id] = item
        item.place = before.place
        self.put_back((item,))

    def remove(self, items: Iterable[Attempt]) -> None:
        """Forget attempts that are in the queue."""
        for item in items:
            del self.attempts[item.id]
            self.waiting -= 1
        if not self.waiting:
            self._in_order.clear()
            self._heap.clear()

    def drain(self) -> list[Attempt]:
        """Forget all that are in the queue; return them in their order."""
        items = []
        while (item := self.take()) is not None:
            del self.attempts[item.id]
            items.append(item)
        return items


RanAt = tuple[int, ...]
"""When an attempt began, its lane (0: it ran nowhere), how many microseconds it got stored inputs, their bytes, the
calls of a chunk that ended, and how many of them failed."""
NOWHERE: RanAt = 0, 0, 0, 0, 0, 0


class ExecutorBase:
    """Queue, specs, and the commands of the current step, of an executor and the core before it."""

    def __init__(self, config: WorkerConfig, now: float) -> None:
        self.config = config
        self.queue = AttemptQueue()
        self.functions: dict[bytes, bytes] = {}
        """Payloads of functions and serializers, by their ids."""
        self._specs: OrderedDict[Spec, KnownSpec] = OrderedDict()
        """Those that came lately."""
        self._spec_count = 0
        self.commands: list[Command] = []
        self._ended: list[tuple[object, ...]] = []
        """Rows of the next Done: attempts that end in a row share one."""
        self._ended_at = 0
        """Before which command that Done comes."""
        self.retained = RetainedResults()
        self._has_results = False
        """The commands of this step have a Done."""
        self.storage_address = ""
        """Of the store that tasks use: that of the host, or the object storage."""
        self.object_storage_address = ""
        self.degraded_reason = ""
        """What keeps tasks from running now; empty: nothing."""
        self.broken = ""
        """Why no task can start here any more; empty: some can."""
        self.wake_at = now
        self.memory_kills = self.processors_replaced = 0
        """Processors that were ended for their memory, or replaced between tasks, since the start."""
        self.dispatch_seconds = 0.0
        """Measured time from handing a task out until it begins elsewhere; 0: not measured."""
        self.paid_seconds, self.paid_tasks = 0.0, 0
        """For how long its tasks elsewhere are paid, all since the start, and how many of them run now."""
        self._lanes = 0
        self._free_lanes: list[int] = []
        """Of the lanes that were taken so far: a heap."""

    def wake_by(self, time: float) -> None:
        """Have `TimeElapsed` come no later than this."""
        self.wake_at = min(self.wake_at, time)

    def resting(self, _now: float) -> Collection[int]:
        """Return the processors that a tick does not look at, by number."""
        return ()

    def take_lane(self) -> int:
        """Return the lowest free lane, from 1: monitors show the processors or calls of a worker by lane."""
        if self._free_lanes:
            return heapq.heappop(self._free_lanes)
        self._lanes += 1
        return self._lanes

    def free_lane(self, lane: int) -> None:
        heapq.heappush(self._free_lanes, lane)

    def know(self, spec: Spec) -> KnownSpec:
        """Return the spec under its number. Specs that differ only in the submitter share a number."""
        if spec.parent:
            spec = replace(spec, parent=b"")
        known = self._specs.get(spec)
        if known is not None:
            self._specs.move_to_end(spec)
            return known
        self._spec_count += 1
        limits = [limit for limit in (spec.timeout_seconds, self.config.task_timeout_seconds) if limit > 0]
        known = self._specs[spec] = KnownSpec(self._spec_count, spec, min(limits, default=0.0))
        if len(self._specs) > MAX_SPECS:
            self._forgotten([self._specs.popitem(last=False)[1]], set())
        return known

    def function_names(self) -> dict[int, str]:
        """Return the names of the functions of all specs that are known, by their numbers."""
        return {known.number: known.wire.name for known in self._specs.values()}

    def forget_functions(self, identifiers: set[bytes]) -> None:
        """Forget functions, and the specs that refer to them."""
        for identifier in identifiers:
            self.functions.pop(identifier, None)
        stale = [spec for spec in self._specs if not identifiers.isdisjoint(spec.registered)]
        self._forgotten([self._specs.pop(spec) for spec in stale], identifiers)

    def _forgotten(self, specs: list[KnownSpec], functions: set[bytes]) -> None:
        """These are not known here any more."""

    def forget_all(self) -> str:
        """Forget all attempts, functions, and specs; return why the agent cannot go on, or ""."""
        self.queue.drain()
        self.queue.attempts.clear()
        self.functions.clear()
        self._specs.clear()
        self.retained = RetainedResults()
        return ""

    def report(self) -> None:
        """Tell a scheduler that opened a new session everything that is here; nothing else is sent before that."""
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
        items = [each for item in attempts.values() for each in item.run()]
        for item in items:
            if item.is_sent_with_follower:
                cast("Attempt", item.follower).is_reported = True
            else:
                item.follower = None  # the scheduler does not know of it, and sends it again
        self.forget_functions(self.functions.keys() - {each for item in items for each in item.spec.functions})
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
        self.retained.once = once
        if not any(report.devices):
            report.devices = []

    def suspended(self) -> set[bytes]:
        """Return the tasks that have lent their slots."""
        return set()

    def reclaim(self) -> None:
        """Put all attempts that have not started back into the queue."""

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
        """Forget a dispatched attempt, and report how it ended."""
        del self.queue.attempts[item.id]
        if not item.spec.wire.retries:
            self.retained.once[item.id] = item.attempt
        if not self._ended:
            self._ended_at = len(self.commands)
        self._ended.append((item.id, item.attempt, outcome, payload, duration_us, cpu_us, peak_bytes, *ran))
        if item.follower is None:
            pass
        elif outcome == Outcome.SUCCESS:
            self._go_on(item, item.follower, payload)
        else:
            self._return([each for each in item.followers() if each.is_reported], started=False)

    def _go_on(self, ended: Attempt, follower: Attempt, value: bytes) -> None:
        """Queue the follower of an attempt that has succeeded, with its value."""
        follower.fill(value)
        if follower.id in self.queue.attempts:
            self.returned([follower], started=False)
        else:
            self.queue.follow(ended, follower)

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
        """Forget a dispatched attempt, and report that it ended without a result. lane: as in `RanAt`."""
        if outcome is Outcome.NOT_STARTED and item.spec.wire.retries == 0:
            outcome = Outcome.WORKER_LOST  # it may have begun, and may not run twice
        payload = text.encode("utf-8", "replace")
        self.ended(item, outcome, payload, duration_us, 0, peak_bytes, (began_us, lane, 0, 0, 0, 0))

    def returned(self, items: list[Attempt], started: bool) -> None:
        """Report that attempts are given back, or that they go on."""
        if not started:
            items = [each for item in items for each in (item, *item.followers()) if each is item or each.is_reported]
        self._return(items, started)

    def _return(self, items: list[Attempt], started: bool) -> None:
        if items:
            ids = [item.id for item in items]
            self.send(Returned(ids, [item.attempt for item in items], [started] * len(items)))

    def give_back(self, items: list[Attempt]) -> None:
        """Forget attempts that are in the queue, and report that they are given back."""
        self.queue.remove(items)
        self.returned(items, started=False)

    def close(self) -> None:
        """Give back all attempts that have not begun, and report those that have: the agent ends."""
        begun = [item for item in self.queue.attempts.values() if item.executor]
        self.returned(self.queue.drain(), started=False)
        self.returned(begun, started=True)

    def send(self, message: Message) -> None:
        self._close_done()
        self.commands.append(message)

    def log(self, text: str, task: bytes = b"", level: LogLevel = "warning") -> None:
        self.commands.append(WriteLog(text, task, level))

    def show_degraded(self, text: str) -> None:
        """Show what keeps tasks from running, with the next heartbeat too; empty: it is over."""
        if text != self.degraded_reason:
            self.degraded_reason = text
            self.commands.append(ShowDegradedReason(text))

    def obstacle(self) -> str:
        """Return what keeps tasks from running now, also when it has lasted for a moment only; empty: nothing."""
        return self.degraded_reason

    def take_commands(self) -> list[Command]:
        """Return the commands of this step, in order, and forget them."""
        self._close_done()
        commands, self.commands = self.commands, []
        if self._has_results:
            self._has_results = False
            keep = self.retained.keep
            return [part for each in commands for part in (keep(each) if type(each) is Done else (each,))]
        return commands

    def _close_done(self) -> None:
        """Put the attempts that ended into a Done, without the columns of costs when it has none."""
        if self._ended:
            done = Done(*map(list, zip(*self._ended, strict=True)))
            if not any(done.cpu_us) and not any(done.peak_bytes):
                done.cpu_us = []
                done.peak_bytes = []
            if not any(done.inputs_us):
                done.inputs_us = []
                done.inputs_bytes = []
            if not any(done.calls):
                done.calls = []
                done.failed_calls = []
            self.commands.insert(self._ended_at, done)
            self._ended = []
            self._has_results = True

"""A simulated cluster: the scheduler's core, and workers that run tasks for durations chosen by their clients."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from scaler.net.connection import LOCAL, Identity
from scaler.protocol.messages import (
    STARTED_AFTER_SECONDS,
    Done,
    Finished,
    Message,
    Outcome,
    Recall,
    Returned,
    Run,
    Started,
    Suspended,
)
from scaler.scheduler.core.changes import KeysRead
from scaler.scheduler.core.commands import ShellObserved
from scaler.security.keys import Entry, Share
from tests.unit.scheduler.driver import VALUE, Cluster

WAY_SECONDS = 0.0005
"""Duration of a message."""


@dataclass
class Flood:
    """A client with more tasks than slots at any time. nested: number and seconds of tasks that each task waits for.
    fails_every: every N-th attempt raises an exception, or none if 0."""

    seconds: Callable[[int], float]
    options: dict[str, Any] = field(default_factory=dict)
    nested: tuple[int, float] | None = None
    fails_every: int = 0
    attempts: int = 0
    used: float = 0.0
    seen: int = 0
    sent: int = 0
    waiting_since: float = 0.0
    longest_wait: float = 0.0


@dataclass
class Running:
    client: str
    ends_at: float
    began_at: float
    attempt: int = 1
    children: int = 0
    is_blocked: bool = False


class Bed(Cluster):
    check_every = 200

    def __init__(self, workers: int = 1, slots: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.slots = slots
        self.parents: dict[str, tuple[str, bytes]] = {}
        """Worker and parent of each client inside a task."""
        self.owners: dict[bytes, str] = {}
        """Clients outside of tasks, by nested task."""
        self.attempts: dict[bytes, int] = {}
        self.ended: set[bytes] = set()
        self.flooding: set[bytes] = set()
        """Tasks whose end makes their clients submit the next ones."""
        self.floods: dict[str, Flood] = {}
        self.seconds: dict[bytes, float] = {}
        self.queues: dict[str, list[tuple[tuple[int, int], int, bytes, int]]] = {}
        self.running: dict[str, dict[bytes, Running]] = {}
        self.began: dict[bytes, float] = {}
        self.stop_seconds = 0.05
        """Time that a preempted task takes to stop."""
        self.can_preempt = True
        """The workers' releases can stop a started task."""
        self.stopped: list[tuple[float, bytes]] = []
        """When each stopped task was stopped."""
        self.asked_to_stop = 0
        self.lost_seconds = 0.0
        """Slot-seconds of stopped tasks."""
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        for number in range(workers):
            self._add_worker(f"w{number}")

    # -- clients

    def flood(self, name: str, seconds: float | Callable[[int], float], at: float = 0.0, **options: Any) -> Flood:
        """Let a client keep 60 tasks per slot, or backlog of them, from a time on."""
        nested, key, backlog = options.pop("nested", None), options.pop("key", ""), options.pop("backlog", 60)
        fails_every = options.pop("fails_every", 0)
        if fails_every:
            options = {"retry_on": b"\x80 ValueError", "retries": 1_000, **options}
        lengths = seconds if callable(seconds) else lambda _: seconds
        found = self.floods[name] = Flood(lengths, options, nested, fails_every)
        self.at(at, lambda: self._join(name, found, key, backlog))
        return found

    def guest(self, name: str, key: str = "") -> None:
        """Add a client that submits nothing on its own."""
        self.floods[name] = Flood(lambda _: 0.0)
        self.client(name, identity=Identity(key) if key else LOCAL)

    def stop(self, name: str) -> None:
        """Let a client submit no more tasks."""
        self.flooding = {task for task in self.flooding if not task.startswith(self.peer(name))}

    def lose(self, worker: str) -> None:
        """Replace a worker, which ends all its tasks."""
        del self.running[worker], self.queues[worker]
        self.leave(worker)
        self._add_worker(f"{worker}+")

    def _add_worker(self, name: str) -> None:
        self.worker(name, slots=self.slots)
        self.queues[name], self.running[name] = [], {}
        self.hear()

    def _join(self, name: str, flood: Flood, key: str, backlog: int) -> None:
        self.client(name, identity=Identity(key) if key else LOCAL)
        flood.waiting_since = self.now
        for _ in range(backlog * len(self.queues) * self.slots):
            self._submit(name, flood)

    def _submit(self, name: str, flood: Flood) -> None:
        ids = [self.task_id(name)]
        self.seconds[ids[0]] = flood.seconds(flood.sent)
        flood.sent += 1
        self.flooding.add(ids[0])
        self.submit(name, ids=ids, seen=flood.seen, **{"retries": 3, **flood.options})
        self.hear()

    def share(self, **shares: Share) -> None:
        """Set the shares of keys, and of groups with names that begin with `group_`."""
        entries = {
            name: Entry(name.removeprefix("group_"), "group" if name.startswith("group_") else "client", "", share)
            for name, share in shares.items()
        }
        self.step(ShellObserved([KeysRead(entries)]))

    @property
    def slots_used(self) -> dict[str, int]:
        """Slots that each client's tasks use now."""
        found = dict.fromkeys(self.floods, 0)
        for running in self.running.values():
            for each in running.values():
                found[each.client] += not each.is_blocked
        return found

    def why_waits(self, client: str) -> str:
        """Return the explanation of the last task that this client submitted."""
        return str(self.state.rooms.explainer.why(next(reversed(self.state.clients[self.peer(client)].tasks))))

    # -- time

    def at(self, delay: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), act))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = self._events[0][0] if self._events else until
            wakes = self.core.next_step_at(self.state.now)
            if min(due, wakes) >= until:
                break
            if wakes < due:
                self.now = max(wakes, self.now + 1e-6)
                self.step()
            else:
                self.now, _, act = heapq.heappop(self._events)
                act()
            self.hear()
        self.now = until
        self._settle()

    def _settle(self) -> None:
        """Count the time that running tasks have used so far."""
        for running in self.running.values():
            for each in running.values():
                if not each.is_blocked:
                    self.floods[each.client].used += self.now - each.began_at
                    each.began_at = self.now

    def shares(self, seconds: float) -> dict[str, float]:
        """Return the slot-seconds that each client uses from now on."""
        self._settle()
        before = {name: flood.used for name, flood in self.floods.items()}
        self.run(seconds)
        return {name: flood.used - before[name] for name, flood in self.floods.items()}

    # -- workers

    def hear(self) -> None:
        said, self.said, self.commands = self.said, [], []
        for name, message in said:
            if isinstance(message, Finished) and name in self.floods:
                self.floods[name].seen = message.number
            if name in self.queues:
                self.at(WAY_SECONDS, lambda name=name, message=message: self._received(name, message))  # type: ignore[misc]
            elif isinstance(message, Finished) and name in self.parents:
                self.at(WAY_SECONDS, lambda name=name, message=message: self._child_ended(name, message))  # type: ignore[misc]

    def _received(self, worker: str, message: Message) -> None:
        if worker not in self.queues:
            return  # lost
        if isinstance(message, Run):
            for group in message.groups:
                rank = -group.spec.priority, -int(bool(group.spec.parent))
                for task, attempt in zip(group.ids, group.attempts, strict=True):
                    self.queues[worker].append((rank, next(self._order), task, attempt))
            self.queues[worker].sort()
            self._start(worker)
        elif isinstance(message, Recall):
            back = {task for _, _, task, _ in self.queues[worker]} & set(message.ids)
            self.queues[worker] = [each for each in self.queues[worker] if each[2] not in back]
            rows = [*zip(message.ids, message.attempts, strict=True)]
            self.asked_to_stop += len(rows) * message.preempt
            stopping = rows if message.preempt and self.can_preempt else []
            stopping = [each for each in stopping if each[0] in self.running[worker]]
            for task, attempt in stopping:
                self.at(self.stop_seconds, lambda task=task, attempt=attempt: self._stop(worker, task, attempt))  # type: ignore[misc]
            if kept := [each for each in rows if each not in stopping]:
                ids, attempts = map(list, zip(*kept, strict=True))
                self._send(worker, Returned(ids, attempts, [task not in back for task in ids]))

    def _send(self, name: str, message: Message) -> None:
        self.at(WAY_SECONDS, lambda: self.say(name, message) if self.peer(name) in self.state.workers else None)

    def _start(self, worker: str) -> None:
        running = self.running[worker]
        while self.queues[worker] and sum(not each.is_blocked for each in running.values()) < self.slots:
            _, _, task, attempt = self.queues[worker].pop(0)
            owner = self.owners.get(task) or task[:8].rstrip(b".").decode()
            flood = self.floods[owner]
            flood.longest_wait = max(flood.longest_wait, self.now - flood.waiting_since)
            flood.waiting_since = self.now
            self.began[task] = self.now
            seconds = self.seconds_on(worker, task)
            running[task] = Running(owner, self.now + seconds, self.now, attempt)
            is_parent = flood.nested is not None and task not in self.owners
            if is_parent:
                self.at(seconds, lambda task=task, attempt=attempt: self._block(worker, task, attempt))  # type: ignore[misc]
            else:
                self.at(seconds, lambda task=task, attempt=attempt: self._end(worker, task, attempt))  # type: ignore[misc]
            if seconds >= STARTED_AFTER_SECONDS:
                self.at(STARTED_AFTER_SECONDS, lambda task=task: self._tell(worker, task))  # type: ignore[misc]

    def seconds_on(self, _worker: str, task: bytes) -> float:
        """Return the duration of a task that starts on this worker."""
        return self.seconds[task]

    def ran(self, _worker: str, done: Done) -> Done:
        """Add where a task ran."""
        return done

    def _tell(self, worker: str, task: bytes) -> None:
        if task in self.running.get(worker, {}):
            self._send(worker, Started([task], [int(1e6 * self.began[task])], [0]))

    def _stop(self, worker: str, task: bytes, attempt: int) -> None:
        running = self.running[worker].get(task)
        if running is None or running.attempt != attempt:
            return  # the task has ended in its grace period
        del self.running[worker][task]
        duration = self.now - self.began[task]
        self.floods[running.client].used += self.now - running.began_at
        self.lost_seconds += duration
        self.stopped.append((self.now, task))
        self._send(worker, Done([task], [attempt], [Outcome.NOT_STARTED], [b""], [int(duration * 1e6)]))
        self._start(worker)

    def _end(self, worker: str, task: bytes, attempt: int) -> None:
        running = self.running.get(worker, {}).get(task)
        if running is None or running.attempt != attempt:
            return  # the task was stopped, or lost with its worker
        ended = self.running[worker].pop(task)
        flood = self.floods[ended.client]
        flood.used += self.now - ended.began_at
        duration = self.now - self.began[task]
        flood.attempts += 1
        has_failed = flood.fails_every > 0 and flood.attempts % flood.fails_every == 0
        outcome = Outcome.EXCEPTION_TO_RETRY if has_failed else Outcome.SUCCESS
        done = Done([task], [attempt], [outcome], [VALUE], [int(duration * 1e6)])
        self._send(worker, self.ran(worker, done))
        if not has_failed:
            self.ended.add(task)
        if task in self.flooding and not has_failed:
            self.at(2 * WAY_SECONDS, lambda: self._submit(ended.client, flood))
        self._start(worker)

    # -- nested tasks

    def _block(self, worker: str, task: bytes, attempt: int) -> None:
        parent = self.running.get(worker, {}).get(task)
        if parent is None:
            return  # lost with its worker
        flood = self.floods[parent.client]
        flood.used += self.now - parent.began_at
        parent.is_blocked = True
        number, seconds = flood.nested or (0, 0.0)
        name = f"n{task[8:16].hex()[-6:]}"
        self.nested(name, worker, task)
        self.parents[name] = worker, task
        parent.children = number
        self._send(worker, Suspended([task], [attempt], [True]))
        ids = [self.task_id(name) for _ in range(number)]
        for child in ids:
            self.seconds[child], self.owners[child] = seconds, parent.client
        self.attempts[task] = attempt
        self.submit(name, ids=ids, parent=task, retries=3)

    def _child_ended(self, name: str, message: Finished) -> None:
        worker, task = self.parents[name]
        parent = self.running.get(worker, {}).get(task)
        if parent is None:
            return
        parent.children -= len(message.ids)
        if not parent.children:
            parent.is_blocked, parent.began_at = False, self.now
            self._send(worker, Suspended([task], [self.attempts[task]], [False]))
            self._end(worker, task, self.attempts[task])
            del self.parents[name]


def split(shares: dict[str, float], names: Sequence[str]) -> list[float]:
    """Return each client's part of all slot-seconds used."""
    total = sum(shares.values())
    return [shares[name] / total for name in names]

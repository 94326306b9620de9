"""Graphs of tasks on hosts with slots, stores, and links, placed by the real scheduler core in simulated time.

    python -m tests.simulation.workflows

Prints for each graph its time relative to a lower bound, the bytes moved, and the core's CPU time per task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from scaler.ids import IdFactory, content_id, is_task, result_id
from scaler.net.connection import Opened, Received
from scaler.protocol.chunks import chunk_count
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Done,
    Hello,
    Message,
    Outcome,
    Recall,
    Returned,
    Role,
    Run,
    Spec,
    Submit,
    TaskGroup,
    UseStore,
    WorkerDetails,
    stored_reference,
)
from tests.simulation.transfers import GIGABIT, LATENCY_SECONDS, MB, Host, LinkWorld

CLIENT = b"client.."
FIRST_WORKER = 1 << 32
"""First worker number. Hosts have smaller numbers."""


@dataclass(slots=True, eq=False)
class Job:
    """One task in a graph: its inputs (tasks and objects), duration, and result size."""

    id: bytes
    seconds: float
    size_bytes: int
    inputs: tuple[bytes, ...]
    function: str
    client: bytes
    host: int = 0
    """Host on which the task ran."""
    ended_at: float = 0.0
    missing: set[bytes] = field(default_factory=set)
    attempt: int = 0
    began_at: float = 0.0


@dataclass(slots=True, eq=False)
class Slots(Host):
    """A worker on a host. running: tasks that occupy a slot, even while they fetch inputs."""

    home: int = 0
    slots: int = 1
    running: int = 0
    queue: deque[tuple[bytes, int]] = field(default_factory=deque)


class WorkflowWorld(LinkWorld):
    """Hosts 1, 2, ... with one worker each, and a client on a separate machine."""

    def __init__(self, hosts: int, slots: int, *, checked: bool = True) -> None:
        self.left = 0
        super().__init__(hosts, checked=checked)
        self.jobs: dict[bytes, Job] = {}
        self._factory = IdFactory(CLIENT)
        self._waiting: dict[tuple[int, bytes], list[tuple[Slots, Job]]] = {}
        self.slots = hosts * slots
        for number in range(1, hosts + 1):
            peer = (FIRST_WORKER + number).to_bytes(8, "big")
            details = WorkerDetails("manager", f"unit-{number}", slots, 1000, {})
            hello = Hello(Role.WORKER, False, PROTOCOL_VERSION, "", "", "", f"h{number}", 1, details)
            self._arrive(Opened(peer, hello))
            self._arrive(Received(peer, UseStore(self.hosts[number].peer)))
            self.hosts[FIRST_WORKER + number] = Slots(FIRST_WORKER + number, peer, home=number, slots=slots)
        self.run()

    # -- program

    def job(self, seconds: float, megabytes: float, inputs: Sequence[bytes] = (), function: str = "work") -> bytes:
        """Add a task to the graph, and return its id."""
        task = self._factory.task()
        self.jobs[task] = Job(task, seconds, int(megabytes * MB), tuple(inputs), function, CLIENT)
        return task

    def compute(self) -> float:
        """Submit all added tasks, and return the seconds until they have ended."""
        new = [job for job in self.jobs.values() if not job.ended_at]
        began_at, self.left = self.now, len(new)
        for first in range(0, len(new), 1000):
            groups: dict[str, list[Job]] = {}
            for job in new[first : first + 1000]:
                groups.setdefault(job.function, []).append(job)
            functions = [(content_id(name.encode()), name.encode()) for name in groups]
            columns = [
                TaskGroup(
                    Spec(content_id(name.encode()), name=name, deliver=False),
                    [job.id for job in jobs],
                    [b"\x80"] * len(jobs),
                    [job.inputs for job in jobs],
                )
                for name, jobs in groups.items()
            ]
            self._arrive(Received(CLIENT, Submit(functions, columns)))
        self.run()
        assert not self.left, f"{self.left} tasks have not ended"
        return max(job.ended_at for job in new) - began_at

    @property
    def moved_bytes(self) -> float:
        return sum(host.sent_bytes for host in self.hosts.values())

    @property
    def busiest_link(self) -> float:
        """Traffic on the busiest host's link, relative to the mean."""
        hosts = [host for number, host in self.hosts.items() if 0 < number < FIRST_WORKER]
        sent, got = [host.sent_bytes for host in hosts], [host.got_bytes for host in hosts]
        return max(max(column) / (sum(column) / len(column)) for column in (sent, got))

    # -- workers

    def _step(self, at: float) -> None:
        super()._step(at)
        if self.left:
            self._wake(max(self.core.next_step_at(self.now), self.now + LATENCY_SECONDS))

    def _hear(self, host: Host, message: Message) -> None:
        if not isinstance(host, Slots):
            super()._hear(host, message)
        elif isinstance(message, Run):
            for group in message.groups:
                host.queue.extend(zip(group.ids, group.attempts, strict=True))
            self._begin(host)
        elif isinstance(message, Recall):
            rows = list(zip(message.ids, message.attempts, strict=True))
            started = [row not in host.queue for row in rows]
            for row in rows:
                if row in host.queue:
                    host.queue.remove(row)
            returned = Returned([task for task, _ in rows], [attempt for _, attempt in rows], started)
            self.later(LATENCY_SECONDS, partial(self._arrive, Received(host.peer, returned)))

    def _begin(self, worker: Slots) -> None:
        home = self.hosts[worker.home]
        while worker.queue and worker.running < worker.slots:
            worker.running += 1
            task, attempt = worker.queue.popleft()
            job = self.jobs[task]
            job.attempt, job.began_at, job.host = attempt, self.now, worker.home
            needed = [self._object(each) for each in job.inputs]
            job.missing = {each for each in needed if not self._has(home, each)}
            if job.missing:
                for each in job.missing:
                    self._waiting.setdefault((worker.home, each), []).append((worker, job))
                self.want(worker.home, sorted(job.missing))
            else:
                self.later(job.seconds, partial(self._end, worker, job))

    def _object(self, identifier: bytes) -> bytes:
        return result_id(identifier, self.jobs[identifier].attempt) if is_task(identifier) else identifier

    def _has(self, host: Host, identifier: bytes) -> bool:
        return host.has.get(identifier, 0) == (1 << chunk_count(self.sizes[identifier])) - 1

    def _came(self, host: Host, identifier: bytes, first: int, count: int) -> None:
        super()._came(host, identifier, first, count)
        if self._has(host, identifier):
            for worker, job in self._waiting.pop((host.number, identifier), ()):
                job.missing.discard(identifier)
                if not job.missing:
                    self.later(job.seconds, partial(self._end, worker, job))

    def _end(self, worker: Slots, job: Job) -> None:
        result = result_id(job.id, job.attempt)
        self.sizes[result] = job.size_bytes
        self.hosts[worker.home].has[result] = (1 << chunk_count(job.size_bytes)) - 1
        job.ended_at = self.now
        self.left -= 1
        worker.running -= 1
        micros = int((self.now - job.began_at) * 1e6)
        payload = stored_reference(result, job.size_bytes)
        done = Done([job.id], [job.attempt], [Outcome.SUCCESS], [payload], [micros])
        self.later(LATENCY_SECONDS, partial(self._arrive, Received(worker.peer, done)))
        self._begin(worker)


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of a graph. busiest: traffic on the busiest link, relative to the mean. core_us: CPU time per task."""

    seconds: float
    bound_seconds: float
    moved_bytes: float
    busiest: float
    core_us: float

    @property
    def ratio(self) -> float:
        """Return the duration as a multiple of the lower bound."""
        return self.seconds / self.bound_seconds


def measure(world: WorkflowWorld, bound_seconds: float) -> Figures:
    moved, core = world.moved_bytes, world.core_seconds
    tasks = sum(not job.ended_at for job in world.jobs.values())
    seconds = world.compute()
    busiest = world.busiest_link if world.moved_bytes else 0.0
    return Figures(
        seconds, bound_seconds, world.moved_bytes - moved, busiest, (world.core_seconds - core) / tasks * 1e6
    )


def chain(length: int, megabytes: float, chains: int = 1, hosts: int = 4, slots: int = 1, others: int = 0) -> Figures:
    """Run chains, in which each task needs its predecessor's result, together with independent tasks."""
    world, seconds = WorkflowWorld(hosts, slots), 0.5
    for _ in range(chains):
        last: tuple[bytes, ...] = ()
        for _ in range(length):
            last = (world.job(seconds, megabytes, last),)
    for _ in range(others):
        world.job(0.2, 1, (), "other")
    work = sum(job.seconds for job in world.jobs.values()) / world.slots
    return measure(world, max(length * seconds, work))


def map_reduce(hosts: int = 8, slots: int = 2, blocks: int = 64) -> Figures:
    """Read blocks of 100 MB on each host with one task per block, and combine the results in a tree of tasks."""
    world = WorkflowWorld(hosts, slots)
    made = [world.make([1 + number % hosts], 100 * MB) for number in range(blocks)]
    world.run()
    level = [world.job(1.0, 4, (block,), "map") for block in made]
    bound, combined = blocks / world.slots, 8
    while len(level) > 1:
        level = [
            world.job(0.2, 4, level[first : first + combined], "reduce") for first in range(0, len(level), combined)
        ]
        bound += 0.2 * max(1.0, len(level) / world.slots)
    return measure(world, bound)


def shuffle(hosts: int = 8, slots: int = 8, parts: int = 64, megabytes: float = 4, *, checked: bool = False) -> Figures:
    """Create as many tables as parts. Other tasks split them, and each part needs a piece of each table."""
    world = WorkflowWorld(hosts, slots, checked=checked)
    tables = [world.job(1.0, megabytes * parts, (), "table") for _ in range(parts)]
    made = [[world.job(0.05, megabytes, (table,), "piece") for _ in range(parts)] for table in tables]
    for part in range(parts):
        world.job(1.0, 1, [pieces[part] for pieces in made], "join")
    crossing = parts * parts * megabytes * MB * (hosts - 1) / hosts
    waves = max(1.0, parts / world.slots)
    return measure(world, 2 * waves + parts * parts * 0.05 / world.slots + crossing / hosts / GIGABIT)


def layered(
    seed: int, hosts: int = 8, slots: int = 4, layers: int = 10, width: int = 64, *, checked: bool = False
) -> Figures:
    """Run a random graph: each task needs up to three results of the previous layer, of 1 to 50 MB each.

    In the lower bound, all inputs of a task except the largest may have to cross the link.
    """
    world, random = WorkflowWorld(hosts, slots, checked=checked), Random(seed)
    path: dict[bytes, float] = {}
    before: list[bytes] = []
    coming = 0.0
    for number in range(layers):
        layer = []
        for _ in range(width):
            inputs = random.sample(before, random.randint(1, 3)) if before else []
            seconds = random.uniform(0.2, 2.0)
            layer.append(world.job(seconds, random.uniform(1, 50), inputs, f"layer {number}"))
            sizes = [world.jobs[each].size_bytes for each in inputs]
            coming += sum(sizes) - max(sizes, default=0)
            path[layer[-1]] = seconds + max([path[each] for each in inputs], default=0.0)
        before = layer
    work = sum(job.seconds for job in world.jobs.values())
    return measure(world, max((work + coming / GIGABIT) / world.slots, *path.values()))


def many(hosts: int = 1000, slots: int = 4, chains: int = 4000, length: int = 5) -> Figures:
    """Run chains on many hosts, whose tasks also need a remote object, to measure the core's cost of placement."""
    world, random = WorkflowWorld(hosts, slots, checked=False), Random(1)
    tables = [world.make([1 + number % hosts], 2 * MB) for number in range(hosts)]
    world.run()
    longest = 0.0
    for _ in range(chains):
        last: tuple[bytes, ...] = ()
        durations = [random.uniform(0.5, 1.5) for _ in range(length)]
        longest = max(longest, sum(durations))
        for seconds in durations:
            last = (world.job(seconds, 40, (*last, random.choice(tables))),)
    return measure(world, longest)


def main() -> None:
    for name, figures in (
        ("chain of 50 x 200 MB on 4 hosts", chain(50, 200)),
        ("8 chains of 20 x 200 MB on 4 hosts", chain(20, 200, chains=8)),
        ("map and reduce, 64 x 100 MB on 8 hosts", map_reduce()),
        ("shuffle of 64 x 64 x 4 MB among 8 hosts", shuffle()),
        ("random graph, 10 x 64 tasks on 8 hosts", layered(1)),
        ("4,000 chains of 5 on 1,000 hosts", many()),
    ):
        print(
            f"{name}: {figures.seconds:.2f} s, {figures.ratio:.2f} of the lower bound; "
            f"{figures.moved_bytes / MB:,.0f} MB moved, busiest link {figures.busiest:.2f} of the mean; "
            f"{figures.core_us:.0f} us of the core per task",
            flush=True,
        )


if __name__ == "__main__":
    main()

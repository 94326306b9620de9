"""Measures the scheduler's core alone: CPU time per task in microseconds, and the longest step.

Run `python benchmarks/core.py [--tasks N]` to measure all sizes. The table of `all.py` contains only the largest.
Simulated workers finish each task one step after they received it, and report in one message per worker. A client
submits one batch per step and has received all results of earlier steps. In rows named *flood*, the client submits all
tasks at once, and then a hundred workers per step each finish ten tasks. Only the core's steps are timed, with the
scheduler's settings of the garbage collector.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import Figure, Row
from benchmarks.systems import Start
from scaler.config.servers import SchedulerConfig
from scaler.extensions.data_plane.core import DataPlane
from scaler.ids import IdFactory, content_id
from scaler.net.connection import Opened, Received
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    ClientDetails,
    Done,
    Finished,
    Hello,
    Outcome,
    Role,
    Run,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
)
from scaler.scheduler.core.commands import Input, Send
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.rooms import make_scaling
from scaler.scheduler.vitals import configure_collector

WORKERS = (2, 100, 10_000)
BATCHES = (1, 100, 1_000)
FLOOD_TURN = 100
FLOOD_TASKS = 10
STEP_SECONDS = 0.001
TASK_US = 1_000
CLIENT = b"client.."
FUNCTION = content_id(b"\x80")
SPEC = Spec(FUNCTION, name="function")

ROW = Row(
    title="scheduler core alone, batches of 1,000, {workers:,} simulated workers: us per task / longest step, ms",
    figures=(
        Figure("us per task", 8, is_higher_better=False),
        Figure("longest step, ms", 50, is_higher_better=False, is_noisy=True),
    ),
    full={"workers": 10_000, "tasks": 100_000},
    short={"workers": 10_000, "tasks": 20_000},
    systems=("scaler",),
)


@dataclass
class Bench:
    """A core with simulated peers, and the times of its steps."""

    workers: int
    seconds: float = 0.0
    longest: float = 0.0
    finished: int = 0
    number: int = 0
    now: float = 0.0
    holds: dict[bytes, deque[tuple[bytes, int]]] = field(default_factory=dict)
    """Tasks of each worker that has any, in the order in which workers report."""

    def __post_init__(self) -> None:
        self.ids = IdFactory(CLIENT)
        self.core = SchedulerCore(
            SchedulerConfig(bind_address="tcp://127.0.0.1:0"), self.now, make_scaling(), Rooms([DataPlane()])
        )
        joining = [Opened(CLIENT, hello(Role.CLIENT, ClientDetails("client")))]
        details = WorkerDetails("manager", "unit", 1, 1000, {})
        joining += [Opened(number.to_bytes(8, "big"), hello(Role.WORKER, details)) for number in range(self.workers)]
        self.core.step(joining, self.now)

    def step(self, inputs: Sequence[Input]) -> None:
        self.now += STEP_SECONDS
        before = time.thread_time()
        commands = self.core.step(inputs, self.now)
        took = time.thread_time() - before
        self.seconds += took
        self.longest = max(self.longest, took)
        for command in commands:
            if isinstance(command, Send):
                self.receive(command)

    def receive(self, command: Send) -> None:
        message = command.message
        if isinstance(message, Finished):
            self.finished += len(message.ids)
            self.number = message.number
        elif isinstance(message, Run):
            held = self.holds.setdefault(command.peer, deque())
            for group in message.groups:
                held.extend(zip(group.ids, group.attempts, strict=True))

    def submission(self, count: int) -> Received:
        ids = [self.ids.task() for _ in range(count)]
        payload = b"\x80 some arguments"
        return Received(CLIENT, Submit([(FUNCTION, b"\x80")], [TaskGroup(SPEC, ids, [payload] * count)], self.number))

    def results(self, workers: int, tasks: int) -> list[Received]:
        """Return reports from the next workers with tasks: each finishes up to this many."""
        said = []
        for peer in list(self.holds)[:workers]:
            held = self.holds.pop(peer)
            ended = [held.popleft() for _ in range(min(tasks, len(held)))]
            if held:
                self.holds[peer] = held
            count = len(ended)
            ids, attempts = [task for task, _ in ended], [attempt for _, attempt in ended]
            done = Done(ids, attempts, [Outcome.SUCCESS] * count, [b"\x80 a value"] * count, [TASK_US] * count)
            said.append(Received(peer, done))
        return said

    def steady(self, tasks: int, batch: int) -> None:
        """Submit one batch per step. Every dispatched task finishes before the next step."""
        submitted = 0
        while self.finished < tasks:
            inputs: list[Input] = list(self.results(self.workers, tasks))
            if submitted < tasks:
                inputs.append(self.submission(batch))
                submitted += batch
            self.step(inputs)

    def flood(self, tasks: int) -> None:
        """Submit everything. Then a hundred workers finish ten tasks each per step."""
        for _ in range(0, tasks, 1_000):
            self.step([self.submission(1_000)])
        while self.finished < tasks:
            self.step(self.results(FLOOD_TURN, FLOOD_TASKS))


def scenario(_start: Start, workers: int, tasks: int) -> dict[str, float]:
    """Measure the row. Runs only the core and starts no system."""
    configure_collector()
    bench = Bench(workers)
    bench.steady(tasks, 1_000)
    return {"us per task": bench.seconds / bench.finished * 1e6, "longest step, ms": bench.longest * 1e3}


def hello(role: Role, details: ClientDetails | WorkerDetails) -> Hello:
    return Hello(role, False, PROTOCOL_VERSION, "", "", "", "host", 1, details)


def row(name: str, bench: Bench) -> None:
    per_task = bench.seconds / bench.finished * 1e6
    print(f"{bench.workers:>8,} {name:>8} {per_task:>14.2f} {bench.longest * 1e3:>16.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks per row (default: %(default)s)")
    tasks = parser.parse_args().tasks
    configure_collector()
    print(f"{'workers':>8} {'batch':>8} {'us per task':>14} {'longest step ms':>16}")
    for workers in WORKERS:
        for batch in BATCHES:
            bench = Bench(workers)
            bench.steady(max(batch, tasks // 10 if batch == 1 else tasks), batch)
            row(f"{batch:,}", bench)
        bench = Bench(workers)
        bench.flood(max(tasks, 20 * workers))
        row("flood", bench)


if __name__ == "__main__":
    main()

"""One client of a chaos run, in a separate process: `python -m tests.chaos.workload` with settings as a JSON document.

Several threads perform activities until the end, and record their requests and results. To add a kind of work, add a
function to ACTIVITIES.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from scaler import Client, ScalerFuture
from scaler.errors import ScalerError, TaskError
from tests.chaos import tasks
from tests.chaos.history import CallFailed, Cancelled, Delivered, History, Submitted, now, read

DEFAULT_RETRIES = 3
THREADS = 4
EXPLAIN_SECONDS = 30.0
"""Time that a client waits after the end of the run before it reports pending futures."""
REPEATED = 30
"""Number of finished tasks in a durable session that the session's next program resubmits."""
MIB = 1024 * 1024
HOSTS = ("near", "far", "farther")
"""Capabilities of each host's workers. Workers on the near host use the object storage; the others have a store."""
LARGE_ROUNDS = 40
"""Number of times that each thread of a client with large initial values replaces them. After that, the C library's
free memory per thread is near its limit."""


@dataclass(frozen=True)
class Order:
    """Settings of a client. until: monotonic time after which the client starts nothing new."""

    name: str
    address: str
    directory: str
    seed: int
    until: float
    credentials: str | None = None
    keeps_objects: bool = True
    """Whether to send objects, which exist until the client exits."""
    session: str = ""
    """Durable session whose tasks the client submits, each with a key. If empty, the client performs the activities."""
    begins_large: bool = False
    """Whether to start with large values in all threads at once."""


class Workload:
    """State shared by the activities of one thread."""

    def __init__(self, client: Client, order: Order, history: History, thread: int) -> None:
        self.client = client
        self.order = order
        self.directory = order.directory
        self.random = Random(f"{order.seed} {order.name} {thread}")
        self.history = history
        self.followed: dict[str, ScalerFuture] = {}
        """The futures of the current activity."""
        self.staying: dict[str, tuple[ScalerFuture, int]] = {}
        """Tasks whose values only other tasks use, with the sizes of their values."""
        self._prefix = f"{order.name}-{thread}"
        self._numbers = count()

    def name(self, activity: str) -> str:
        return f"{self._prefix}-{next(self._numbers)}-{activity}"

    def announce(self, task: str, expects: str, retries: int = DEFAULT_RETRIES, inputs: Sequence[str] = ()) -> None:
        self.history.add(Submitted(now(), task, self.order.name, retries, expects, list(inputs)))

    def deliver(self, task: str, value: object = None, error: BaseException | None = None) -> None:
        kind = "" if error is None else type(error).__name__
        self.history.add(Delivered(now(), task, kind, tasks.shown(value) if error is None else str(error)))

    def follow(self, task: str, future: ScalerFuture) -> ScalerFuture:
        """Record a future's outcome when it ends."""

        def ended(done: Any) -> None:
            try:
                error = done.exception()
            except CancelledError as cancelled:
                self.deliver(task, error=cancelled)
            else:
                self.deliver(task, None if error else done.result(), error)

        self.followed[task] = future
        future.add_done_callback(ended)
        return future

    def submit(
        self, function: Callable[..., Any], task: str, *arguments: object, expects: str = "", retries: int | None = None
    ) -> ScalerFuture:
        """Submit and record one task. retries: usually the default, sometimes 0."""
        if retries is None:
            retries = 0 if self.random.random() < 0.2 else DEFAULT_RETRIES
        self.announce(task, expects or tasks.value_of(task), retries)
        future = self.client.submit_verbose(function, (self.directory, task, *arguments), retries=retries)
        return self.follow(task, future)

    def make(self, host: str, size: int, of: str = "") -> str:
        """Submit a task whose value stays on its host, and return its name. of: a similar task that it uses."""
        task = self.name("made")
        self.announce(task, tasks.value_of(task), inputs=[of] if of else [])
        arguments: tuple[object, ...] = (self.directory, task)
        if of:
            future = self._on(host, tasks.large, (*arguments, self.staying[of][0], of, size))
        else:
            future = self._on(host, tasks.made, (*arguments, size))
        self.staying[task] = future, size
        if self.random.random() < 0.4:
            self.client.persist(future)
        return task

    def use(self, host: str, *made: str) -> ScalerFuture:
        """Submit a task that uses the values of the given tasks."""
        task = self.name("used")
        self.announce(task, tasks.value_of(task), inputs=made)
        sizes = {each: self.staying[each][1] for each in made}
        data = [self.staying[each][0] for each in made]
        return self.follow(task, self._on(host, tasks.used, (self.directory, task, sizes, *data)))

    def _on(self, host: str, function: Callable[..., Any], arguments: tuple[object, ...]) -> ScalerFuture:
        return self.client.submit_verbose(function, arguments, capabilities={host: None}, retries=DEFAULT_RETRIES)

    def settle(self, users: list[ScalerFuture]) -> None:
        """Wait for the tasks that use values, and record the outcomes of the tasks that made the values.

        Some of the values are requested. If all is correct, the others are dropped, which counts as delivered, because
        nothing needs them afterwards.
        """
        self.wait(users)
        has_failed = any(user.cancelled() or user.exception() is not None for user in users)
        for task, (future, size) in self.staying.items():
            if not has_failed and self.random.random() < 0.5:
                self.deliver(task, tasks.value_of(task))
                continue
            error = future.exception()
            if error is not None:
                self.deliver(task, error=error)
            else:
                value = future.result()
                is_right = tasks.is_value_of(task, value, size)
                self.deliver(task, tasks.value_of(task) if is_right else value)
        self.staying.clear()

    def wait(self, futures: list[ScalerFuture]) -> None:
        for future in futures:
            with suppress(CancelledError):
                future.exception()


def tiny(work: Workload) -> None:
    work.wait([work.submit(tasks.tiny, work.name("tiny")) for _ in range(work.random.choice((1, 5, 50, 200)))])


def long(work: Workload) -> None:
    seconds = [work.random.choice((0.1, 0.5, 2.0, 5.0)) for _ in range(work.random.randrange(1, 5))]
    work.wait([work.submit(tasks.long, work.name("long"), each) for each in seconds])


def failing(work: Workload) -> None:
    for _ in range(3):
        task = work.name("failing")
        work.wait([work.submit(tasks.failing, task, expects=f"ValueError: {tasks.value_of(task)}")])


def large(work: Workload) -> None:
    futures = []
    for _ in range(2):
        task, size = work.name("large"), work.random.choice((1, 2, 4, 16)) * MIB
        expects = tasks.shown(tasks.bytes_of(task, size))
        of = f"argument of {task}"
        futures.append(
            work.submit(tasks.large, task, tasks.bytes_of(of, size), of, size, expects=expects, retries=DEFAULT_RETRIES)
        )
    work.wait(futures)


def shared(work: Workload) -> None:
    """One object that several tasks read."""
    of, size = work.name("object"), work.random.choice((1, 4)) * MIB
    sent = work.client.send_object(tasks.bytes_of(of, size))
    futures = []
    for _ in range(4):
        task = work.name("shared")
        expects = tasks.shown(tasks.bytes_of(task, size))
        futures.append(work.submit(tasks.large, task, sent, of, size, expects=expects, retries=DEFAULT_RETRIES))
    work.wait(futures)


def chained(work: Workload) -> None:
    """Three times, a large result becomes the argument of the next task."""
    size = 2 * MIB
    of = work.name("chained")
    previous: Any = tasks.bytes_of(of, size)
    futures = []
    for _ in range(3):
        task = work.name("chained")
        expects = tasks.shown(tasks.bytes_of(task, size))
        previous = work.submit(tasks.large, task, previous, of, size, expects=expects, retries=DEFAULT_RETRIES)
        futures.append(previous)
        of = task
    work.wait(futures)


def graph(work: Workload) -> None:
    """Two layers over one source, and a sink."""
    source, sink = work.name("source"), work.name("sink")
    middle = [work.name("middle") for _ in range(work.random.randrange(2, 9))]
    plan: dict[str, Any] = {"directory": work.directory}
    for task, inputs in ((source, []), *((each, [source]) for each in middle), (sink, middle)):
        plan[f"name {task}"] = f"task {task}"  # a string that is not itself a key
        plan[task] = (tasks.joined, "directory", f"name {task}", *inputs)
    values = {task: f"{tasks.value_of(task)}({tasks.value_of(source)})" for task in middle}
    expects = tasks.value_of(sink) + "".join(f"({value})" for value in values.values())
    work.announce(sink, expects)
    work.announce(middle[0], values[middle[0]])
    futures = work.client.get(plan, [sink, middle[0]], block=False)
    work.wait([work.follow(str(task), future) for task, future in futures.items()])


def nested(work: Workload) -> None:
    work.wait([work.submit(tasks.nested, work.name("nested"), 3, work.random.choice((1, 1, 2)))])


def cancel(work: Workload) -> None:
    """Cancel some of several tasks: waiting, running, or ended."""
    seconds = work.random.choice((0.0, 0.3, 3.0))
    names = [work.name("cancel") for _ in range(6)]
    futures = [work.submit(tasks.long, task, seconds) for task in names]
    time.sleep(work.random.choice((0.0, 0.05, 0.5)))  # simulates a program's pauses between calls
    for task, future in list(zip(names, futures, strict=True))[::2]:
        said = future.cancel()
        work.history.add(Cancelled(now(), task, said))
    work.wait(futures)


def imap(work: Workload) -> None:
    names = [work.name("imap") for _ in range(work.random.choice((20, 300)))]

    def announced() -> Any:
        for task in names:
            work.announce(task, tasks.value_of(task))
            yield task

    results = work.client.imap(tasks.tiny, [work.directory] * len(names), announced(), return_exceptions=True)
    for task, value in zip(names, results, strict=True):
        work.deliver(task, value, value if isinstance(value, BaseException) else None)


def moved(work: Workload) -> None:
    """Move values from one host to tasks on another host, which use them together and one by one."""
    maker, user = work.random.sample(HOSTS, 2)
    made = [work.make(maker, work.random.choice((1, 2, 5, 20)) * MIB) for _ in range(work.random.randrange(1, 4))]
    work.settle([work.use(user, *made), *(work.use(user, each) for each in made)])


def passed_on(work: Workload) -> None:
    """Pass a value between hosts, each of which derives another value from it."""
    size = work.random.choice((1, 2, 5)) * MIB
    last = work.make(work.random.choice(HOSTS), size)
    for _ in range(work.random.randrange(2, 6)):
        last = work.make(work.random.choice(HOSTS), size, of=last)
    work.settle([work.use(work.random.choice(HOSTS), last)])


def broadcast(work: Workload) -> None:
    """Use a value on all hosts at the same time."""
    made = work.make(work.random.choice(HOSTS), work.random.choice((2, 10, 20)) * MIB)
    work.settle([work.use(host, made) for host in HOSTS for _ in range(2)])


def gang(work: Workload) -> None:
    size = work.random.choice((2, 3))
    task = work.name("gang")
    work.announce(task, tasks.shown([f"{rank} of {size}" for rank in range(size)]))
    future = work.client.gang(tasks.ganged, size, work.directory, task, retries=DEFAULT_RETRIES)
    work.wait([work.follow(task, future)])


def stream(work: Workload) -> None:
    task, size, restart = work.name("stream"), work.random.choice((3, 50, 400)), work.random.random() < 0.5
    expected = [f"{tasks.value_of(task)} {number}" for number in range(size)]
    work.announce(task, tasks.shown(expected), DEFAULT_RETRIES if restart else 0)
    options: dict[str, Any] = {"retries": DEFAULT_RETRIES} if restart else {}
    try:
        found = list(work.client.stream(tasks.streamed, work.directory, task, size, restart=restart, **options))
    except TaskError as error:
        work.deliver(task, error=error)
    else:
        work.deliver(task, found)


def preempted(work: Workload) -> None:
    """Run long preemptible tasks, and urgent tasks that may stop them."""
    options: dict[str, Any] = {"retries": DEFAULT_RETRIES, "preemptible": True, "priority": -1}
    names = [work.name("preemptible") for _ in range(work.random.choice((2, 8)))]
    for task in names:
        work.announce(task, tasks.value_of(task))
    futures = [
        work.follow(task, work.client.submit_verbose(tasks.long, (work.directory, task, 2.0), **options))
        for task in names
    ]
    for _ in range(3):
        task = work.name("urgent")
        work.announce(task, tasks.value_of(task))
        future = work.client.submit_verbose(tasks.tiny, (work.directory, task), retries=DEFAULT_RETRIES, priority=9)
        futures.append(work.follow(task, future))
    work.wait(futures)


def conditional(work: Workload) -> None:
    """Run tasks near others with the same name, and tasks that share a limit of the cluster."""
    futures = []
    for number in range(work.random.choice((4, 40))):
        task = work.name("conditional")
        work.announce(task, tasks.value_of(task))
        terms: dict[str, Any] = {"near": f"name {number % 3}"} if number % 2 else {"limits": {"db": 1}}
        future = work.client.submit_verbose(tasks.tiny, (work.directory, task), retries=DEFAULT_RETRIES, **terms)
        futures.append(work.follow(task, future))
    work.wait(futures)


Activity = Callable[[Workload], None]
TRANSFERS: tuple[Activity, ...] = (moved, passed_on, broadcast)
ACTIVITIES: tuple[Activity, ...] = (
    tiny, tiny, long, failing, large, shared, chained, graph, nested, cancel, imap, *TRANSFERS, gang, stream,
    preempted, conditional,
)  # fmt: skip


def resume(order: Order) -> None:
    """Submit the tasks of a durable session, each with its name as key, and resubmit tasks of earlier programs.

    Outcomes that an earlier program received must be equal. Failed tasks are not resubmitted: they would run again.
    """
    earlier = [line for line in read(order.directory) if getattr(line, "client", "") == order.name]
    names = [line.task for line in earlier if isinstance(line, Submitted)]
    given = {line.task: line for line in read(order.directory) if isinstance(line, Delivered)}
    history = History(order.directory, order.name)
    with Client(order.address, name=order.name, credentials=order.credentials, session=order.session) as client:
        work = Workload(client, order, history, 0)

        def submit(task: str) -> ScalerFuture:
            random = Random(task)
            retries, seconds = random.choice((0, DEFAULT_RETRIES)), random.choice((0.0, 0.0, 0.1, 2.0))
            if task not in names:
                work.announce(task, tasks.value_of(task), retries)
            return client.submit_verbose(tasks.long, (order.directory, task, seconds), retries=retries, key=task)

        again = [task for task in names if task not in given]
        work.wait([work.follow(task, submit(task)) for task in again])
        for task in [task for task in names if task in given and not given[task].error][-REPEATED:]:
            future = submit(task)
            with suppress(CancelledError):
                error = future.exception()
                value = None if error else future.result()
                if error is None and value != tasks.value_of(task):
                    work.deliver(task, value)
        for batch in count(len(names)):
            if now() >= order.until:
                break
            new = [f"{order.name}-{batch}-{number}" for number in range(work.random.choice((1, 5, 20)))]
            work.wait([work.follow(task, submit(task)) for task in new])
    print(f"{order.name} has ended", flush=True)


def run(order: Order) -> None:
    """Perform activities in several threads until the end, and wait for all outcomes."""
    history = History(order.directory, order.name)
    with Client(order.address, name=order.name, credentials=order.credentials) as client:
        activities = [each for each in ACTIVITIES if each is not shared or order.keeps_objects]
        workloads = [Workload(client, order, history, number) for number in range(THREADS)]

        def work(workload: Workload) -> None:
            for _ in range(LARGE_ROUNDS if order.begins_large else 0):
                workload.followed.clear()
                large(workload)
            while now() < order.until:
                workload.followed.clear()
                workload.staying.clear()
                activity = workload.random.choice(activities)
                try:
                    activity(workload)
                except Exception as error:  # noqa: BLE001 (records the failed call and continues)
                    failed = CallFailed(now(), order.name, activity.__name__, f"{type(error).__name__}: {error}")
                    history.add(failed)
                    print(failed, flush=True)
                    time.sleep(0.5)  # prevents calls that fail immediately from flooding the history

        threads = [threading.Thread(target=work, args=(workload,)) for workload in workloads]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, order.until + EXPLAIN_SECONDS - now()))
        if any(thread.is_alive() for thread in threads):
            explain(client, workloads)
        for thread in threads:
            thread.join()
    print(f"{order.name} has ended", flush=True)


def explain(client: Client, workloads: list[Workload]) -> None:
    """Print the reasons for which futures are still waiting."""
    faulthandler.dump_traceback()
    for workload in workloads:
        for task, future in list(workload.followed.items()):
            if not future.done():
                try:
                    print(f"{task} waits: {client.explain(future)}", flush=True)
                except ScalerError as error:
                    print(f"{task} waits, and explain raises {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    ordered = Order(**json.loads(sys.argv[1]))
    (resume if ordered.session else run)(ordered)

"""Finds at most three improvements to a cluster or its programs, with evidence, and whether the network is slow. Pure.

A finding requires that all states within `RECENT_SECONDS` agree. Of related findings, only the cause is reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from scaler.grammar import called, counted, listed, sized, timed
from scaler.median import median
from scaler.monitor.cluster_rows import CANCELLED, DONE, LIVE, FindingRow, FunctionRow, ManagerRow, Status, TaskRow
from scaler.monitor.data_rows import NetworkRow
from scaler.monitor.model import Model
from scaler.texts import pattern

MAX_FINDINGS = 3
LEAST_SECONDS = 20.0
LEAST_STATES = 10
"""Minimum states in a window. A shorter window follows a cluster start or an interrupted connection."""
MAX_TASKS_READ = 2_000
"""Number of most recent tasks read, which takes a few milliseconds."""
BUSY_SHARE = 0.9
"""Share of busy slots below which the number of slots is not the bottleneck."""
SHORT_SECONDS = 0.002
"""A fifth of the target duration of a chunk in `map`. Only an explicit chunk_size yields chunks this short."""
CHUNK_SECONDS = 0.01
"""Target duration of a chunk in `map`, which does not join longer tasks."""
MANY_TASKS = 1_000
OVERHEAD_SHARE = 0.3
"""Below this share, other causes are as likely, such as slow processors of a shared machine."""
INPUTS_SHARE = 0.5
INPUTS_SECONDS = 0.01
"""Below this time, a fetch is a round trip, not a transfer."""
LEAST_TASKS = 20
"""Minimum tasks of a function or a worker, so that failures or waits are not a coincidence."""
WAIT_SECONDS = 60.0
"""Minimum age of waiting tasks in a finding. Workers start faster, except in a cloud."""
QUEUE_SECONDS = 120.0
"""Below this time, the work ends before more workers would help."""
IDLE_SHARE = 0.25
SCHEDULER_PERCENT = 80.0
"""Percent of one CPU, the most that the scheduler can use."""
SCHEDULER_TASKS = 1_000.0
"""Tasks per second. At lower rates, tasks are not the scheduler's main load."""
FAILING_SHARE = 0.5
FAILING_HEAT = 100
SAME_SHARE = 0.8
"""Minimum share of a function's failures with the same message."""
FULL_PERCENT = 90.0
MAX_TEXT = 300
LATE_SECONDS = 0.05
"""Lag at which the scheduler delays everything."""
SLOW_STORAGE_SECONDS = 0.1
SLOW_SECONDS = 0.02
"""Round trip above that of a network within one building."""
MUCH_SLOWER = 5.0
"""A host is slow if its round trip is this many times the other hosts' round trip."""
MANY_BYTES = 8 * 1024 * 1024
"""Bytes that a peer has not received. A healthy connection has fewer in flight."""
MAX_NAMED = 3

MAP_PAGE = "docs/client.md#map-and-starmap"


class _Window:
    """The latest states, and the differences between the first and the last of them."""

    def __init__(self, states: Sequence[Status], tasks: Iterable[TaskRow]) -> None:
        """states: at least two of one scheduler, in order. tasks: latest first."""
        first, last = states[0], states[-1]
        self.states, self.last = states, last
        self.seconds = last.at - first.at
        self.past = f"the last {self.seconds:.0f} s"
        self.tasks_of: defaultdict[str, list[TaskRow]] = defaultdict(list)
        """Listed tasks that ran to their end on a worker, by function."""
        for task in tasks:
            if task.lane and task.state not in (*LIVE, CANCELLED) and (task.ended_at or 0.0) >= first.at:
                self.tasks_of[task.function].append(task)
        self.ended = last.tasks.ended_total - first.tasks.ended_total
        self.done = last.tasks.ended.get(DONE, 0) - first.tasks.ended.get(DONE, 0)
        self.per_second = self.ended / self.seconds
        self.slots = last.totals.slots
        before = {row.name: row for row in first.functions}
        all_listed = first.totals.functions <= len(first.functions)
        self.ran: dict[str, FunctionRow] = {}
        """Functions by name, with the number and total time of tasks that ended in the window."""
        for row in last.functions:
            known = before.get(row.name, FunctionRow() if all_listed else None)
            if known is not None and known.ended <= row.ended and known.failed <= row.failed:
                seconds = max(0.0, row.seconds_total - known.seconds_total)
                ended, failed = row.ended - known.ended, row.failed - known.failed
                self.ran[row.name] = row._replace(ended=ended, failed=failed, seconds_total=seconds)

    @property
    def is_steady(self) -> bool:
        """True if all states have the same slots and at least `BUSY_SHARE` of the slots were busy in each."""
        slots, busy = self.slots, BUSY_SHARE * self.slots
        return slots > 0 and all(each.totals.slots == slots and each.tasks.running >= busy for each in self.states)

    def busy_slots(self, function: str) -> float:
        seconds = self.ran[function].seconds_total if function in self.ran else 0.0
        return min(float(self.slots), seconds / self.seconds)


def findings(model: Model) -> list[FindingRow]:
    """Return at most `MAX_FINDINGS` findings, the most costly first. Empty without evidence."""
    states = list(model.recent)
    if len(states) < LEAST_STATES or states[-1].at - states[0].at < LEAST_SECONDS:
        return []
    window = _Window(states, model.tasks(limit=MAX_TASKS_READ))
    overhead = _short_tasks(window) or _busy_scheduler(window)
    found = [
        *(overhead or [*_full_managers(window), *_lacking_capabilities(window)]),  # more workers would also wait
        *_slow_inputs(window),
        *_failing_workers(window),
        *_failing_functions(window),
        *_full_storage(window),
    ]
    found += [row for part in model.parts for row in part.findings()]
    return sorted(found, key=lambda row: (-row.slots_lost, row.kind, row.subject))[:MAX_FINDINGS]


def _short_tasks(window: _Window) -> list[FindingRow]:
    """All slots run tasks of one function that are so short that the time between tasks matters."""
    name, ran = max(window.ran.items(), key=lambda item: item[1].ended, default=("", FunctionRow()))
    is_alone = ran.ended >= 0.99 * window.ended and window.done >= 0.99 * window.ended
    if not (ran.ended >= MANY_TASKS and is_alone and window.is_steady and not ran.has_chunks) or any(
        each.tasks.suspended or any(row.running for row in each.functions if row.name != name) for each in window.states
    ):
        return []
    mean, lost = ran.seconds_total / ran.ended, window.slots - window.busy_slots(name)
    if mean > SHORT_SECONDS or lost < OVERHEAD_SHARE * window.slots:
        return []
    text = (
        f"{counted(ran.ended, 'task')} of {called(name)} ended in {window.past} and took {timed(mean)} on average: "
        f"{100 * lost / window.slots:.0f} % of the time of {counted(window.slots, 'slot')} was spent between tasks."
    )
    advice = "Call it with client.map without a chunk_size, which sends many calls as one task, or do more per call."
    return [FindingRow("short_tasks", name, text, advice, MAP_PAGE, lost)]


def _busy_scheduler(window: _Window) -> list[FindingRow]:
    """The scheduler is the bottleneck, and its tasks are short enough that fewer, longer tasks would relieve it."""
    least = min(each.scheduler.cpu_percent for each in window.states)
    seconds = sum(ran.seconds_total for ran in window.ran.values())
    ended = sum(ran.ended for ran in window.ran.values())
    mean = seconds / ended if min(ended, window.done) >= 0.9 * window.ended > 0 else inf
    is_busy = least >= SCHEDULER_PERCENT and window.per_second >= SCHEDULER_TASKS
    if not is_busy or mean > CHUNK_SECONDS or any(ran.has_chunks for ran in window.ran.values()):
        return []
    text = (
        f"The scheduler used at least {least:.0f} % of a CPU throughout {window.past}, for "
        f"{counted(round(window.per_second), 'task')} per second that took {timed(mean)} on average."
    )
    advice = "Send fewer and longer tasks: client.map without a chunk_size sends many short calls as one task."
    lost = max(0.0, window.slots - seconds / window.seconds)
    return [FindingRow("busy_scheduler", "scheduler", text, advice, MAP_PAGE, lost)]


def _full_managers(window: _Window) -> list[FindingRow]:
    """Work that any worker can do has long been waiting, and no manager may start another unit."""
    last, managers = window.last, window.last.managers
    ready = sum(row.ready for row in last.waiting if not row.capabilities)
    seconds = ready / window.per_second if window.per_second > 0 else inf
    oldest = max((row.age_seconds for row in last.waiting if row.ready and not row.capabilities), default=0.0)
    are_full = bool(managers) and len(managers) >= last.totals.managers and all(map(_is_full, managers))
    is_short = ready > 0 and all(each.tasks.ready > 0 for each in window.states) and window.is_steady
    if not (are_full and is_short and seconds >= QUEUE_SECONDS and oldest >= WAIT_SECONDS) or last.spending.reached:
        return []
    wait = (
        f"enough for {timed(seconds)} at the current rate" if window.per_second > 0 else f"none ended in {window.past}"
    )
    limits = listed([f"{row.id} {row.running * row.unit_slots:,} of {row.max_slots:,}" for row in managers], 3)
    text = f"{counted(ready, 'task')} wait for a slot, {wait}. Slot limits of worker managers are reached: {limits}."
    advice = "Raise max_task_concurrency if the machine or the account has capacity, or start another worker manager."
    lost = float(min(ready, window.slots))
    return [FindingRow("managers_full", managers[0].id, text, advice, "docs/settings.md", lost)]


def _is_full(row: ManagerRow) -> bool:
    slots = row.running * row.unit_slots
    return not row.pending and not row.trouble and 0 < row.max_slots < slots + row.unit_slots and row.unit_slots > 0


def _slow_inputs(window: _Window) -> Iterator[FindingRow]:
    """Most tasks of a function spend most of their time waiting for stored inputs."""
    for name, tasks in window.tasks_of.items():
        waited = [task for task in tasks if task.inputs_us >= INPUTS_SECONDS * 1e6]
        inputs, durations = sum(task.inputs_us for task in tasks), sum(task.duration_us for task in tasks)
        if len(tasks) < LEAST_TASKS or len(waited) < len(tasks) / 2 or inputs < INPUTS_SHARE * durations:
            continue
        share, size = min(1.0, inputs / max(1, durations)), sum(task.inputs_bytes for task in waited) / len(waited)
        text = (
            f"{len(waited):,} of the last {len(tasks):,} listed tasks of {called(name)} waited for stored inputs "
            f"({sized(size)} on average), for {100 * share:.0f} % of their total duration."
        )
        advice = (
            "Pass less data to each task. Send a value that many tasks use only once with client.send_object, "
            "or load it once per process with preload."
        )
        page = "docs/client.md#large-objects"
        yield FindingRow("slow_inputs", name, text, advice, page, share * window.busy_slots(name))


def _lacking_capabilities(window: _Window) -> Iterator[FindingRow]:
    """Slots are idle while tasks wait for capabilities that the slots' workers do not offer."""
    last = window.last
    idle = min(each.totals.slots - each.tasks.running for each in window.states)
    if idle < max(1, IDLE_SHARE * window.slots) or last.spending.reached or any(row.pending for row in last.managers):
        return
    for row in last.waiting:
        if not (row.capabilities and row.ready and row.reason) or row.age_seconds < WAIT_SECONDS:
            continue
        text = (
            f"{counted(row.ready, 'task')} of {called(row.function)} that need {row.capabilities} wait, the oldest for "
            f"{timed(row.age_seconds)}, while at least {idle:,} of {counted(window.slots, 'slot')} had no task in "
            f"{window.past}: {row.reason}."
        )
        advice = f"Start workers that offer {row.capabilities}, or reduce the tasks' needs."
        page = "docs/troubleshooting.md#waiting-tasks"
        yield FindingRow("lacking_capabilities", row.function, text, advice, page, float(min(idle, row.ready)))


def _failing_workers(window: _Window) -> Iterator[FindingRow]:
    """Tasks fail on one worker but succeed on other workers."""
    for row in window.last.workers:
        if row.failures_heat == row.heat == FAILING_HEAT:
            text = f"Worker {row.name}: {row.fault}."
            advice = "Check its tasks' errors and its host's log (disk, memory, modules), then replace it."
            page = "docs/troubleshooting.md#failures"
            yield FindingRow("failing_worker", row.name, text, advice, page, float(row.slots))


def _failing_functions(window: _Window) -> Iterator[FindingRow]:
    """A function keeps failing with one message, and not only on the worker where it fails most."""
    for name, ran in window.ran.items():
        tasks = window.tasks_of[name]
        failed = [task for task in tasks if task.failed]
        if ran.ended < LEAST_TASKS or ran.failed < FAILING_SHARE * ran.ended or len(failed) < LEAST_TASKS:
            continue
        ((worst, _),) = Counter(task.worker for task in failed).most_common(1)
        others = [task.failed for task in tasks if task.worker != worst]
        if others and sum(others) < FAILING_SHARE * len(others):
            continue
        texts = Counter(pattern(task.text) for task in failed)
        ((most, times),) = texts.most_common(1)
        if times < SAME_SHARE * len(failed):
            continue
        same = [task for task in failed if pattern(task.text) == most]
        said = {task.text for task in same}
        share = min(1.0, ran.failed / ran.ended)
        text = (
            f"{ran.failed:,} of {counted(ran.ended, 'task')} of {called(name)} that ended in {window.past} failed; "
            f"{times:,} of {len(failed):,} listed have the message: {most if len(said) > 1 else said.pop()[:MAX_TEXT]}"
        )
        advice = f'Fix the cause before more tasks run, and replay one task: client.replay("{same[0].id}").'
        page = "docs/client.md#replay-a-failed-task"
        yield FindingRow("failing_function", name, text, advice, page, share * window.busy_slots(name))


def _full_storage(window: _Window) -> list[FindingRow]:
    """The object storage is nearly full and does not spill. A host's store is full of copies by design."""
    rows = [each.storage for each in window.states]
    least = min(100.0 * row.bytes / row.limit_bytes if row.limit_bytes > 0 else 0.0 for row in rows)
    if least < FULL_PERCENT or any(row.spilled_bytes for row in rows):
        return []
    row = rows[-1]
    text = (
        f"The object storage uses {sized(row.bytes)} of {sized(row.limit_bytes)}, and was at least {least:.0f} % full "
        f"throughout {window.past}. When it is full, producers wait, and new objects are refused after 5 s."
    )
    advice = "Release futures and references, call client.clear() between phases, or set a spill_directory."
    page = "docs/memory.md#object-storage-limit"
    return [FindingRow("full_storage", "object storage", text, advice, page, float(window.slots))]


# -- network


def network(status: Status) -> NetworkRow:
    """Decide from the last state whether the network or the cluster itself makes tasks wait."""
    own, storage_seconds = status.scheduler, status.storage.latency_seconds
    if max(own.lag_seconds_max, own.step_seconds_max) >= LATE_SECONDS:
        text = (
            f"The scheduler is busy: its loop was {timed(own.lag_seconds_max)} late and its longest step took "
            f"{timed(own.step_seconds_max)}, at {own.cpu_percent:.0f} % of a CPU. This delays every answer."
        )
        return NetworkRow("scheduler", text)
    if (full := _full_links(status)) is not None:
        return full
    if storage_seconds >= SLOW_STORAGE_SECONDS:
        after = timed(storage_seconds)
        text = f"The object storage answers the scheduler after {after}: it is busy, or the network to it is slow."
        return NetworkRow("storage", text)
    found: dict[str, list[float]] = defaultdict(list)
    for worker in status.workers:
        if worker.connected and worker.latency_seconds:
            found[worker.host].append(worker.latency_seconds)
    rounds = {host: min(seconds) for host, seconds in found.items()}
    return _slow_hosts(rounds, own.host) or NetworkRow("none", _none(status, rounds))


def _full_links(status: Status) -> NetworkRow | None:
    full = [link for link in status.links if link.outbox_bytes >= MANY_BYTES]
    if not full:
        return None
    worst = max(full, key=lambda link: link.outbox_bytes)
    more = f"; {counted(len(full) - 1, 'other peer')} too" if len(full) > 1 else ""
    name = f"{worst.kind} {worst.name}" + (f" on {worst.host}" if worst.host else "")
    text = (
        f"The connection to {name} is saturated: {worst.outbox_bytes / 1e6:,.0f} MB are queued, and it carries "
        f"{worst.sent_per_second / 1e6:,.1f} MB/s{more}."
    )
    return NetworkRow("network", text)


def _slow_hosts(rounds: Mapping[str, float], own: str) -> NetworkRow | None:
    """own: the scheduler's host."""
    slow = sorted((host for host, seconds in rounds.items() if seconds >= SLOW_SECONDS), key=lambda host: -rounds[host])
    if not slow:
        return None
    if own in slow:
        return NetworkRow(
            "machine",
            f"The machine of the scheduler has too little CPU: agents on {own}, which need no network, have a "
            f"round trip of {timed(rounds[own])}.",
        )
    others = [seconds for host, seconds in rounds.items() if host not in slow]
    if others and median(others) * MUCH_SLOWER <= rounds[slow[-1]]:
        names = ", ".join(slow[:MAX_NAMED])
        more = f" and {counted(len(slow) - MAX_NAMED, 'other host')}" if len(slow) > MAX_NAMED else ""
        return NetworkRow(
            "network",
            f"The network to {names}{more} is slow: a round trip takes up to {timed(rounds[slow[0]])}, compared with "
            f"{timed(median(others))} for other hosts.",
        )
    return NetworkRow(
        "distance",
        f"The workers are far away: the median round trip is {timed(median(rounds.values()))} over "
        f"{counted(len(rounds), 'host')}. Workers receive tasks 1.5 round trips in advance, so slots stay busy, but a "
        "single task waits for a round trip.",
    )


def _none(status: Status, rounds: Mapping[str, float]) -> str:
    parts = [f"the scheduler's loop was at most {timed(status.scheduler.lag_seconds_max)} late"]
    if status.storage.latency_seconds:
        parts.append(f"the object storage answers after {timed(status.storage.latency_seconds)}")
    if rounds:
        host, longest = max(rounds.items(), key=lambda item: item[1])
        parts.insert(0, f"round trips take {timed(median(rounds.values()))}, at most {timed(longest)} to {host}")
    return f"Neither the network nor the scheduler is slow: {', '.join(parts)}."

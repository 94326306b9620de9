"""Task demand, as the scaling policy sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from scaler.extensions.scaling.late_workers import LateWorkers
from scaler.policy.view import Demand
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import BUCKETS, Function, Group, Timing, Worker

MOST_TASKS = 100_000
"""All counts of `TaskTimes` are halved once they include this many tasks."""


@dataclass(slots=True, eq=False)
class TaskTimes:
    """Histogram of all task durations in the cluster, the assumption for functions that have not run yet."""

    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, mean_us: int, tasks: int) -> None:
        self.counts[min(BUCKETS - 1, mean_us.bit_length())] += tasks
        if sum(self.counts) >= MOST_TASKS:
            self.counts = [count / 2 for count in self.counts]

    @property
    def median_seconds(self) -> float | None:
        """Median duration (middle of its bucket); None until a task has finished."""
        half = sum(self.counts) / 2
        for digits, total in enumerate(accumulate(self.counts)):
            if total >= half > 0:
                return 0.75e-6 * (1 << digits)  # bucket `digits` starts at 2 ** (digits - 1) microseconds
        return None


class _Running(NamedTuple):
    """Tasks on workers that are not late. started_share: share of the assigned tasks that have started.

    elapsed: pairs of a run time (seconds) and the number of running tasks with that time, by function.
    """

    started_share: float
    elapsed: dict[Function, list[tuple[float, int]]]


class _Ended(NamedTuple):
    tasks: int = 0
    wall_us: int = 0


class DemandMeter:
    """Measures demand between two views of the policy."""

    def __init__(self) -> None:
        self.task_times = TaskTimes()
        self._ended: dict[Function, _Ended] = {}
        """Number of ended tasks at the last measurement."""

    def measure(self, state: ClusterState, late: LateWorkers, seconds: float, now: float) -> tuple[Demand, ...]:
        """Return the demand for each function. seconds: time since the last view; 0: no earlier view."""
        alike: dict[Function, list[Group]] = {function: [] for function in state.functions.values()}
        for client in state.all_clients():
            for group in filter(attrgetter("live"), client.groups.values()):
                alike.setdefault(group.function, []).append(group)
        running = _running((worker for worker in state.workers.values() if worker not in late.until), now)
        before, self._ended = self._ended, {}
        demand: list[Demand] = []
        wanted = state.rooms.resources.within_limits(state.ready.turns.wanted)
        for function, groups in alike.items():
            ended = self._ended_since(before.get(function, _Ended()), function, groups)
            row = self._row(function, groups, wanted, ended, running, late, seconds) if groups or ended.tasks else None
            if row is not None:
                demand.append(row)
        return tuple(demand)

    def _ended_since(self, before: _Ended, function: Function, groups: Sequence[Group]) -> _Ended:
        ended = self._ended[function] = _Ended(
            function.submitted - sum([group.live for group in groups]), function.wall_us
        )
        tasks, wall_us = ended.tasks - before.tasks, ended.wall_us - before.wall_us
        if wall_us:
            self.task_times.add(wall_us // tasks, tasks)
        return _Ended(tasks, wall_us)

    def _row(
        self,
        function: Function,
        groups: Sequence[Group],
        wanted: Callable[[Group], int],
        ended: _Ended,
        running: _Running,
        late_workers: LateWorkers,
        seconds: float,
    ) -> Demand | None:
        # No other worker can run pinned tasks.
        groups = [group for group in groups if not (group.client.terminated or group.needs.pin)]
        ready = sum(map(wanted, groups))
        sent = sum(group.assigned for group in groups)
        # For an ended task, only the time since the last view counts.
        ended_seconds = ended.wall_us * 1e-6
        rate, busy = (ended.tasks / seconds, min(ended.tasks, ended_seconds / seconds)) if seconds else (0.0, 0.0)
        if not (ready or sent or rate):
            return None
        timings = {group.timing for group in groups}
        late = late_workers.tasks_of(timings)
        begun = late + round((sent - late) * running.started_share)
        recent = ended_seconds / ended.tasks if ended.wall_us else None
        task_seconds, longest, left = forecast(timings, running.elapsed.get(function, ()), recent)
        hints = [group.spec.expected_seconds for group in groups if group.spec.expected_seconds]
        gang = max(
            (group.needs for group in groups if group.ready), key=attrgetter("gang_size"), default=function.needs
        )
        return Demand(
            function.needs.capabilities,
            function.name,
            ready + sent - begun,
            begun,
            task_seconds,
            busy,
            rate,
            expected_seconds=max(hints) if hints else self.task_times.median_seconds,
            is_hint=bool(hints),
            longest_seconds=longest,
            running_seconds=left,
            late=late,
            at_once=gang.gang_size if ready else 0,
            per_host=gang.gang_per_host,
        )


def _running(workers: Iterable[Worker], now: float) -> _Running:
    assigned = started = 0
    elapsed: dict[Function, list[tuple[float, int]]] = {}
    for worker in workers:
        assigned += len(worker.tasks)
        if not worker.progress.has_begun:
            continue  # the worker may be starting, without running tasks
        begun = min(worker.busy, worker.slots)
        started += begun + len(worker.blocked)
        if begun > 0:
            # The oldest task represents all running tasks of the worker.
            first = next(task for task in worker.tasks.values() if task.id not in worker.blocked)
            elapsed.setdefault(first.group.function, []).append((max(0.0, now - worker.progress.at), begun))
    return _Running(started / assigned if assigned else 1.0, elapsed)


def forecast(
    timings: Iterable[Timing], elapsed: Collection[tuple[float, int]], recent: float | None
) -> tuple[float | None, float, float | None]:
    """Return task_seconds, longest_seconds, and running_seconds of a function, as in `Demand`.

    elapsed: pairs of run time (seconds) and number of running tasks with that time. recent: mean of recently ended
    tasks, used if no timing was measured. Tasks running for more than twice the mean count as ended, because in a
    mixture, short tasks end first.
    """
    longest = max((seconds for seconds, _ in elapsed), default=0.0)
    timing = max((each for each in timings if each.measured), default=None, key=attrgetter("seconds"))
    if timing is None:
        return recent, longest, None
    remaining = remaining_seconds(timing, [seconds for seconds, _ in elapsed])
    tasks, total = timing.measured, timing.measured * timing.seconds
    for (seconds, count), left in zip(elapsed, remaining, strict=True):
        if seconds > 2 * timing.seconds:
            tasks += count
            total += count * (seconds + left)
    left = sum(count * left for (_, count), left in zip(elapsed, remaining, strict=True))
    return total / tasks, longest, left


def remaining_seconds(timing: Timing, elapsed: Iterable[float]) -> list[float]:
    """Return the estimated remaining seconds of tasks that have run for these times.

    Based on the mean of tasks that took longer, or on the longest task. If none took longer, a task counts as half
    done. O(buckets and tasks).
    """
    longer = list(accumulate(reversed(timing.counts)))[::-1]
    longer_us = list(accumulate(reversed(timing.sums_us)))[::-1]
    found = []
    for seconds in elapsed:
        above = min(BUCKETS - 1, int(seconds * 1e6).bit_length() + 1)
        if longer[above] > 0:
            end = longer_us[above] * 1e-6 / longer[above]
        else:
            longest = timing.longest_us * 1e-6
            end = longest if seconds < longest else 2 * seconds
        found.append(max(end - seconds, 0.0))
    return found

"""Cluster limits: how much of a resource, such as a database or licenses, tasks on all workers may use at once. Pure. A
limit is a `LimitStock` in each worker's claims, so it is claimed and released with the worker's tasks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.resources import LimitRow, LimitSettings
from scaler.extensions.resources.stocks import LimitStock
from scaler.grammar import called, counted, listed
from scaler.needs import LIMIT, UNITS_PER_ONE, Needs
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.resources import ResourceRules
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord, Group, Task

MAX_NAMED = 3


class Limits(SchedulerPart, ResourceRules):
    """Counts how much of each limit tasks use. All limits are closed until workers have had time to report tasks from
    an earlier scheduler."""

    def __init__(self, config: LimitSettings | None = None) -> None:
        given = {LIMIT + name: amount for name, amount in config.limits.items()} if config is not None else {}
        self.limits = {name: LimitStock(round(each * UNITS_PER_ONE), name=name) for name, each in given.items()}

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        self.next_at = cluster.now + RECOVERY_SECONDS if self.limits else math.inf

    def on_time(self, _now: Now) -> Iterable[Command]:
        self.next_at = math.inf
        for stock in self.limits.values():
            stock.is_open = True
        return ()

    def resources(self) -> ResourceRules:
        return self

    def refusal(self, needs: Needs) -> str:
        known = ", ".join(f"{name.removeprefix(LIMIT)}={_text(stock.total)}" for name, stock in self.limits.items())
        for name, amount in needs.claims if needs.is_limited else ():
            least = amount * max(1, needs.gang_size)
            if name.startswith(LIMIT) and (name not in self.limits or least > self.limits[name].total):
                return (
                    f"limits={{{name.removeprefix(LIMIT)!r}: {_text(least)}}} is more than this cluster has: "
                    f"its limits are {known or 'none'} (setting limits of [scheduler])"
                )
        return ""

    def has_only_limits(self, needs: Needs) -> bool:
        """Return whether tasks with these needs take one slot and limits, but no other resources."""
        return not needs.cpus and not needs.is_alone and all(name in self.limits for name, _ in needs.claims)

    def room(self, queue: ReadyQueue) -> int:
        used = [(self.limits[name], amount) for name, amount in queue.needs.claims if name in self.limits]
        size = max(1, queue.needs.gang_size)
        return min([size * stock.room(size * amount, queue) for stock, amount in used], default=super().room(queue))

    def within_limits(self, wanted: Callable[[Group], int]) -> Callable[[Group], int]:
        """Divide free amounts among all groups. Each requirement gets one task, because the rest may never run."""
        left = {name: max(0, stock.free) for name, stock in self.limits.items()}
        free, met = left.copy(), set[Needs]()

        def allowed(group: Group) -> int:
            count, uses = wanted(group), [each for each in group.needs.claims if each[0] in left]
            least = 0 if group.needs in met else min([1, count, *(free[name] // amount for name, amount in uses)])
            met.add(group.needs)
            count = max(least, min([count, *(max(0, left[name]) // amount for name, amount in uses)]))
            left.update({name: left[name] - count * amount for name, amount in uses})
            return count

        return allowed

    # -- explanation

    def limited(self, queue: ReadyQueue, task: Task | None = None) -> str:
        for name, amount in queue.needs.claims:
            stock = self.limits.get(name)
            if stock is None or stock.room(amount * max(1, queue.needs.gang_size), queue):
                continue
            title = f"limit {name.removeprefix(LIMIT)}"
            if not stock.is_open:
                return f"it waits until use of {title} is known, {RECOVERY_SECONDS:g} s after the scheduler's start"
            part = f"{_text(amount)} of " if amount != UNITS_PER_ONE else ""
            keys = {task.group.client.account.key} if task is not None else set[str]()
            users = self._users(name, keys.__contains__)
            text = f"it waits for {part}{title}: {_text(stock.used)} of {_text(stock.total)} are used by {users}"
            if stock.kept_for is not None and stock.is_kept_from(queue):
                text += f", and freed amounts are reserved for tasks that need {stock.kept_for.needs}"
            return "; ".join(filter(None, [text, self.deadlock(task) if task is not None else ""]))
        return ""

    def deadlock(self, task: Task) -> str:
        used, outer = Counter[str](), task
        while (worker := outer.group.client.via) is not None and outer.group.spec.parent in worker.tasks:
            outer = worker.tasks[outer.group.spec.parent]
            used.update(dict(outer.needs.claims))
            for name, amount in task.needs.claims:
                if name in self.limits and self.limits[name].total - used[name] < amount:
                    return (
                        f"it is nested in a task of {called(outer.group.spec.name)}, which holds its part of limit "
                        f"{name.removeprefix(LIMIT)} while it waits: use the limit only in nested tasks, or raise it"
                    )
        return ""

    def _users(self, name: str, sees: Callable[[str], bool]) -> str:
        """Describe the tasks that use a limit. sees: returns whether the reader sees functions of a key."""
        users = Counter[str]()
        for worker in self.cluster.workers.values():
            for identifier, (needs, _) in worker.claims.by_task.items():
                if name in dict(needs.claims):
                    group = worker.tasks[identifier].group
                    users[f" of {called(group.spec.name)}" if sees(group.client.account.key) else ""] += 1
        return listed([counted(tasks, "task") + of for of, tasks in users.most_common()] or ["no task"], MAX_NAMED)

    def rows(
        self, _table: str, search: str, most: int, client: ClientRecord, state: ClusterState
    ) -> Iterable[LimitRow]:
        for name, stock in islice(((name, each) for name, each in self.limits.items() if search in name), most):
            ready = sum(queue.total for queue in state.ready.queues.values() if name in dict(queue.needs.claims))
            amounts = stock.used / UNITS_PER_ONE, stock.total / UNITS_PER_ONE
            yield LimitRow(name.removeprefix(LIMIT), *amounts, ready, self._users(name, client.identity.may_see))


def _text(amount: int) -> str:
    return f"{amount / UNITS_PER_ONE:g}"

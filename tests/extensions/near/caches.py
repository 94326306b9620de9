"""A simulated cluster whose processors have a cache per name: a name's first task takes longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from scaler.needs import NEAR
from scaler.protocol.messages import Done, Message, Recall
from tests.extensions.sharing.bed import Bed

FIRST, LATER = 1.0, 0.05


class Caches(Bed):
    def __init__(self, workers: int = 4, slots: int = 1, *, is_near: bool = True, **settings: Any) -> None:
        """is_near: tasks have the term."""
        super().__init__(workers, slots, **settings)
        self.is_near = is_near
        self.names: dict[bytes, str] = {}
        self.seconds_of: dict[str, tuple[float, float]] = {}
        """Durations of the first and of later tasks of a name."""
        self.cached: set[tuple[str, int, str]] = set()
        self.firsts: Counter[str] = Counter()
        """Tasks of each name that filled a cache."""
        self.recalled = 0
        self.workers_of: dict[bytes, str] = {}
        self.submitted: dict[bytes, float] = {}
        self.ended_at: dict[bytes, float] = {}
        self._lanes: dict[bytes, tuple[str, int]] = {}
        self._again: dict[bytes, str] = {}
        self.guest("a")

    def send(self, name: str, count: int = 1, client: str = "a", *, again: bool = False, **options: Any) -> list[bytes]:
        """Submit tasks near a name. again: submit another task when one ends."""
        ids = [self.task_id(client) for _ in range(count)]
        self.names.update(dict.fromkeys(ids, name))
        self.submitted.update(dict.fromkeys(ids, self.now))
        if again:
            self._again.update(dict.fromkeys(ids, client))
        needs = options.pop("needs", ((NEAR + name, 0.0),) if self.is_near and name else ())
        self.submit(client, ids=ids, needs=needs, **{"retries": 3, **options})
        self.hear()
        return ids

    def _received(self, worker: str, message: Message) -> None:
        self.recalled += len(message.ids) if isinstance(message, Recall) else 0
        super()._received(worker, message)

    def seconds_on(self, worker: str, task: bytes) -> float:
        taken = {lane for other, lane in self._lanes.values() if other == worker}
        lane = next(each for each in range(1, 99) if each not in taken)
        self._lanes[task] = worker, lane
        self.workers_of[task] = worker
        name = self.names[task]
        first, later = self.seconds_of.get(name, (FIRST, LATER))
        if not name or (worker, lane, name) in self.cached:
            return later
        self.cached.add((worker, lane, name))
        self.firsts[name] += 1
        return first

    def ran(self, worker: str, done: Done) -> Done:
        for task in done.ids:
            done.began_us.append(int(1e6 * self.began[task]))
            done.lanes.append(self._lanes.pop(task)[1])
            self.ended_at[task] = self.now
            if task in self._again:
                client = self._again.pop(task)
                self.at(0.001, lambda task=task, client=client: self.send(self.names[task], client=client, again=True))  # type: ignore[misc]
        return done

    def seconds_until(self, tasks: Iterable[bytes], most: float = 100.0) -> float:
        """Run until these tasks have ended. Returns the seconds since the first was submitted."""
        tasks = set(tasks)
        start = min(self.submitted[task] for task in tasks)
        while not tasks <= self.ended and self.now < start + most:
            self.run(1.0)
        assert tasks <= self.ended, f"{len(tasks - self.ended)} tasks wait"
        return max(self.ended_at[task] for task in tasks) - start

    def wait_of(self, task: bytes) -> float:
        """Return the seconds until a task started."""
        return self.began[task] - self.submitted[task]

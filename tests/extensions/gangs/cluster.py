"""A cluster of scripted peers on several hosts, with gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaler.extensions.explain.core import explain
from scaler.extensions.gangs.core import Gangs
from scaler.needs import GANG
from scaler.net.connection import Opened
from scaler.protocol.messages import GangFormed, JoinGang, Outcome, Recall, Role, WorkerDetails
from tests.unit.scheduler.driver import Cluster

Needs = tuple[tuple[str, float], ...]


class GangCluster(Cluster):
    extensions: Sequence[str] = (*Cluster.extensions, "gangs")
    gang_count = 0

    @property
    def extension(self) -> Gangs:
        return next(part for part in self.rooms.parts if isinstance(part, Gangs))

    def on_host(self, name: str, host: str, slots: int = 1) -> str:
        """A worker joins from a host."""
        hello = self._hello(Role.WORKER, WorkerDetails("manager", f"unit-{name}", slots, 1000, {}))
        self.step(Opened(self.peer(name), replace(hello, hostname=host)))
        return name

    def gang(self, client: str, size: int, per_host: int = 0, needs: Needs = (), **options: Any) -> list[bytes]:
        """Submit the members of a gang."""
        type(self).gang_count += 1
        term = f"{GANG}{self.gang_count:x}/{per_host}", float(size)
        return self.submit(client, size, needs=tuple(sorted((*needs, term))), retries=0, **options)

    def where(self, tasks: list[bytes]) -> list[str]:
        """The workers of these tasks; empty for tasks without one."""
        found = {task: worker for worker in self.state.workers.values() for task in worker.tasks}
        names = (found[task].id.rstrip(b".").decode() if task in found else "" for task in tasks)
        return list(names)

    def waits(self, tasks: list[bytes]) -> bool:
        """Whether no member has a worker; fails if some have one."""
        placed = {bool(name) for name in self.where(tasks)}
        assert len(placed) == 1, "a part of a gang has started"
        return placed == {False}

    def join(self, task: bytes, host: str = "127.0.0.1", port: int = 1) -> str:
        """The member reports that it is ready, through a client inside its task. Returns that client."""
        (worker,) = self.where([task])
        name = f"n{task.hex()[-6:]}"
        self._factories.setdefault(name, self._factories["client"])
        self.relay(name, worker, JoinGang(task, host, port, number=7), task)
        return name

    def preempted(self, worker: str) -> list[bytes]:
        """Tasks that a worker was asked to stop for other tasks."""
        recalls = [message for name, message in self.said if name == worker and isinstance(message, Recall)]
        return [task for message in recalls if message.preempt for task in message.ids]

    def formed(self, client: str) -> GangFormed | None:
        found = [message for name, message in self.said if name == client and isinstance(message, GangFormed)]
        return found[-1] if found else None

    def why(self, task: bytes) -> str:
        return explain(self.state, task, self.now)

    def ended(self, client: str, tasks: list[bytes]) -> list[Outcome | None]:
        return [self.outcome(client, task) for task in tasks]

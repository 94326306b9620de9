"""Units that are agent processes of this machine.

What an agent needs travels as one JSON document in its environment. Agents end by themselves when their manager is
gone, so there is never anything to adopt. When an agent has ended, what is left of its processors and of what their
tasks have started is killed, also what has left their process groups.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from scaler.config.worker import WorkerConfig
from scaler.processes import end_processes_with
from scaler.worker_manager.agent_process import AgentProcess
from scaler.worker_manager.backend import BackendError, Capacity, Unit

STOP_GRACE_SECONDS = 6.5
"""An agent that was asked to end and has not after this time is killed, unless its backend gives it longer."""
ENDED_UNITS_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0

MakeDocument = Callable[[str, int], WorkerConfig]
"""Makes the document of a unit from its id and slots."""


class LocalAgents:
    """Starts, stops and lists agent processes: a `Backend`."""

    def __init__(
        self,
        capacity: Capacity,
        label: str,
        command: Sequence[str],
        make_document: MakeDocument,
        *,
        sizes: Sequence[int] = (),
        stop_grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        """label: begins the ids of the units. sizes: the slots of each unit, when they are not all alike."""
        self.capacity = capacity
        self._command = tuple(command)
        self._make_document = make_document
        self._sizes = tuple(sizes)
        self._stop_grace_seconds = stop_grace_seconds
        self._prefix = f"{re.sub('[^A-Za-z0-9_.-]', '_', label)}-{os.urandom(3).hex()}"
        self._count = 0
        self._alive: dict[str, AgentProcess] = {}
        self._ended: deque[tuple[float, Unit]] = deque(maxlen=ENDED_UNITS_SHOWN)
        # Readable when any of the processes has something to tell: an epoll descriptor can be polled itself.
        self._epoll = select.epoll() if sys.platform == "linux" else None

    def start(self, count: int) -> list[str]:
        started: list[str] = []
        for slots in self._next_sizes(count):
            now = time.monotonic()
            self._count += 1
            unit_id = f"{self._prefix}-{self._count}"
            try:
                agent = AgentProcess(self._command, self._make_document(unit_id, slots), now)
            except OSError as error:
                raise BackendError(f"cannot start a worker's process: {error}", started) from error
            self._alive[unit_id] = agent
            started.append(unit_id)
            if self._epoll is not None:
                for descriptor in agent.descriptors:
                    self._epoll.register(descriptor, select.EPOLLIN)
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        now = time.monotonic()
        for unit_id in unit_ids:
            if (agent := self._alive.get(unit_id)) is not None:
                agent.ask_to_end(now)

    def list(self) -> list[Unit]:
        now = time.monotonic()
        units: list[Unit] = []
        marks: list[str] = []
        for agent in list(self._alive.values()):
            state = agent.look()
            if agent.stop_at is not None and not agent.exit_text and now - agent.stop_at >= self._stop_grace_seconds:
                agent.kill()
                state = agent.look()
            reason = agent.exit_text or agent.trouble()
            unit = Unit(agent.unit_id, state, agent.slots, now - agent.started_at, reason)
            if agent.exit_text:
                marks.append(agent.mark)
                self._forget(agent)
                self._ended.append((now, unit))
            else:
                units.append(unit)
        end_processes_with(marks)
        while self._ended and now - self._ended[0][0] > ENDED_SHOWN_SECONDS:
            self._ended.popleft()
        return units + [unit for _, unit in self._ended]

    def pid_of(self, unit_id: str) -> int:
        """Return the process id of a unit that has not ended. Raises KeyError."""
        return self._alive[unit_id].pid

    def fileno(self) -> int | None:
        return None if self._epoll is None else self._epoll.fileno()

    def close(self) -> None:
        marks = [agent.mark for agent in self._alive.values()]
        for agent in list(self._alive.values()):
            agent.kill()
            self._forget(agent)
        end_processes_with(marks)
        if self._epoll is not None:
            self._epoll.close()

    def _forget(self, agent: AgentProcess) -> None:
        agent.close()
        del self._alive[agent.unit_id]

    def _next_sizes(self, count: int) -> Sequence[int]:
        if not self._sizes:
            return [self.capacity.unit_slots] * count
        missing = Counter(self._sizes)
        missing.subtract(agent.slots for agent in self._alive.values())
        return sorted(missing.elements(), reverse=True)[:count]

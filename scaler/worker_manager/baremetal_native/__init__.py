"""Runs workers as local processes: one slot per unit, or up to `FIXED_UNIT_SLOTS` with mode=fixed. When an agent ends,
all its descendants are killed."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from scaler.child_process import ChildProcess
from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.config.worker_managers import WorkerManagerConfig, default_concurrency
from scaler.errors import ScalerError
from scaler.host import usable_cpus, usable_memory
from scaler.interpreter import HASH_SEED_VARIABLE, worker_command
from scaler.plugins import WorkerManagerType
from scaler.processes import describe_exit, end_processes_with
from scaler.protocol.messages import UnitState
from scaler.worker.credential import inherited_credential
from scaler.worker_manager.backend import BackendError, Capacity, EndedUnits, Unit, most_units, units_credential

STOP_GRACE_SECONDS = 6.5  # default time from SIGTERM to SIGKILL of an agent
LAST_WORDS_BYTES = 64 * 1024


class LocalAgents:
    def __init__(
        self,
        capacity: Capacity,
        label: str,
        command: Sequence[str],
        make_document: Callable[[str, int], WorkerConfig],
        *,
        credential: Callable[[], str] = str,
        sizes: Sequence[int] = (),
        stop_grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        """label: prefix of unit ids. make_document: makes a worker's settings from unit id, which it may replace, and
        slots. credential: returns the units' credential, or "". sizes: slots of each unit, if they differ."""
        self.capacity = capacity
        self._command = tuple(command)
        self._make_document = make_document
        self._credential = credential
        self._sizes = tuple(sizes)
        self._stop_grace_seconds = stop_grace_seconds
        self._prefix = f"{re.sub('[^A-Za-z0-9_.-]', '_', label)}-{os.urandom(3).hex()}"
        self._count = 0
        self._alive: dict[str, AgentProcess] = {}
        self._ended = EndedUnits()
        # This descriptor becomes readable when any process becomes ready or ends.
        self._epoll = select.epoll()

    def start(self, count: int) -> list[str]:
        started: list[str] = []
        for slots in self._next_sizes(count):
            self._count += 1
            unit_id = f"{self._prefix}-{self._count}"
            try:
                document, credential = self._make_document(unit_id, slots), self._credential()
                agent = AgentProcess(self._command, document, credential, time.monotonic())
            except (OSError, ScalerError) as error:
                raise BackendError(f"cannot start a worker's process: {error}", started) from error
            self._alive[agent.unit_id] = agent
            started.append(agent.unit_id)
            # Closing these descriptors unregisters them.
            self._epoll.register(agent.ended, select.EPOLLIN)
            self._epoll.register(agent.ready_pipe, select.EPOLLIN)
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        for unit_id in unit_ids:
            agent = self._alive.get(unit_id)
            if agent is not None and agent.stop_at is None:
                agent.stop_at = time.monotonic()
                agent.terminate()

    def list(self) -> list[Unit]:
        now = time.monotonic()
        marks: list[str] = []
        for agent in list(self._alive.values()):
            if agent.has_ended() or (agent.stop_at is not None and now - agent.stop_at >= self._stop_grace_seconds):
                self._ended.add(agent.end(now), now)
                marks.append(agent.mark)
                del self._alive[agent.unit_id]
        end_processes_with(marks)
        return [agent.unit(now) for agent in self._alive.values()] + self._ended.shown(now)

    def pid_of(self, unit_id: str) -> int:
        return self._alive[unit_id].pid

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for agent in self._alive.values():
            agent.end(time.monotonic())
        end_processes_with([agent.mark for agent in self._alive.values()])
        self._alive.clear()
        self._epoll.close()

    def _next_sizes(self, count: int) -> Sequence[int]:
        if not self._sizes:
            return [self.capacity.unit_slots] * count
        missing = Counter(self._sizes)
        missing.subtract(agent.slots for agent in self._alive.values())
        return sorted(missing.elements(), reverse=True)[:count]


class AgentProcess(ChildProcess):
    """One agent process. Raises OSError if it cannot be started."""

    def __init__(self, command: Sequence[str], config: WorkerConfig, credential: str, now: float) -> None:
        document = config.to_json()
        # A file instead of a pipe, so that an agent never blocks when it writes.
        self._words = os.memfd_create("scaler-last-words", os.MFD_CLOEXEC)
        environment = {
            WORKER_CONFIG_VARIABLE: document,
            LAST_WORDS_FD_VARIABLE: str(self._words),
            HASH_SEED_VARIABLE: config.hash_seed,
        }
        try:
            with inherited_credential(credential) as (variables, descriptors):
                super().__init__(command, environment | variables, pass_fds=[self._words, *descriptors])
        except OSError:
            os.close(self._words)
            raise
        self.unit_id = config.unit_id
        self.slots = config.slots
        self.mark = f"{WORKER_CONFIG_VARIABLE}={document}"  # inherited by all its descendants
        self.stop_at: float | None = None  # time of SIGTERM; the agent then returns unstarted tasks and exits
        self._started_at = now

    def unit(self, now: float) -> Unit:
        if not self.ready_pipe.closed:
            self.read_ready()
        state = UnitState.RUNNING if self.ready_pipe.closed else UnitState.PENDING
        if self.stop_at is not None:
            state = UnitState.STOPPING
        return Unit(self.unit_id, state, self.slots, now - self._started_at, self._last_words())

    def end(self, now: float) -> Unit:
        self.kill()
        returncode = self.reap()
        asked = self.stop_at is not None
        # SIGTERM may arrive just before the agent exits anyway.
        told = asked and returncode in (0, -signal.SIGTERM)
        reason = "stopped" if told else ": ".join(filter(None, (describe_exit(returncode), self._last_words())))
        os.close(self._words)
        state = UnitState.STOPPED if asked or returncode == 0 else UnitState.FAILED
        return Unit(self.unit_id, state, self.slots, now - self._started_at, reason)

    def _last_words(self) -> str:
        text = os.pread(self._words, LAST_WORDS_BYTES, 0).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # The last line of a traceback names the error.
        return lines[0] if len(lines) == 1 else ": ".join(line.removesuffix(":") for line in (*lines[:1], *lines[-1:]))


TYPE = WorkerManagerType(
    backend="scaler.worker_manager.baremetal_native:BaremetalNative",
    settings="scaler.worker_manager.baremetal_native:BaremetalNativeConfig",
)
COMMAND = worker_command("scaler.worker")
FIXED_UNIT_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class BaremetalNativeConfig(WorkerManagerConfig):
    """Worker manager baremetal_native: processes on this machine."""

    type: Literal["baremetal_native"] = "baremetal_native"
    mode: Literal["dynamic", "fixed"] = "dynamic"
    """dynamic: the scaling policy sets the number of workers; fixed: always run max_task_concurrency workers."""


class BaremetalNative(LocalAgents):
    def __init__(self, config: BaremetalNativeConfig) -> None:
        cpus = usable_cpus()
        limit = config.max_task_concurrency
        sizes: tuple[int, ...] = ()
        memory_bytes, _ = usable_memory()
        capacity = Capacity.of_units(1, most_units(limit, 1), starting=cpus, unit_memory_bytes=memory_bytes)
        if config.mode == "fixed":
            whole, rest = divmod(default_concurrency() if limit < 0 else limit, FIXED_UNIT_SLOTS)
            sizes = (FIXED_UNIT_SLOTS,) * whole + ((rest,) if rest else ())
            capacity = replace(capacity, fixed=True, unit_slots=max(sizes), max_slots=sum(sizes), max_units=len(sizes))
        credential = partial(units_credential, config)
        super().__init__(
            capacity, socket.gethostname(), COMMAND, config.worker_config, credential=credential, sizes=sizes
        )

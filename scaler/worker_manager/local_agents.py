"""Units that are agent processes of this machine.

An agent's configuration is one JSON document in its environment. Agents end by themselves when their manager is gone,
so there is never anything to adopt. When an agent has ended, its remaining processors and the processes that their
tasks have started are killed, also those that have left their process groups.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, describe_exit, end_processes_with
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, BackendError, Capacity, Unit
from scaler.worker_manager.units import EndedUnits

STOP_GRACE_SECONDS = 6.5
"""An agent that has not ended this long after SIGTERM is killed, unless its backend gives it longer."""
LAST_WORDS_BYTES = 64 * 1024


class LocalAgents:
    """Starts, stops and lists agent processes: a `Backend`."""

    def __init__(
        self,
        capacity: Capacity,
        label: str,
        command: Sequence[str],
        make_document: Callable[[str, int], WorkerConfig],
        *,
        sizes: Sequence[int] = (),
        stop_grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        """label: begins the ids of the units. make_document: from unit id and slots. sizes: slots of each unit, when
        they differ.
        """
        self.capacity = capacity
        self._command = tuple(command)
        self._make_document = make_document
        self._sizes = tuple(sizes)
        self._stop_grace_seconds = stop_grace_seconds
        self._prefix = f"{re.sub('[^A-Za-z0-9_.-]', '_', label)}-{os.urandom(3).hex()}"
        self._count = 0
        self._alive: dict[str, AgentProcess] = {}
        self._ended = EndedUnits()
        # Readable when any of the processes changes its state: an epoll descriptor can be polled itself.
        self._epoll = select.epoll() if sys.platform == "linux" else None

    def start(self, count: int) -> list[str]:
        started: list[str] = []
        for slots in self._next_sizes(count):
            self._count += 1
            unit_id = f"{self._prefix}-{self._count}"
            try:
                agent = AgentProcess(self._command, self._make_document(unit_id, slots), time.monotonic())
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
                agent.terminate(now)

    def list(self) -> list[Unit]:
        now = time.monotonic()
        units: list[Unit] = []
        marks: list[str] = []
        for agent in list(self._alive.values()):
            state = agent.poll()
            if agent.stop_at is not None and not agent.exit_text and now - agent.stop_at >= self._stop_grace_seconds:
                agent.kill()
                state = agent.poll()
            reason = agent.exit_text or agent.last_words()
            unit = Unit(agent.unit_id, state, agent.slots, now - agent.started_at, reason)
            if agent.exit_text:
                marks.append(agent.mark)
                self._forget(agent)
                self._ended.add(unit, now)
            else:
                units.append(unit)
        end_processes_with(marks)
        return units + self._ended.shown(now)

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


class AgentProcess:
    """One agent process, started in a session of its own. Raises OSError when the system refuses.

    So a terminal's Ctrl-C goes to the manager alone, which then ends its agents in order, and a kill reaches all that
    an agent has started.
    """

    def __init__(self, command: Sequence[str], config: WorkerConfig, now: float) -> None:
        ready_fd, agents_end = os.pipe()
        # A file, not a pipe: an agent that writes to it never waits for the reader.
        self._words = os.memfd_create("scaler-last-words", os.MFD_CLOEXEC)
        environment = {
            **os.environ,
            WORKER_CONFIG_VARIABLE: config.to_json(),
            PARENT_PID_VARIABLE: str(os.getpid()),
            READY_FD_VARIABLE: str(agents_end),
            LAST_WORDS_FD_VARIABLE: str(self._words),
        }
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(agents_end, self._words),
                start_new_session=True,
            )
        except OSError:
            os.close(ready_fd)
            os.close(self._words)
            raise
        finally:
            os.close(agents_end)
        os.set_blocking(ready_fd, False)
        self._ready_fd: int | None = ready_fd
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.unit_id = config.unit_id
        self.mark = f"{WORKER_CONFIG_VARIABLE}={environment[WORKER_CONFIG_VARIABLE]}"
        """An entry of its environment that all processes it starts inherit, and no other has."""
        self.slots = config.slots
        self.started_at = now
        self.stop_at: float | None = None
        """When it got SIGTERM."""
        self._state = UnitState.PENDING
        self.exit_text = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptors(self) -> list[int]:
        """Become readable when its state changes."""
        return [fd for fd in (self._pidfd, self._ready_fd) if fd is not None]

    def poll(self) -> UnitState:
        """Return the state as it is now, and find out how it ended."""
        if self._state in ENDED:
            return self._state
        # WNOWAIT does not reap it: while it is a zombie, no other process can get the number of its group.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._reap()
            in_order = self.stop_at is not None or self._process.returncode == 0
            self._state = UnitState.STOPPED if in_order else UnitState.FAILED
        elif self.stop_at is not None:
            self._state = UnitState.STOPPING
        elif self._is_ready():
            self._state = UnitState.RUNNING
        return self._state

    def last_words(self) -> str:
        """Return what the agent wrote last about an error or what keeps it from its work, on one line."""
        text = os.pread(self._words, LAST_WORDS_BYTES, 0).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # The last line of a traceback has the error.
        return lines[0] if len(lines) == 1 else ": ".join(line.removesuffix(":") for line in (*lines[:1], *lines[-1:]))

    def terminate(self, now: float) -> None:
        """Send SIGTERM: the agent gives back the tasks that have not started, and ends."""
        if self.stop_at is None:
            self.stop_at = now
            # Not Popen.terminate, which reaps a process that has just ended before `poll` sees it.
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and all processes of its session, and wait until it has ended."""
        if self.exit_text:
            return
        self._reap()
        self._state = UnitState.STOPPED if self.stop_at is not None else UnitState.FAILED

    def close(self) -> None:
        """Close the descriptors, which removes them from the epoll."""
        for fd in self.descriptors:
            os.close(fd)
        os.close(self._words)
        self._pidfd = self._ready_fd = None

    def _reap(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        returncode = self._process.wait()
        # SIGTERM may come when it has almost ended by itself.
        asked = self.stop_at is not None and returncode in (0, -signal.SIGTERM)
        self.exit_text = "stopped" if asked else ": ".join(filter(None, (describe_exit(returncode), self.last_words())))

    def _is_ready(self) -> bool:
        if self._ready_fd is None:
            return True
        try:
            os.read(self._ready_fd, 4096)
        except BlockingIOError:
            return False
        os.close(self._ready_fd)
        self._ready_fd = None
        return True

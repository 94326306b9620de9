"""Decides which component process to start, terminate, or kill next. Pure: the shell is `supervisor.Supervisor`.

A tier starts when all lower tiers are ready (or all start at once), and stops when all higher tiers have ended. A
component is restarted if it fails after being ready or is killed from outside. A required component stops the cluster
if it fails before being ready, exits with code 0, or fails too often. An independent component is always restarted,
unless its settings are invalid. Invariants: at the end, every started component was signalled or exited on its own; no
component has two processes; a stop takes at most STOP_SECONDS plus the longest grace period until the last kill; the
supervision is finished when no started component is alive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from scaler.backoff import Backoff
from scaler.component import EXIT_FAILURE, EXIT_USAGE
from scaler.grammar import counted
from scaler.processes import exit_field

START_SECONDS = 60.0  # time limit for a component to become ready
STOP_SECONDS = 10.0
KILL_AFTER_SECONDS = 9.0  # time from the start of a stop until remaining processes are killed
TIER_SECONDS = 6.0  # time from the start of a stop until tiers that wait for higher tiers are terminated
MAX_RESTARTS = 10  # number of restarts within RESTART_SECONDS after which a component counts as failed
RESTART_SECONDS = 60.0  # seconds for which a failure counts
RESTART_DELAYS = Backoff(0.5, 2.0, jitter=0.0)  # no delay after the first failure, then 0.5, 1, 2, 2, ... seconds
INDEPENDENT_DELAYS = Backoff(0.5, 30.0, jitter=0.0)

_KILLED = -9  # SIGKILL is not the component's fault: a user or the out-of-memory killer sent it
_REQUESTED = (0, -15, None)  # after a stop request: orderly exit, SIGTERM before it was handled, unknown


@dataclass(frozen=True, slots=True)
class ComponentProcess:
    """How to run one component. environment: added to the supervisor's own. grace_seconds: extra stop time, for
    stopping units through a service. optional: started last; a failure does not affect other components.
    listening: a socket that its processes inherit. independent: depends on a remote service that may be down; other
    components wait only for its first attempt."""

    name: str
    argv: tuple[str, ...]
    tier: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 0.0
    optional: bool = False
    listening: Any = None
    independent: bool = False


@dataclass(frozen=True, slots=True)
class StartProcess:
    """The caller answers with `started` or `ended`."""

    component: ComponentProcess


@dataclass(frozen=True, slots=True)
class TerminateProcess:
    name: str


@dataclass(frozen=True, slots=True)
class KillProcess:
    name: str


@dataclass(frozen=True, slots=True)
class CloseListening:
    """Close the socket of a failed component, so that its peers are refused instead of waiting."""

    component: ComponentProcess


@dataclass(frozen=True, slots=True)
class ReportLine:
    text: str
    is_failure: bool = False


Command = StartProcess | TerminateProcess | KillProcess | CloseListening | ReportLine


class _Phase(Enum):
    IDLE = auto()
    STARTING = auto()
    RUNNING = auto()
    WAITING = auto()
    TERMINATED = auto()
    KILLED = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Entry:
    """State of one component. pid: 0 if no process runs. failed_at: times of failures within RESTART_SECONDS."""

    component: ComponentProcess
    phase: _Phase = _Phase.IDLE
    pid: int = 0
    ready_deadline: float = math.inf
    restart_at: float = math.inf
    was_ready: bool = False
    failed_at: deque[float] = field(default_factory=deque)
    restarts: int = 0

    @property
    def has_process(self) -> bool:
        return self.phase not in (_Phase.IDLE, _Phase.WAITING, _Phase.ENDED)

    @property
    def was_tried(self) -> bool:
        return self.was_ready or (self.component.independent and self.restarts > 0)

    def __str__(self) -> str:
        return f"{self.component.name} (pid {self.pid})"


class Supervision:
    def __init__(
        self, components: Sequence[ComponentProcess], *, together: bool = False, start_seconds: float = START_SECONDS
    ) -> None:
        """together: start all tiers at once. Raises ValueError for duplicate names."""
        self._entries = {component.name: _Entry(component) for component in components}
        if len(self._entries) != len(components):
            raise ValueError("two components have the same name")
        self._together = together
        self._start_seconds = start_seconds
        self._terminate_all_at = self._kill_at = math.inf  # deadlines of a stop
        self._hurried = False
        self._stepped_at = -math.inf
        self._commands: list[Command] = []
        self.addresses: dict[str, Mapping[str, str]] = {}  # addresses by purpose, for each component that was ready
        self.failure: str | None = None  # the failure that ended the run, with the component's last lines
        self.exit_code = 0  # 1 after a failure, 2 after invalid settings
        self.restarts: dict[str, str] = {}  # number of restarts of each component, and the last reason

    @property
    def _stopping(self) -> bool:
        return self._kill_at < math.inf

    @property
    def ready(self) -> bool:
        """True once every required component was ready, or was independent and failed. False during a stop."""
        needed = (entry for entry in self._entries.values() if not entry.component.optional)
        return not self._stopping and all(entry.was_tried for entry in needed)

    @property
    def finished(self) -> bool:
        has_processes = any(entry.has_process for entry in self._entries.values())
        return self._stopping and not has_processes and not self._commands

    # -- events, each followed by a step

    def started(self, name: str, pid: int, now: float) -> None:
        entry = self._entries[name]
        entry.pid = pid
        entry.ready_deadline = math.inf if entry.component.optional else now + self._start_seconds

    def became_ready(self, name: str, addresses: Mapping[str, str]) -> None:
        entry = self._entries[name]
        if entry.phase is not _Phase.STARTING:
            return
        was_all_ready = self.ready
        entry.phase, entry.ready_deadline, entry.was_ready = _Phase.RUNNING, math.inf, True
        self.addresses[name] = addresses
        text = ", ".join(f"{kind} {address}" for kind, address in addresses.items())
        self._report(f"{name} is ready{': ' if text else ''}{text} (pid {entry.pid})")
        if self.ready and not was_all_ready:
            self._report("all components are ready; press Ctrl-C to stop")

    def ended(self, name: str, returncode: int | None, reason: str, now: float, last_lines: Sequence[str] = ()) -> None:
        """Record that a process has ended or could not be started. returncode: as in `subprocess`; None if unknown,
        because other code reaped the process. last_lines: end of its output."""
        entry = self._entries[name]
        phase, entry.phase, entry.ready_deadline = entry.phase, _Phase.ENDED, math.inf
        assert phase not in (_Phase.IDLE, _Phase.WAITING, _Phase.ENDED), f"{name} ended but was never started"
        # An independent component that was never ready does not affect other components.
        is_survived = entry.component.independent and bool(entry.pid) and returncode not in (0, EXIT_USAGE)
        if self._stopping:
            self._ended_in_stop(entry, phase, returncode, reason, now, last_lines)
        elif (entry.was_ready and returncode != 0) or returncode == _KILLED or is_survived:
            why = f"not_ready_seconds={self._start_seconds:g}" if phase is _Phase.KILLED else exit_field(returncode)
            self._restart(entry, why if entry.pid else f"reason={reason!r}", reason, now, last_lines)
        elif entry.component.optional:
            self._give_up(entry, f"{name} has ended; the other components continue: {reason}", now, last_lines)
        elif not entry.pid:
            self._fail(f"{name} could not be started: {reason}", now)
        elif not entry.was_ready:
            code = EXIT_USAGE if returncode == EXIT_USAGE else EXIT_FAILURE
            self._fail(f"{entry} ended before it was ready: {reason}", now, last_lines, code)
        else:
            self._report(f"{entry} has ended; stopping the rest")
            self._begin_stop(now)

    def shut_down(self, now: float, *, hurry: bool = False) -> None:
        """Stop all components. hurry: kill them immediately."""
        if not self._stopping:
            self._report("stopping")
            self._begin_stop(now)
        if hurry:
            self._kill_at, self._hurried = now, True

    def step(self, now: float) -> list[Command]:
        """Return commands in order. Call this regularly, even without events."""
        self._stepped_at = now
        if not self._stopping:
            self._expire(now)
        if self._stopping:
            self._stop_next(now)
        else:
            self._start_next(now)
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        deadlines = [min(entry.ready_deadline, entry.restart_at) for entry in self._entries.values()]
        if self._stopping:
            deadlines = [self._terminate_all_at, self._kill_at]
        return min((at for at in deadlines if self._stepped_at < at < math.inf), default=None)

    def _ended_in_stop(
        self, entry: _Entry, phase: _Phase, returncode: int | None, reason: str, now: float, last_lines: Sequence[str]
    ) -> None:
        if not entry.pid:
            text = f"{entry.component.name} could not be started"
        elif phase is _Phase.STARTING:
            text = f"{entry} ended before it was ready"
        elif phase is _Phase.RUNNING and returncode != 0:
            text = f"{entry} ended unexpectedly"
        elif phase is _Phase.TERMINATED and returncode not in _REQUESTED:
            text = f"{entry} failed during shutdown"
        else:
            self._report(f"{entry.component.name} has ended")
            return
        self._fail(f"{text}: {reason}", now, last_lines)

    def _restart(self, entry: _Entry, why: str, reason: str, now: float, last_lines: Sequence[str]) -> None:
        while entry.failed_at and entry.failed_at[0] <= now - RESTART_SECONDS:
            entry.failed_at.popleft()
        delay = RESTART_DELAYS.seconds(len(entry.failed_at))
        entry.failed_at.append(now)
        if entry.component.independent:
            delay = INDEPENDENT_DELAYS.seconds(len(entry.failed_at) - 1)
        elif len(entry.failed_at) > MAX_RESTARTS:
            often = f"it was restarted {MAX_RESTARTS} times within {RESTART_SECONDS:g} s"
            self._give_up(entry, f"{entry} ended unexpectedly: {reason}; {often}", now, last_lines)
            return
        was_all_ready, name = self.ready, entry.component.name
        entry.restarts += 1
        self.restarts[name] = f"{counted(entry.restarts, 'restart')}, {why}"
        facts = f"{why} pid={entry.pid} restarts={entry.restarts} delay_seconds={delay:g}"
        self._report(f"{name} ended unexpectedly and is being restarted: {facts}", is_failure=True)
        entry.phase, entry.pid, entry.restart_at = _Phase.WAITING, 0, now + delay
        if self.ready and not was_all_ready:
            self._report(f"all components but {name} are ready; Ctrl-C stops them")

    def _give_up(self, entry: _Entry, text: str, now: float, last_lines: Sequence[str]) -> None:
        if not entry.component.optional:
            self._fail(text, now, last_lines)
            return
        self._commands.append(CloseListening(entry.component))
        self._report(text + "".join(f"\n    {line}" for line in last_lines), is_failure=True)

    def _fail(self, text: str, now: float, last_lines: Sequence[str] = (), exit_code: int = EXIT_FAILURE) -> None:
        self._report(text, is_failure=True)
        if self.failure is None:
            lines = "".join(f"\n    {line}" for line in last_lines)
            self.failure = f"{text}{'; its last lines:' if lines else ''}{lines}"
            self.exit_code = exit_code
        if not self._stopping:
            self._begin_stop(now)

    def _begin_stop(self, now: float) -> None:
        alive = (entry.component.grace_seconds for entry in self._alive())
        begin = now + max(alive, default=0.0)
        self._terminate_all_at, self._kill_at = begin + TIER_SECONDS, begin + KILL_AFTER_SECONDS

    def _report(self, text: str, *, is_failure: bool = False) -> None:
        self._commands.append(ReportLine(text, is_failure))

    def _alive(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.has_process and entry.pid]

    def _expire(self, now: float) -> None:
        for entry in self._entries.values():
            if now < entry.ready_deadline:
                continue
            entry.ready_deadline = math.inf
            if not entry.was_ready and not entry.component.independent:
                self._fail(f"{entry} was not ready after {self._start_seconds:g} s", now)
                return
            entry.phase = _Phase.KILLED
            self._commands.append(KillProcess(entry.component.name))

    def _start_next(self, now: float) -> None:
        unready = [e.component.tier for e in self._entries.values() if e.phase is not _Phase.RUNNING]
        for entry in self._entries.values():
            if entry.phase is _Phase.IDLE:
                is_next = self._together or entry.component.tier <= min(unready, default=0)
                may_start = self.ready if entry.component.optional else is_next
            else:
                may_start = now >= entry.restart_at
            if may_start:
                entry.phase, entry.restart_at = _Phase.STARTING, math.inf
                self._commands.append(StartProcess(entry.component))

    def _stop_next(self, now: float) -> None:
        alive = self._alive()
        highest = max((entry.component.tier for entry in alive), default=0)
        unsignalled = (_Phase.STARTING, _Phase.RUNNING)
        for entry in reversed(alive):
            if now >= self._kill_at and entry.phase is not _Phase.KILLED:
                if not self._hurried:
                    self._fail(f"{entry} did not stop in time and is being killed", now)
                entry.phase = _Phase.KILLED
                self._commands.append(KillProcess(entry.component.name))
            elif entry.phase in unsignalled and (entry.component.tier == highest or now >= self._terminate_all_at):
                entry.phase = _Phase.TERMINATED
                self._commands.append(TerminateProcess(entry.component.name))

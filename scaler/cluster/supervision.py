"""What to start next, and what to do when a component ends. Pure: the shell is `supervisor.Supervisor`.

Components stand in tiers. A tier is started when all of the tiers below it are ready (or all at once), and stopped when
all of the tiers above it are gone. Nothing is ever started twice: when one component ends, all are stopped.

Laws: every component that was started is signalled before the end, or has ended by itself; from the moment of the stop
to the last kill no more than STOP_SECONDS pass, and the longest patience of those who were there; the supervision is
finished when no started component is alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from scaler.component import EXIT_FAILURE, EXIT_USAGE

START_SECONDS = 60.0
"""How long a component may take from its start until it says that it is ready."""
STOP_SECONDS = 10.0
"""How long a stop may take in all."""
KILL_AFTER_SECONDS = 9.0
"""From the stop on: what is still there is killed."""
TIER_SECONDS = 6.0
"""From the stop on: tiers that still wait for the ones above them are told to end as well."""

_ASKED_FOR = (0, -15, None)
"""How a process ends that was told to: orderly, by SIGTERM itself when it was too young to take it, or who knows."""


@dataclass(frozen=True, slots=True)
class Component:
    """One process. environment is what is added to the supervisor's own.

    patience_seconds: how much longer than others it may take to end, because it has to ask a service for it.
    """

    name: str
    argv: tuple[str, ...]
    tier: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    patience_seconds: float = 0.0


# -- what happens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The system could not start the process."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    name: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone. last_lines is what it wrote last."""

    name: str
    returncode: int | None
    """As in `subprocess`, negative for a signal. None: unknown, for somebody else took it from the system."""
    reason: str
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the end. hurry: without waiting for anyone."""

    hurry: bool = False


Input = Started | NotStarted | Ready | Ended | StopAsked

# -- what to do ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    component: Component


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process to end (SIGTERM)."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process and its group (SIGKILL)."""

    name: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell people how it goes."""

    text: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Tell people what went wrong. What the component wrote last they have seen already."""

    text: str


Command = Start | Terminate | Kill | Announce | Complain

# -- states of one component ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Idle:
    """Never started."""


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Start was said, and neither Started nor NotStarted has come back."""


@dataclass(frozen=True, slots=True)
class _Starting:
    pid: int
    deadline: float


@dataclass(frozen=True, slots=True)
class _Running:
    pid: int


@dataclass(frozen=True, slots=True)
class _Stopping:
    pid: int
    killed: bool


@dataclass(frozen=True, slots=True)
class _Gone:
    """It has ended."""


_State = _Idle | _Ordered | _Starting | _Running | _Stopping | _Gone


@dataclass(frozen=True, slots=True)
class _Stop:
    """The stop under way."""

    since: float
    hurried: bool
    patience_seconds: float
    """The longest that anybody has who was there when it began."""


class Supervision:
    """The state of all components of one run."""

    def __init__(
        self, components: Sequence[Component], *, together: bool = False, start_seconds: float = START_SECONDS
    ) -> None:
        """together: start all tiers at once. Raises ValueError when two components have the same name."""
        self._components = {component.name: component for component in components}
        if len(self._components) != len(components):
            raise ValueError("two components have the same name")
        self._states: dict[str, _State] = {name: _Idle() for name in self._components}
        self._together = together
        self._start_seconds = start_seconds
        self._stop: _Stop | None = None
        self._was_ready = False
        self.addresses: dict[str, Mapping[str, str]] = {}
        """Where each component that is or was ready listens: the addresses by their names."""
        self.failure: str | None = None
        """What went wrong first, in words and with the component's last lines; None while nothing did."""
        self.exit_code = 0
        """1 when something went wrong, 2 when that was a component whose settings cannot be."""

    @property
    def ready(self) -> bool:
        """True when every component is ready and nothing is being stopped."""
        return self._stop is None and all(isinstance(state, _Running) for state in self._states.values())

    @property
    def finished(self) -> bool:
        """True when a stop was asked for and no process is left."""
        return self._stop is not None and not any(
            isinstance(state, _Ordered | _Starting | _Running | _Stopping) for state in self._states.values()
        )

    def step(self, inputs: Sequence[Input], now: float) -> list[Command]:
        """Take in what has happened and return what to do, in order. With no inputs: look at the time."""
        commands: list[Command] = []
        for item in inputs:
            self._take(item, now, commands)
        self._expire(now, commands)
        if self._stop is None:
            self._start_next(commands)
        else:
            self._stop_next(self._stop, now, commands)
        return commands

    def next_deadline(self) -> float | None:
        """Return when to step again even if nothing happens, or None."""
        if self._stop is None:
            return min((s.deadline for s in self._states.values() if isinstance(s, _Starting)), default=None)
        if not self._alive():
            return None
        pending = [TIER_SECONDS] if any(isinstance(s, _Starting | _Running) for s in self._states.values()) else []
        return self._stop.since + self._stop.patience_seconds + min([*pending, KILL_AFTER_SECONDS])

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _take(self, item: Input, now: float, commands: list[Command]) -> None:
        match item:
            case Started(name, pid):
                self._states[name] = _Starting(pid, now + self._start_seconds)
            case NotStarted(name, text):
                self._states[name] = _Gone()
                self._fail(f"{name} could not be started: {text}", now, commands)
            case Ready(name, addresses):
                self._take_ready(name, addresses, commands)
            case Ended():
                self._take_end(item, now, commands)
            case StopAsked(hurry):
                if self._stop is None:
                    commands.append(Announce("stopping"))
                    self._stop = _Stop(now, hurry, self._patience())
                elif hurry and not self._stop.hurried:
                    self._stop = _Stop(self._stop.since, hurried=True, patience_seconds=0.0)
            case _:
                assert_never(item)

    def _take_ready(self, name: str, addresses: Mapping[str, str], commands: list[Command]) -> None:
        state = self._states[name]
        if not isinstance(state, _Starting):
            return
        self._states[name] = _Running(state.pid)
        self.addresses[name] = addresses
        where = ", ".join(f"{kind} {address}" for kind, address in addresses.items())
        commands.append(Announce(f"{name} is ready{': ' if where else ''}{where} (pid {state.pid})"))
        if self.ready and not self._was_ready:
            self._was_ready = True
            commands.append(Announce("all components are ready; Ctrl-C stops them"))

    def _take_end(self, item: Ended, now: float, commands: list[Command]) -> None:
        state = self._states[item.name]
        self._states[item.name] = _Gone()
        match state:
            case _Starting(pid):
                text = f"{item.name} (pid {pid}) ended before it was ready: {item.reason}"
                self._fail(
                    text, now, commands, item.last_lines, EXIT_USAGE if item.returncode == EXIT_USAGE else EXIT_FAILURE
                )
            case _Running(pid) if item.returncode == 0:
                if self._stop is None:
                    commands.append(Announce(f"{item.name} (pid {pid}) has ended; stopping the rest"))
                    self._stop = _Stop(now, hurried=False, patience_seconds=self._patience())
            case _Running(pid):
                text = f"{item.name} (pid {pid}) ended unexpectedly: {item.reason}"
                self._fail(text, now, commands, item.last_lines)
            case _Stopping(pid, killed) if not killed and item.returncode not in _ASKED_FOR:
                text = f"{item.name} (pid {pid}) failed while it was stopped: {item.reason}"
                self._fail(text, now, commands, item.last_lines)
            case _Stopping():
                commands.append(Announce(f"{item.name} has ended"))
            case _Idle() | _Ordered() | _Gone():
                raise AssertionError(f"{item.name} ended without having been started")
            case _:
                assert_never(state)

    def _fail(
        self,
        text: str,
        now: float,
        commands: list[Command],
        last_lines: Sequence[str] = (),
        exit_code: int = EXIT_FAILURE,
    ) -> None:
        commands.append(Complain(text))
        if self.failure is None:
            lines = "".join(f"\n    {line}" for line in last_lines)
            self.failure = f"{text}{'; its last lines:' if lines else ''}{lines}"
            self.exit_code = exit_code
        if self._stop is None:
            self._stop = _Stop(now, hurried=False, patience_seconds=self._patience())

    # -- time ------------------------------------------------------------------------------------------------------

    def _expire(self, now: float, commands: list[Command]) -> None:
        if self._stop is not None:
            return
        for name, state in self._states.items():
            if isinstance(state, _Starting) and now >= state.deadline:
                self._fail(
                    f"{name} (pid {state.pid}) was not ready after {self._start_seconds:g} seconds", now, commands
                )
                return

    def _start_next(self, commands: list[Command]) -> None:
        for name, component in self._components.items():
            if isinstance(self._states[name], _Idle) and (self._together or self._ready_below(component.tier)):
                self._states[name] = _Ordered()
                commands.append(Start(component))

    def _ready_below(self, tier: int) -> bool:
        return all(
            isinstance(self._states[name], _Running)
            for name, component in self._components.items()
            if component.tier < tier
        )

    def _stop_next(self, stop: _Stop, now: float, commands: list[Command]) -> None:
        since = stop.since + stop.patience_seconds
        kill = stop.hurried or now >= since + KILL_AFTER_SECONDS
        highest = max((self._components[name].tier for name in self._alive()), default=0)
        for name in reversed(self._alive()):
            state = self._states[name]
            assert isinstance(state, _Starting | _Running | _Stopping)
            if kill and not (isinstance(state, _Stopping) and state.killed):
                if not stop.hurried:
                    self._fail(f"{name} (pid {state.pid}) did not end in time and is killed", now, commands)
                self._states[name] = _Stopping(state.pid, killed=True)
                commands.append(Kill(name))
            elif not isinstance(state, _Stopping) and (
                self._components[name].tier == highest or now >= since + TIER_SECONDS
            ):
                self._states[name] = _Stopping(state.pid, killed=False)
                commands.append(Terminate(name))

    def _patience(self) -> float:
        return max((self._components[name].patience_seconds for name in self._alive()), default=0.0)

    def _alive(self) -> list[str]:
        return [name for name, state in self._states.items() if isinstance(state, _Starting | _Running | _Stopping)]

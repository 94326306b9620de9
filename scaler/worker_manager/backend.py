"""Where workers live: the verbs that a worker manager needs of it.

A *unit* is what can be started and stopped: a process, a container, a job. A backend keeps as little as it can and asks
its service instead. All calls but `fileno` may block, for a bounded time; one thread makes them, one at a time.

States of a unit: WAITING (in a shared queue), PENDING (started, not running yet), RUNNING, STOPPING,
and the ended ones, FAILED (by itself, with a reason) and STOPPED (in order). Ended units are listed for a while, so
that users see why they ended.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ScalerError
from scaler.net.access import Access
from scaler.plugins import load, worker_manager_type
from scaler.protocol.messages import Role, UnitState, UnitStatus

ENDED = (UnitState.FAILED, UnitState.STOPPED)
ENDED_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
MAX_MESSAGE_CHARACTERS = 300
Unit = UnitStatus
"""One unit as it is now. age_seconds counts from its start; reason is a display text. remaining_seconds: until its
service ends it, such as a job at its time limit; 0: there is no such time. The scheduler drains it before."""


class BackendError(ScalerError):
    """A backend failed. Equal texts count as the same failure. started: ids of units that were started before it."""

    is_temporary = False
    """The same call may succeed soon."""
    fewer_may_start = False
    """A start was refused as a whole, and one of fewer units may be accepted."""

    def __init__(self, text: str, started: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.started = tuple(started)


class EndedUnits:
    def __init__(self) -> None:
        self._units: deque[tuple[float, Unit]] = deque(maxlen=ENDED_SHOWN)

    def add(self, unit: Unit, now: float) -> None:
        self._units.append((now, unit))

    def shown(self, now: float) -> list[Unit]:
        return [unit for at, unit in self._units if now - at <= ENDED_SHOWN_SECONDS]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a backend can provide. max_units: None for any number.

    fixed: all of max_units from the start, whatever the scheduler wants. starting: the most units that should be
    starting at the same time, None for any number. stop_seconds: how long the manager may take to stop all units when
    it ends. outlive_manager: units live without their manager, so a later one adopts them, one that is refused leaves
    them to the other, and the manager does not wait for a unit that is STOPPING. unit_memory_bytes: what the tasks of
    one unit may take together; 0: it is known when the first worker has joined. backlog: how many WAITING units stay in
    their queue when fewer units are wanted: they have waited long, and new ones would wait again. unit_price: what one
    unit costs in an hour, in the currency of spend_limit; 0 where it costs nothing, or the price is unknown; the
    setting unit_price replaces it. unit_minimum_seconds: a unit that lives for less is paid for as long.
    usual_startup_seconds: how long a unit usually takes from its start, without a queue, to its worker: policies know
    it before the first one has been measured; 0: nothing is known. usual_dispatch_seconds: how long a task given to a
    free slot usually takes to begin, where it runs elsewhere; 0: it begins at once. charges_tasks: unit_price and
    unit_minimum_seconds are those of one task, as it runs elsewhere, and units cost nothing.
    """

    unit_slots: int
    max_slots: int
    max_units: int | None
    fixed: bool = False
    starting: int | None = None
    stop_seconds: float = 8.0
    outlive_manager: bool = False
    unit_memory_bytes: int = 0
    backlog: int = 0
    unit_price: float = 0.0
    unit_minimum_seconds: float = 0.0
    usual_startup_seconds: float = 0.0
    usual_dispatch_seconds: float = 0.0
    charges_tasks: bool = False

    @classmethod
    def of_units(cls, unit_slots: int, max_units: int | None, **fields: Any) -> Capacity:
        return cls(unit_slots, -1 if max_units is None else max_units * unit_slots, max_units, **fields)


class Backend(Protocol):
    """Starts, stops and lists units. Ids of units are never used again."""

    @property
    def capacity(self) -> Capacity:
        """The same for the backend's whole life."""

    def start(self, count: int) -> list[str]:
        """Start this many units and return their ids. Raises BackendError when none could be started, or only some."""

    def stop(self, unit_ids: Sequence[str]) -> None:
        """Begin to stop units; those that have ended or are stopping are no error. Raises BackendError."""

    def list(self) -> list[Unit]:
        """Return all units that exist, and those that ended lately. Raises BackendError."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `list` would return something new; None if there is none."""

    def close(self) -> None:
        """End at once what is left and does not outlive the manager, and free everything."""


def access_of(config: WorkerManagerConfig) -> Access:
    """Return how a manager authenticates. A credential is read once, as it may come from a pipe. Raises ConfigError."""
    return _access(config.credentials, config.insecure_no_auth, config.worker_manager_id, config.compression)


@cache
def _access(credentials: str | None, insecure_no_auth: bool, manager_id: str, compression: str) -> Access:
    return Access.of(credentials, insecure_no_auth, Role.MANAGER, manager_id, compression)


def units_credential(config: WorkerManagerConfig) -> str:
    """Return the text of the units' worker credential; empty if the manager has none itself. Raises ConfigError."""
    own = access_of(config).credential
    return "" if own is None else own.for_units().to_text()


def most_units(max_task_concurrency: int, unit_slots: int) -> int | None:
    """Return how many units a limit of tasks allows; None for any number."""
    return None if max_task_concurrency < 0 else -(-max_task_concurrency // unit_slots)


def owner_digest(config: WorkerManagerConfig, characters: int) -> str:
    """Return the mark of all units of a manager and scheduler, by which a later process of the manager finds them."""
    whole = f"{config.worker_manager_id}\0{config.worker_scheduler_address}"
    return hashlib.sha256(whole.encode()).hexdigest()[:characters]


def load_backend(config: WorkerManagerConfig) -> Backend:
    """Return the backend of the configuration's type. Raises UsageError for one that is not installed."""
    return cast("Callable[[WorkerManagerConfig], Backend]", load(worker_manager_type(config.type).backend))(config)


def short(text: str) -> str:
    """Return a text on one line, and its beginning where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."

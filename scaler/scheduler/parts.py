"""Parts of the scheduler's process, and the interface between these parts and the frame.

The frame is `scaler.scheduler.server`: it steps the core, performs the core's commands, and owns the port of clients
and workers. The table at the end of this module names each part by reference. A part is loaded at the start if the
settings need it, and is called with the frame. The frame knows a part only as its protocol below, and a part knows the
frame only as `SchedulerFrame`. All calls are on the scheduler's event loop, and none may block.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from scaler.config.servers import SchedulerConfig
from scaler.net.connection import ListenerEvent
from scaler.net.listener import Admission, Listener
from scaler.protocol.messages import EndSession, Inquiry, RestartWorkers, Role, ShutdownCluster, Welcome
from scaler.scheduler.core.changes import Change, Observed
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Input
from scaler.scheduler.core.rooms import Rooms, Subscriber
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.files import FileWriter
from scaler.scheduler.rooms import Performers, part
from scaler.scheduler.scaling.demand import TaskTimes
from scaler.scheduler.storage_link import StorageLink
from scaler.scheduler.vitals import Vitals


class SchedulerFrame(Protocol):
    """The scheduler as its parts see it. While a StatePart or a StoragePart is made, only `config` is there."""

    config: SchedulerConfig
    loop: AbstractEventLoop
    files: FileWriter
    rooms: Rooms
    vitals: Vitals
    storage: StorageLink
    performers: Performers

    @property
    def listener(self) -> Listener:
        """The port of clients and workers."""

    @property
    def state(self) -> ClusterState:
        """The core's state, to be read only."""

    @property
    def task_times(self) -> TaskTimes: ...

    def listen(
        self,
        address: str,
        admit: Admission,
        on_events: Callable[[list[ListenerEvent]], None],
    ) -> Listener:
        """Open another port of the scheduler."""

    def step(self, inputs: Sequence[Input]) -> None:
        """Pass inputs to the core, and perform its commands."""

    def perform(self, commands: Sequence[Command]) -> None:
        """Perform commands that a `StatePart` has held back."""

    def observe(self, observed: Sequence[Observed]) -> None:
        """Report events to extensions that the core cannot see."""

    def welcome(self, role: Role) -> Welcome: ...

    def journal(self) -> tuple[int, str]:
        """Return the bytes of the journal, and why the disk takes no new tasks, or an empty text."""


class Part(Protocol):
    def close(self) -> None: ...


class StoragePart(Part, Protocol):
    """An object storage in the scheduler's process. Everything but its address arrives through a connection."""

    address: str


class StatePart(Part, Protocol):
    """Keeps the state of the core across restarts, and holds back commands until the changes behind them are safe."""

    @property
    def subscriber(self) -> Subscriber:
        """Receives the changes to keep."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def complaint(self) -> str:
        """Why the disk is considered hanging; empty otherwise."""

    def recover(self) -> Sequence[Input]:
        """Return the kept state. Called once, before the first `add`."""

    def add(self, inputs: Sequence[Input], commands: list[Command]) -> None:
        """Perform the commands of a step in order, as soon as its changes are safe."""


class MonitorsPart(Part, Protocol):
    """Serves monitors, and answers the questions of clients."""

    @property
    def address(self) -> str: ...

    def ask(self, client: ClientRecord, question: Inquiry) -> None:
        """Answer a question of a client at the port of clients and workers."""

    def add(self, changes: Iterable[Change]) -> None:
        """Publish the changes of a step."""

    def add_rows(self, table: str, rows: Sequence[Any]) -> None:
        """Publish new rows of a `LogTable`."""


P_co = TypeVar("P_co", bound=Part, covariant=True)


class Reference(Generic[P_co]):
    """A part by reference, `module:attribute`."""

    def __init__(self, target: str) -> None:
        self.target = target

    def start(self, frame: SchedulerFrame) -> P_co:
        """Load and return the part. Raises UsageError if it cannot start."""
        found: P_co = part(self.target)(frame)
        return found


EMBEDDED_STORAGE = Reference[StoragePart]("scaler.scheduler.embedded_storage:embed")
MONITORS = Reference[MonitorsPart]("scaler.scheduler.monitors:Monitors")
STATE = Reference[StatePart]("scaler.scheduler.durable:keep_state")
TASK_TIMES = Reference[Part]("scaler.scheduler.task_times_file:TaskTimesPart")


def may_wait(message: object) -> bool:
    """Return whether a message only asks. A question with effects keeps its order among other messages."""
    return isinstance(message, Inquiry) and not isinstance(message, ShutdownCluster | RestartWorkers | EndSession)

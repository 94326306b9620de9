"""Inputs (past events) and commands of the agent's core. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple

from scaler.net.connection import Broken, Received, Resumed, Welcomed
from scaler.protocol.messages import Message, Outcome
from scaler.worker.frames import Results, Snapshot

# -- inputs --------------------------------------------------------------------------------------------------------


class TimeElapsed(NamedTuple):
    """`core.wake_at` has been reached. snapshots: status pages by processor number."""

    snapshots: Mapping[int, Snapshot]


class StopRequested(NamedTuple):
    """Request to stop the process. Running tasks have `stop_grace_seconds` left."""

    text: str


class ProcessorEvent(Enum):
    READY = "the processor accepts tasks"
    BLOCKED = "the running task waits for its own tasks"
    UNBLOCKED = "the running task's wait is over, and it needs a slot to continue"
    WORN = "the processor must be replaced after its tasks; text: reason"
    WAITS = "text: what the running task waits for besides its own tasks; empty: the wait is over"
    INVALID_DATAGRAM = "the processor violated the protocol; text: details"
    OUT_OF_MEMORY = "the kernel killed the processor because memory ran out; text: as for EXITED"
    EXITED = "the processor exited; follows TasksReclaimed; text: crash text, exit code, or signal"


class ProcessorReported(NamedTuple):
    number: int
    event: ProcessorEvent
    text: str = ""


class ResultsReceived(NamedTuple):
    number: int
    results: Results


class TasksReclaimed(NamedTuple):
    """Answers RECLAIM, and is also generated when a processor exits.

    unread: ids of the reclaimed tasks, in order. The processor can no longer read them. The processor may read a task
    during the reclaim, so these need not be the last dispatched tasks. results: batches received since then (True), and
    the unsent batch from the processor's page (False).
    """

    number: int
    unread: Sequence[bytes]
    results: Sequence[tuple[Results, bool]]
    snapshot: Snapshot


class MemoryExceeded(NamedTuple):
    """Processors to kill because of a memory limit. By number: task outcome, reason, and peak bytes."""

    excesses: Mapping[int, tuple[Outcome, str, int]]


SERVER_EXITED = "its fork server has exited"
"""Text of EXITED, reported for an environment's processors before EnvironmentChanged."""


class EnvironmentChanged(NamedTuple):
    """An environment accepts processors, or its fork server has exited. text: the reason."""

    environment: bytes
    is_ready: bool
    text: str = ""


ProcessorInput = ResultsReceived | TasksReclaimed | ProcessorReported | MemoryExceeded | EnvironmentChanged


class Store(NamedTuple):
    """Address of the host's store; empty: tasks use the object storage."""

    address: str
    peer: bytes


class StoreChanged(NamedTuple):
    """store: None while the store is being located. No task starts before it is known."""

    store: Store | None


AgentInput = Received | Welcomed | Resumed | Broken | StopRequested | StoreChanged | TimeElapsed | tuple[Any, ...]
"""An input of the core, or of its executor: `ProcessorInput`, or `CallInput` of `scaler.offload`."""


# -- commands ------------------------------------------------------------------------------------------------------


LogLevel = Literal["info", "warning", "error"]


class WriteLog(NamedTuple):
    text: str
    task: bytes = b""
    level: LogLevel = "warning"


class EndAgent(NamedTuple):
    """text: reason for display."""

    exit_code: int
    text: str


class DispatchTasks(NamedTuple):
    """Send announcements to a processor, then TASK datagrams. Announcements precede all later tasks."""

    number: int
    announcements: list[bytes]
    tasks: list[bytes]


class ProcessorVerb(Enum):
    SPAWN = "start the processor"
    RECLAIM = "take back the tasks that the processor has not read, and read its results"
    KILL = "kill the processor"
    TERMINATE = "send SIGTERM to the running task, and let the processor exit afterwards"
    END = "let the processor exit when idle"
    GRANT = "grant the slot that the running task waits for"


class ActOnProcessor(NamedTuple):
    """environment: for SPAWN; empty: the worker's own."""

    number: int
    verb: ProcessorVerb
    environment: bytes = b""


class UseEnvironment(NamedTuple):
    """Prepare an environment, whose tasks must wait until it is ready. Without a definition, end the environment."""

    environment: bytes
    definition: bytes | None
    number: int = 0


class ShowDegradedReason(NamedTuple):
    """Show in the unit's state why tasks cannot run. An empty text clears the reason."""

    text: str


ProcessorCommand = DispatchTasks | ActOnProcessor | UseEnvironment
Command = Message | WriteLog | EndAgent | ShowDegradedReason | tuple[Any, ...]
"""A command of the core, or of its executor: `ProcessorCommand`, or `CallCommand` of `scaler.offload`."""

"""Inputs and commands of the agent's core. Pure.

`commands = core.step(inputs, now)`: inputs are what has happened, in the past tense; the shell performs the commands in
their order, and sends the scheduler the messages among them. `TasksReclaimed` answers `ProcessorVerb.RECLAIM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple

from scaler.net.connection import Broken, Received, Resumed, Welcomed
from scaler.protocol.messages import Message, Outcome
from scaler.worker.agent.limits import ContainerMemory
from scaler.worker.call import Call
from scaler.worker.executor import CallFailed, CallFinished, CallKey, CallStarted, ExecutorDegraded
from scaler.worker.frames import Results, Snapshot

# -- inputs --------------------------------------------------------------------------------------------------------


class TimeElapsed(NamedTuple):
    """`core.wake_at` has come. snapshots: the status page of every processor, by its number."""

    snapshots: Mapping[int, Snapshot]


class StopRequested(NamedTuple):
    """The process was asked to end. Running tasks have `stop_grace_seconds` left."""

    text: str


class ProcessorEvent(Enum):
    READY = "it takes tasks"
    FAILED = "it could not get ready, and its exit follows; text: why"
    BLOCKED = "its running task waits for tasks of its own"
    UNBLOCKED = "that wait is over: it waits until it is granted a slot"
    NESTED_TRAFFIC = "a nested client of it has sent or received a message"
    WORN = "it is to be replaced once its tasks have ended; text: why"
    WAITS = "text: what its running task waits for besides tasks of its own; empty: it goes on"
    INVALID_DATAGRAM = "it has broken the protocol; text: how"
    OUT_OF_MEMORY = "as EXITED: the kernel has killed it, because memory ran out"
    EXITED = "it is gone; its TasksReclaimed came before; text: exit code or signal, and its crash text"


class ProcessorReported(NamedTuple):
    number: int
    event: ProcessorEvent
    text: str = ""


class ResultsReceived(NamedTuple):
    """A processor has sent a complete batch of results."""

    number: int
    results: Results


class TasksReclaimed(NamedTuple):
    """Answer to RECLAIM, and what a processor that has exited left behind.

    unread: ids of the tasks that it had not read, in order; it finds none of them any more. It may read one while they
    are taken, so these are not always the last ones that were dispatched. results: those that have come since, with
    True, and those that lie unsent in its page, with False.
    """

    number: int
    unread: Sequence[bytes]
    results: Sequence[tuple[Results, bool]]
    snapshot: Snapshot


class CallsAccepted(NamedTuple):
    """The executor took what it was given, or some of it."""


class CallsRefused(NamedTuple):
    """The executor did not take these calls, and may take them later."""

    keys: Sequence[CallKey]
    text: str


class CallCompleted(NamedTuple):
    """The outcome of a call is certain: its result is delivered, or it could not be made."""

    number: int
    key: CallKey
    outcome: Outcome
    payload: bytes
    duration_us: int = 0
    cpu_us: int = 0
    peak_bytes: int = 0


class MemoryMeasured(NamedTuple):
    """The memory of all processors by their numbers, in bytes, when it exceeded a limit."""

    usage: Mapping[int, int]
    container: ContainerMemory | None = None
    """Whose limit it was, where that was not one of the worker's own."""


ProcessorInput = ResultsReceived | TasksReclaimed | ProcessorReported | MemoryMeasured
CallInput = CallStarted | CallFinished | CallFailed | ExecutorDegraded | CallsAccepted | CallsRefused | CallCompleted


class StoreSought(NamedTuple):
    """Tasks start when StoreFound has come."""


class StoreFound(NamedTuple):
    """Tasks put results into the store at this address, or, if empty, into the object storage."""

    address: str
    peer: bytes


AgentInput = (
    Received
    | Welcomed
    | Resumed
    | Broken
    | StopRequested
    | StoreSought
    | StoreFound
    | TimeElapsed
    | ProcessorInput
    | CallInput
)


# -- commands ------------------------------------------------------------------------------------------------------


LogLevel = Literal["info", "warning", "error"]


class WriteLog(NamedTuple):
    """task: the id of the one that the line is about; empty for none."""

    text: str
    task: bytes = b""
    level: LogLevel = "warning"


class EndAgent(NamedTuple):
    """text: why, as display text. is_contact_lost: there was no contact with the scheduler for too long."""

    exit_code: int
    text: str
    is_contact_lost: bool = False


class DispatchTasks(NamedTuple):
    """Send a processor announcements, which it knows before any task sent later, then TASK datagrams."""

    number: int
    announcements: list[bytes]
    tasks: list[bytes]


class ProcessorVerb(Enum):
    SPAWN = "start making it"
    RECLAIM = "take back all tasks that it has not read, and read its results"
    KILL = "end it at once"
    END = "have it end when it is idle"
    GRANT = "let it go on: it waits for a slot"
    PAUSE = "stop the whole process"
    CONTINUE = "continue the whole process"
    RELEASE = "free what belongs to it: it has exited"


class ActOnProcessor(NamedTuple):
    number: int
    verb: ProcessorVerb


class StartCall(NamedTuple):
    """Give a call to the executor, once its payloads that are in the object storage are fetched."""

    number: int
    call: Call


class CancelCall(NamedTuple):
    """Have the executor end a call, or do not give it to it any more."""

    number: int
    key: CallKey


class DeliverResult(NamedTuple):
    """Pass on what a task wrote, and store the result of its call if it is large; `CallCompleted` follows."""

    number: int
    key: CallKey
    stream_output: bool
    data: bytes | bytearray | memoryview


class UseStorage(NamedTuple):
    address: str


class ShowDegradedReason(NamedTuple):
    """Show what keeps tasks from running as the state of the unit; empty when that is over."""

    text: str


ProcessorCommand = DispatchTasks | ActOnProcessor | ShowDegradedReason
CallCommand = StartCall | CancelCall | DeliverResult | UseStorage | ShowDegradedReason
Command = Message | WriteLog | EndAgent | ProcessorCommand | CallCommand

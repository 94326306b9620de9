"""Messages about a scheduler's state: reports for monitors, and questions with their answers.

Declared as in `scaler.protocol.messages`, which explains the rules for changes. A process can decode them once it has
imported this module, as every scheduler, monitor, and querying client does.
"""

from typing import Annotated

from scaler.protocol import fields as f
from scaler.protocol.messages import CLIENTS, MONITOR, Functions, Inquiry, Message, Reply, RunGroup, message


@message(32, from_scheduler=(MONITOR,))
class MonitorStatus(Message):
    """The state of the cluster (see docs/design.md)."""

    json: bytes  # UTF-8


@message(33, from_scheduler=(MONITOR,))
class MonitorEvents(Message):
    """Events since the last MonitorEvents (see docs/design.md)."""

    json: bytes  # UTF-8


@message(34, to_scheduler=(*CLIENTS, MONITOR))
class Explain(Inquiry):
    """Asks why a task waits or how it ended. Answered by Explained."""

    extension = "explain"
    task: f.Id


@message(35, from_scheduler=(*CLIENTS, MONITOR))
class Explained(Reply):
    task: f.Id
    text: str  # display text


@message(36, to_scheduler=(*CLIENTS, MONITOR))
class ReadLog(Inquiry):
    """Asks for the output of a task. Answered by TaskLog."""

    extension = "logs"
    task: f.Id


@message(37, from_scheduler=(*CLIENTS, MONITOR))
class TaskLog(Reply):
    task: f.Id
    stdout: bytes
    stderr: bytes
    truncated_bytes: f.Count64  # bytes omitted beyond the limit
    traceback: bytes = b""  # UTF-8; of a failed task


@message(49, to_scheduler=CLIENTS)
class ReadFailure(Inquiry):
    """Asks for the function and arguments of a failed task, to replay it. Answered by FailedTask."""

    extension = "failures"
    task: f.Id


@message(50, from_scheduler=CLIENTS, batch=True)
class FailedTask(Reply):
    task: f.Id
    functions: Functions  # the task's function and serializer
    runs: list[RunGroup]  # one group with only this task; empty if the task cannot be replayed
    text: str = ""  # why it cannot run again, display text


@message(51, to_scheduler=(*CLIENTS, MONITOR))
class FindTasks(Inquiry):
    """Searches live tasks and recently ended tasks. Answered by TasksFound."""

    extension = "history"
    search: str  # prefix of a task's id in hex, or part of the name of its function, client, or worker


@message(52, from_scheduler=(*CLIENTS, MONITOR))
class TasksFound(Reply):
    search: str
    json: bytes  # UTF-8: a table of tasks as in MonitorEvents


@message(53, to_scheduler=(*CLIENTS, MONITOR))
class FindObjects(Inquiry):
    """Asks which stores hold the named objects, or the largest objects. Answered by ObjectsFound."""

    named: f.Ids  # a task's id stands for its result; empty: the largest objects
    most: f.Count32


@message(54, from_scheduler=(*CLIENTS, MONITOR))
class ObjectsFound(Reply):
    named: f.Ids
    most: f.Count32
    json: bytes  # UTF-8: a list of the values of `data_rows.ObjectRow`, with a list of all holders


@message(90, to_scheduler=(*CLIENTS, MONITOR))
class ReadProfile(Inquiry):
    """Asks for the profile of a task or function. With neither, asks for the functions with a profile. Answered by
    Profiled."""

    extension = "profiles"
    task: f.OptionalId = b""
    search: str = ""  # the name of a function


@message(91, from_scheduler=(*CLIENTS, MONITOR), batch=True)
class Profiled(Reply):
    task: f.OptionalId
    search: str
    json: bytes  # UTF-8: task, function, or empty (none found); name; a profile or the list of functions


@message(94, to_scheduler=(*CLIENTS, MONITOR))
class FindHistory(Inquiry):
    """Asks for the history between two times, in unix seconds. Answered by HistoryFound."""

    extension = "history"
    since: f.Clock
    until: f.Clock


@message(95, from_scheduler=(*CLIENTS, MONITOR))
class HistoryFound(Reply):
    since: f.Clock
    until: f.Clock
    json: bytes  # UTF-8: a document of `history_rows.ClusterHistory`, with tables of rows as in MonitorStatus


@message(98, to_scheduler=CLIENTS)
class ReadCluster(Inquiry):
    """Asks for the part of the cluster's state that the client may see. Answered by ClusterRead."""


@message(99, from_scheduler=CLIENTS, batch=True)
class ClusterRead(Reply):
    status: bytes  # UTF-8: the document of a MonitorStatus
    events: bytes  # UTF-8: the document of a MonitorEvents with the last tasks


UNFINISHED = 255
"""Placeholder for an outcome in SessionTasks."""


@message(60, to_scheduler=CLIENTS)
class ListSessionTasks(Inquiry):
    """Asks for tasks of a durable session, in submission order. Answered by SessionTasks."""

    extension = "durability"

    session: f.PeerId
    first: f.Count64 = 0  # tasks to skip


@message(61, from_scheduler=CLIENTS, batch=True)
class SessionTasks(Reply):
    """Answers ListSessionTasks, up to the size of one message."""

    session: f.PeerId
    first: f.Count64
    total: f.Count64  # tasks of the session; 0 if the client may not see the session
    ids: f.Ids
    outcomes: Annotated[list[int], f.Numbers("List(UInt8)", "of Outcome, or 255: unfinished")]
    names: f.Payloads  # UTF-8
    keys: f.Payloads  # UTF-8
    tags: f.Payloads  # UTF-8


@message(62, to_scheduler=CLIENTS)
class EndSession(Inquiry):
    """Asks to cancel all tasks of a durable session. Answered by SessionEnded."""

    extension = "durability"
    has_effects = True

    session: f.PeerId
    remove: bool  # also remove the session with its results


@message(63, from_scheduler=CLIENTS)
class SessionEnded(Reply):
    session: f.PeerId
    cancelled: f.Count64
    error: str = ""  # reason of a failure, or empty

"""The vocabulary: everything that peers say to each other, as plain objects.

A message is a batch. Its lists are columns of one length: entry i of every column belongs to task i. Only `codec` knows
how these look on the wire.

*Payloads* are bytes that begin with a tag (see `PayloadTag`); the platform never looks behind the tag. Anything larger
than `INLINE_LIMIT_BYTES` is left in the object storage, and its payload is a stored reference: tag 3, the object's id
(16 bytes), its size (8 bytes, little endian).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

PROTOCOL_VERSION = 1
INLINE_LIMIT_BYTES = 32 * 1024
MAX_CONTROL_BYTES = 1024 * 1024
"""Largest body of any message but those of `MAX_BATCH_BYTES`."""
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Largest body of Submit, Run, Done, Finished and Relay; senders split their batches near `SPLIT_BATCH_BYTES`."""
SPLIT_BATCH_BYTES = 1024 * 1024
MAX_CHUNK_BYTES = 64 * 1024 * 1024
"""Largest attachment (a frame of an object's bytes)."""

STORED_REFERENCE_BYTES = 25
STARTED_AFTER_SECONDS = 0.05
"""A task that has run for so long is said to have started; shorter ones are over before anybody could look."""


class PayloadTag(IntEnum):
    """First byte of a payload."""

    PARTS = 1
    """A pickle and its out-of-band buffers, framed."""
    ARGUMENTS = 2
    """One entry per argument, each made by the user's serializer, framed."""
    STORED = 3
    """A stored reference."""
    EXCEPTION = 4
    """Texts about an exception, then a pickle of it: see `failures`."""
    PICKLE = 0x80
    """A pickle as it is: protocol 2 and later begin with this byte."""


def stored_reference(object_id: bytes, size_bytes: int) -> bytes:
    """Return the payload that points to an object in the storage."""
    return b"\x03" + object_id + size_bytes.to_bytes(8, "little")


def is_stored(payload: bytes) -> bool:
    """Tell whether a payload is a stored reference."""
    return len(payload) == STORED_REFERENCE_BYTES and payload[0] == 3


class Role(StrEnum):
    CLIENT = "client"
    WORKER = "worker"
    MANAGER = "manager"
    MONITOR = "monitor"
    ADMIN = "admin"
    SCHEDULER = "scheduler"
    """The scheduler as a peer of the object storage."""


class Outcome(IntEnum):
    """How a task, or one attempt of it, ended. The payload of all but SUCCESS and the two exceptions is UTF-8 text."""

    SUCCESS = 0
    EXCEPTION = 1
    """The task's own exception; the payload holds it and its traceback."""
    EXCEPTION_TO_RETRY = 2
    """The same, of a type in `retry_on`. From workers only."""
    CANCELLED = 3
    TIMED_OUT = 4
    REJECTED = 5
    WORKER_LOST = 6
    PROCESSOR_DIED = 7
    POISON = 8
    OBJECT_LOST = 9
    NOT_STARTED = 10
    """The attempt never began and may move for free. From workers only."""


# -- handshake, life and end: every peer --------------------------------------------------------------------------


@dataclass(slots=True)
class ClientDetails:
    name: str = ""


@dataclass(slots=True)
class WorkerDetails:
    """slots: tasks it runs at once. queue_size: the most tasks that may wait behind each slot."""

    manager_id: str
    unit_id: str
    slots: int
    queue_size: int
    capabilities: dict[str, float | None]


@dataclass(slots=True)
class ManagerDetails:
    """max_concurrency: the most slots it may provide, -1 for no limit. unit_slots: slots of one unit.

    fixed: it starts all of max_concurrency by itself, whatever Desired says.
    """

    manager_id: str
    kind: str
    max_concurrency: int
    unit_slots: int
    capabilities: dict[str, float | None]
    fixed: bool = False


Details = ClientDetails | WorkerDetails | ManagerDetails | None


@dataclass(slots=True)
class Hello:
    """First message of every connection, from the connecting side."""

    role: Role
    resume: bool
    """True when this session has spoken to the server before."""
    protocol_version: int
    scaler_version: str
    python_version: str
    cloudpickle_version: str
    hostname: str
    pid: int
    details: Details = None


@dataclass(slots=True)
class Welcome:
    """Answer to Hello. Not resumed: the server knows nothing of this session, and both sides count from 1 again."""

    resumed: bool
    incarnation: int
    """Made anew at every start of the server."""
    lease_seconds: float
    heartbeat_seconds: float
    object_storage_address: str = ""
    max_pending_tasks: int = -1
    shared_memory: str = ""
    """What a peer on the server's host needs to share its memory; see `object_storage.descriptors`."""


class RefusalReason(StrEnum):
    VERSION = "version"
    ROLE = "role"
    DUPLICATE = "duplicate"
    LIMIT = "limit"
    MALFORMED = "malformed"
    EXPIRED = "expired"


@dataclass(slots=True)
class Refused:
    """The connection ends with this; text is for people and names both sides."""

    reason: RefusalReason
    text: str


@dataclass(slots=True)
class Goodbye:
    """An orderly end, from either side; the session is forgotten at once."""

    text: str = ""


@dataclass(slots=True)
class Acknowledge:
    """Says nothing but what the envelope's header says: how far its sender has received."""


# -- tasks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """What the tasks of a group have in common. Hashable; equal specs are one group."""

    function: bytes
    """Id of a registered function: content id when its pickle travels inline, object id when it is stored."""
    serializer: bytes = b""
    """Id of the registered serializer of the user; empty: the built-in one."""
    needs: tuple[tuple[str, float], ...] = ()
    """As in `Needs.items`."""
    priority: int = 0
    """Higher runs first."""
    retries: int = 3
    retry_on: bytes = b""
    """Pickled tuple of exception types, or empty."""
    timeout_seconds: float = 0.0
    """0: no limit of its own."""
    profiling: bool = False
    stream_output: bool = False
    deliver: bool = True
    """False: the client wants the outcome of a success, not its value (inner nodes of a graph)."""
    name: str = ""
    """What people see: the function's qualified name, unless the user gave one."""
    parent: bytes = b""
    """Task that submitted these, or empty."""


@dataclass(slots=True)
class TaskGroup:
    """Columns of tasks of one spec. references holds, per task, ids of the tasks and objects that it needs."""

    spec: Spec
    ids: list[bytes]
    payloads: list[bytes]
    references: list[tuple[bytes, ...]] = field(default_factory=list)
    """Empty when no task of the group references anything."""


@dataclass(slots=True)
class Submit:
    """Client to scheduler. functions: functions and serializers new to the scheduler, as (id, payload)."""

    functions: list[tuple[bytes, bytes]]
    groups: list[TaskGroup]
    acknowledged: int = 0
    """Number of the last Finished whose futures this client has resolved; earlier results need not be kept for it."""


@dataclass(slots=True)
class AcknowledgeResults:
    """Client to scheduler, when it has nothing to submit: see `Submit.acknowledged`."""

    acknowledged: int


@dataclass(slots=True)
class Cancel:
    """Client to scheduler: each of these ends in a Finished, cancelled or not."""

    ids: list[bytes]


@dataclass(slots=True)
class Clear:
    """Client to scheduler: cancel all of this client's tasks and forget all that it holds."""


@dataclass(slots=True)
class Pin:
    """Client to scheduler: objects that it has put into the storage to use them in many tasks."""

    ids: list[bytes]


@dataclass(slots=True)
class Release:
    """Client to scheduler: it no longer uses these objects, stored results or functions."""

    ids: list[bytes]


@dataclass(slots=True)
class Finished:
    """Scheduler to client: exactly one entry per task, ever. number counts the Finished of this client from 1.

    The profile columns (microseconds of wall time, of CPU time; bytes) are 0 where unknown; cpu_us and peak_bytes are
    empty when no task of the batch asked for profiling.
    """

    number: int
    ids: list[bytes]
    outcomes: list[int]
    payloads: list[bytes]
    duration_us: list[int]
    cpu_us: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RunGroup:
    """Columns of attempts of one spec. inputs holds, per task, the payloads of its references in their order."""

    spec: Spec
    ids: list[bytes]
    attempts: list[int]
    payloads: list[bytes]
    inputs: list[tuple[bytes, ...]] = field(default_factory=list)
    """Empty when no task of the group references anything."""


@dataclass(slots=True)
class Run:
    """Scheduler to worker. functions: functions and serializers new to this worker, as (id, payload)."""

    functions: list[tuple[bytes, bytes]]
    groups: list[RunGroup]


@dataclass(slots=True)
class ForgetFunctions:
    """Scheduler to worker: functions and serializers that no task uses any more."""

    ids: list[bytes]


@dataclass(slots=True)
class Recall:
    """Scheduler to worker: give these back. Started ones are killed when `kill` is set, and go on otherwise.

    Every id is answered: in Returned (it never started and is gone here, or it goes on), or in Done.
    """

    ids: list[bytes]
    attempts: list[int]
    kill: bool


@dataclass(slots=True)
class Returned:
    """Worker to scheduler: answer to Recall, or given back unasked (it drains)."""

    ids: list[bytes]
    attempts: list[int]
    started: list[bool]
    """False: never started here and forgotten. True: it had started, runs on, and will be in a Done."""


@dataclass(slots=True)
class Started:
    """Worker to scheduler to client: these tasks run, and have done so for a while. Shorter ones just end."""

    ids: list[bytes]


@dataclass(slots=True)
class Suspended:
    """Worker to scheduler: these started attempts now wait for tasks of their own and take no slot, or go on."""

    ids: list[bytes]
    attempts: list[int]
    suspended: list[bool]
    """False: it goes on, and takes a slot again."""


@dataclass(slots=True)
class Done:
    """Worker to scheduler: attempts that ended. The profile columns are as in Finished."""

    ids: list[bytes]
    attempts: list[int]
    outcomes: list[int]
    payloads: list[bytes]
    duration_us: list[int]
    cpu_us: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Output:
    """Worker to scheduler to client: what a task with `stream_output` wrote to stdout or stderr. Best effort."""

    task: bytes
    is_stderr: bool
    text: bytes


@dataclass(slots=True)
class Printed:
    """Worker to scheduler: what other tasks printed, kept for who asks later. A task may be there several times."""

    ids: list[bytes]
    are_stderr: list[bool]
    truncated_bytes: list[int]
    """Bytes that are missing before each text."""
    texts: list[bytes]


@dataclass(slots=True)
class ProcessorStatus:
    """One processor, for monitors. running is empty when it has no task."""

    pid: int
    cpu_percent: float
    rss_bytes: int
    initialized: bool
    suspended: bool
    running: bytes = b""
    running_seconds: float = 0.0


@dataclass(slots=True)
class WorkerHeartbeat:
    """Worker to scheduler, every heartbeat interval. sent_at is the worker's clock; it comes back in HeartbeatEcho."""

    sent_at: float
    agent_cpu_percent: float
    agent_rss_bytes: int
    queued: int
    latency_seconds: float
    """Round trip of the heartbeat before this one."""
    processors: list[ProcessorStatus] = field(default_factory=list)


@dataclass(slots=True)
class Heartbeat:
    """Any other peer to its server: it is alive."""

    sent_at: float


@dataclass(slots=True)
class HeartbeatEcho:
    sent_at: float


@dataclass(slots=True)
class Drain:
    """Scheduler to worker: start nothing more than you have started, give the rest back, end when idle.

    Worker to scheduler: it does so by somebody else's wish. Answered with the same: nothing was sent after that.
    """

    text: str


@dataclass(slots=True)
class Relay:
    """A message of or to a client that lives inside a task, through its worker. body is an encoded message."""

    client: bytes
    """Peer id of the nested client."""
    body: bytes


@dataclass(slots=True)
class RelayClosed:
    """Worker to scheduler: this nested client is gone."""

    client: bytes


@dataclass(slots=True)
class ShutdownCluster:
    """Client or admin to scheduler."""


@dataclass(slots=True)
class ShutdownReply:
    accepted: bool
    text: str


@dataclass(slots=True)
class Shutdown:
    """Scheduler to workers and managers: the cluster ends; stop what you run and end too."""

    text: str


# -- worker managers -----------------------------------------------------------------------------------------------


class UnitState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class UnitStatus:
    unit_id: str
    state: UnitState
    slots: int
    age_seconds: float
    reason: str = ""


@dataclass(slots=True)
class ManagerStatus:
    """Manager to scheduler, after every look at reality; it is the manager's heartbeat as well."""

    sent_at: float
    units: list[UnitStatus]
    degraded_reason: str = ""
    """Why it cannot start units now, for people; empty when all is well."""


@dataclass(slots=True)
class Desired:
    """Scheduler to manager: how many units should exist, and those that are drained and may be stopped.

    joined: units whose worker has connected since the last message of this kind.
    """

    units: int
    drained: list[str]
    reason: str
    joined: list[str] = field(default_factory=list)


# -- monitors ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MonitorStatus:
    """Scheduler to monitor: what is going on, as JSON (see docs/design.md)."""

    json: bytes


@dataclass(slots=True)
class MonitorEvents:
    """Scheduler to monitor: what has happened since the last such message, as JSON (see docs/design.md)."""

    json: bytes


@dataclass(slots=True)
class Explain:
    """Client or monitor to scheduler: why does this task wait, or what became of it? Answered with Explained."""

    task: bytes


@dataclass(slots=True)
class Explained:
    """text: for people."""

    task: bytes
    text: str


@dataclass(slots=True)
class ReadLog:
    """Client or monitor to scheduler: what did this task print? Answered with TaskLog."""

    task: bytes


@dataclass(slots=True)
class TaskLog:
    """What a task printed. cut: bytes that were left out because there were too many."""

    task: bytes
    stdout: bytes
    stderr: bytes
    truncated_bytes: int


# -- object storage ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PutObject:
    """Attachments: pieces of the object's bytes from offset on. An object is whole when all its bytes have come.

    parts: sizes of the object's parts (a pickle, then its buffers); their sum is its size. shared: there are no
    attachments, because all of the object is in memory whose descriptor was sent beside. Neither, at offset 0: it
    only asks whether there is room.
    """

    request: int
    id: bytes
    parts: list[int]
    offset: int
    shared: bool = False


@dataclass(slots=True)
class GetObject:
    """Answered when the object is whole, or with MISSING after deadline_seconds (0: at once).

    shared: the peer can take the descriptor of shared memory.
    """

    request: int
    id: bytes
    deadline_seconds: float
    shared: bool = False


@dataclass(slots=True)
class LinkObject:
    """Make `id` another name of the bytes of `target`."""

    request: int
    id: bytes
    target: bytes


@dataclass(slots=True)
class ForgetObjects:
    ids: list[bytes]


@dataclass(slots=True)
class ForgetOwner:
    """Forget all objects whose ids begin with this peer id."""

    owner: bytes


@dataclass(slots=True)
class StatStorage:
    request: int


class StorageResult(StrEnum):
    OK = "ok"
    MISSING = "missing"
    FULL = "full"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    UNSHARED = "unshared"
    """The descriptor of a shared PutObject is not there: put it again with attachments."""


@dataclass(slots=True)
class StorageReply:
    """Answer to Put, Link (no attachments) and Get (attachments: the next pieces of the object).

    A large object comes in several replies, in order; offset is where this one's bytes begin. shared: there are no
    attachments, because the descriptor of the object's memory was sent beside.
    """

    request: int
    result: StorageResult
    text: str = ""
    parts: list[int] = field(default_factory=list)
    offset: int = 0
    shared: bool = False


@dataclass(slots=True)
class StorageStatus:
    request: int
    objects: int
    bytes: int
    limit_bytes: int
    waiting_gets: int


Message = (
    Hello
    | Welcome
    | Refused
    | Goodbye
    | Acknowledge
    | Submit
    | AcknowledgeResults
    | Cancel
    | Clear
    | Pin
    | Release
    | Finished
    | Run
    | ForgetFunctions
    | Recall
    | Returned
    | Started
    | Suspended
    | Done
    | Output
    | Printed
    | WorkerHeartbeat
    | Heartbeat
    | HeartbeatEcho
    | Drain
    | Relay
    | RelayClosed
    | ShutdownCluster
    | ShutdownReply
    | Shutdown
    | ManagerStatus
    | Desired
    | MonitorStatus
    | MonitorEvents
    | Explain
    | Explained
    | ReadLog
    | TaskLog
    | PutObject
    | GetObject
    | LinkObject
    | ForgetObjects
    | ForgetOwner
    | StatStorage
    | StorageReply
    | StorageStatus
)

BATCH_MESSAGES = (Submit, Run, Done, Finished, Relay)
"""Messages that may be as large as MAX_BATCH_BYTES."""

UNSEQUENCED = (Hello, Welcome, Refused, Goodbye, Acknowledge, Heartbeat, HeartbeatEcho, WorkerHeartbeat)
"""Messages that are neither kept nor repeated: losing one harms nobody."""

"""All messages that peers exchange, each declared once.

A declaration is a class. Its docstrings become comments in the schema, its field types define the wire format (see
`fields`), and `@message` names the roles that may send the message. The codec, the tables of roles, and `scaler.capnp`
are derived from the declarations. Fields are numbered in order; each message declares its own number.

Peers, journals, and black boxes of all releases share these numbers. `tests/unit/protocol/test_released_schema.py`
compares the declarations with the last release: within one `PROTOCOL_VERSION`, they may only grow. A new message takes
the next free number. A new field must be the last one, and zeros must decode to its default. Payloads and specs are
last on the wire, so a struct that has them cannot get a new pointer field. Any other change requires a new
`PROTOCOL_VERSION`. Numbers are never reused: numbers of removed messages remain in the schema. In all versions, `Hello`
and `Refused` only gain fields, because both sides of a refused handshake read them.

A message about tasks is a batch: its lists are columns, and entry i of every column belongs to task i.

*Payloads* begin with a tag (see `PayloadTag`). A payload above `INLINE_LIMIT_BYTES` is put in the object storage and
replaced by a stored reference: tag 3, the object's id (16 bytes), its size (8 bytes, little-endian).
"""

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum, StrEnum
from types import NoneType
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

from scaler.ids import content_id
from scaler.protocol import fields as f

Buffer = bytes | bytearray | memoryview
Attachments = Sequence[Buffer]


class Descriptor(Protocol):
    """An open file that is closed when its last reference is dropped."""

    def fileno(self) -> int: ...


Descriptors = Sequence[Descriptor]


PROTOCOL_VERSION = 4
INLINE_LIMIT_BYTES = 32 * 1024
MAX_HELLO_BYTES = 32 * 1024
"""Maximum body size of messages before the Welcome, such as Hello."""
MAX_CONTROL_BYTES = 1024 * 1024
"""Maximum body size of messages that are not batches."""
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Maximum body size of a batch. Senders split batches at about `SPLIT_BATCH_BYTES`."""
SPLIT_BATCH_BYTES = 1024 * 1024
ROW_BYTES = 64
"""Approximate size of a task's columns, added to the size of its payloads when splitting batches."""
GROUP_BYTES = 2048
"""Approximate size of a group or function in a Submit. Also keeps split messages below `fields.MAX_ROWS`."""
MAX_REFERENCES = 100_000
"""Maximum futures and objects among the arguments of one task."""
MAX_TAGS = 16
"""Maximum number of tags per task."""
MAX_LABEL_CHARACTERS = 200
"""Maximum length of tags, session names, and task keys."""
MAX_ATTACHED_BYTES = 64 * 1024 * 1024
"""Maximum total size of one message's attachments (frames with the bytes of objects)."""

STORED_REFERENCE_BYTES = 25
STARTED_AFTER_SECONDS = 0.05
"""Run time after which a worker reports a task as started."""


class PayloadTag(IntEnum):
    """First byte of a payload."""

    PARTS = 1  # a pickle and its out-of-band buffers, framed
    ARGUMENTS = 2  # one entry per argument, each from the user's serializer, framed
    STORED = 3  # a stored reference
    EXCEPTION = 4  # texts of an exception, then its pickle: see `serialization.exceptions`
    NAMED = 5  # a function by name: see the extension `languages`
    JSON = 6  # one document of JSON, in UTF-8
    PICKLE = 0x80  # a plain pickle: protocol 2 and later begin with this byte


def stored_reference(object_id: bytes, size_bytes: int, *, is_at_host: bool = False) -> bytes:
    """Return the payload that references a stored object. is_at_host: a host's store received the object."""
    return b"\x03" + object_id + size_bytes.to_bytes(7, "little") + (b"\x01" if is_at_host else b"\x00")


def is_stored(payload: bytes) -> bool:
    """Return whether a payload is a stored reference."""
    return len(payload) == STORED_REFERENCE_BYTES and payload[0] == 3


def stored_bytes(payload: bytes) -> int:
    """Return the size of the referenced object in bytes, or 0 if its creator did not know the size."""
    return int.from_bytes(payload[17:24], "little")


def is_at_host(payload: bytes) -> bool:
    """Return whether a host's store received the referenced object."""
    return payload[24] == 1


def is_function_id(identifier: bytes, payload: bytes) -> bool:
    """Return whether an id is the digest of a function or serializer, or, if it is stored, its object's id."""
    return (payload[1:17] if is_stored(payload) else content_id(payload)) == identifier


class Role(StrEnum):
    """Role of a connecting peer, which determines the messages that a server accepts."""

    CLIENT = "client"
    WORKER = "worker"
    MANAGER = "manager"
    MONITOR = "monitor"
    ADMIN = "admin"
    SCHEDULER = "scheduler"  # the scheduler, connecting to the object storage or another scheduler
    STORE = "store"  # the object store of a host with workers


class Server(StrEnum):
    """Server to which a peer connects."""

    SCHEDULER = "scheduler"
    OBJECT_STORAGE = "object_storage"


class Message:
    """Base of all messages. Its shared comparison and repr methods replace generated ones, so this module is imported
    a quarter faster."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __hash__: ClassVar[None]  # type: ignore[assignment]  # messages can change

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{self.__class__.__qualname__}({shown})"


@dataclass(slots=True, eq=False, repr=False)
class Inquiry(Message):
    """Base of questions to the scheduler. number: repeated in the answer; last on the wire."""

    extension: ClassVar[str] = ""
    """Name of the extension that answers."""
    has_effects: ClassVar[bool] = False
    """Whether the scheduler processes the question in order with other messages."""
    number: f.Count64 = field(default=0, kw_only=True)


@dataclass(slots=True, eq=False, repr=False)
class Reply(Message):
    """Base of the scheduler's answers to questions."""

    number: f.Count64 = field(default=0, kw_only=True)


@dataclass(slots=True, eq=False, repr=False)
class IdList(Message):
    """Base of messages that consist of ids."""

    ids: f.Ids


MESSAGES: dict[int, type[Message]] = {}
"""All messages by wire number, in declaration order."""
NUMBERS: dict[type[Message], int] = {}
"""Wire number of each message."""
BATCHES: set[type[Message]] = set()
"""Messages with bodies of up to MAX_BATCH_BYTES."""
CARRIERS: set[type[Message]] = set()
"""Messages that may have attachments. None of them is a batch."""
UNSEQUENCED: set[type[Message]] = set()
"""Messages sent at most once, and not repeated after a break."""
MAY_SEND = {server: {role: set[type[Message]]() for role in Role} for server in Server}
"""Messages that a peer of each role may send to each server. Empty: the role does not connect to the server.

Messages from a nested client, inside a Relay, follow the rules for clients.
"""
MAY_ANSWER = {server: {role: set[type[Message]]() for role in Role} for server in Server}
"""Messages that each server may send to a peer of each role."""

_Declared = TypeVar("_Declared", bound=Message)
_Roles = tuple[Role, ...]


@dataclass_transform(field_specifiers=(field,))
def message(
    number: int,
    *,
    to_scheduler: _Roles = (),
    from_scheduler: _Roles = (),
    to_storage: _Roles = (),
    from_storage: _Roles = (),
    batch: bool = False,
    attachments: bool = False,
    sequenced: bool = True,
) -> Callable[[type[_Declared]], type[_Declared]]:
    """Declare a message: make the class a dataclass, and register it in the tables above.

    number: wire number; never changed or reused.
    to_scheduler, to_storage: roles that may send it to this server.
    from_scheduler, from_storage: roles to which this server may send it.
    """

    def declare(of: type[_Declared]) -> type[_Declared]:
        of.__doc__ = of.__doc__ or of.__name__  # otherwise, `dataclass` generates a signature, which is slow
        made = dataclass(slots=True, eq=False, repr=False)(of)
        if number in MESSAGES:
            raise ValueError(f"{of.__name__} needs another number: {MESSAGES[number].__name__} has {number}")
        MESSAGES[number] = made
        NUMBERS[made] = number
        if batch:
            BATCHES.add(made)
        if attachments:
            CARRIERS.add(made)
        if not sequenced:
            UNSEQUENCED.add(made)
        for table, server, roles in (
            (MAY_SEND, Server.SCHEDULER, to_scheduler),
            (MAY_SEND, Server.OBJECT_STORAGE, to_storage),
            (MAY_ANSWER, Server.SCHEDULER, from_scheduler),
            (MAY_ANSWER, Server.OBJECT_STORAGE, from_storage),
        ):
            for role in roles:
                table[server][role].add(made)
        return made

    return declare


CLIENT, WORKER, MANAGER, MONITOR, ADMIN = Role.CLIENT, Role.WORKER, Role.MANAGER, Role.MONITOR, Role.ADMIN
STORE = Role.STORE
PEERS = (CLIENT, WORKER, MANAGER, MONITOR, ADMIN, STORE, Role.SCHEDULER)
"""Peers of the scheduler."""
CLIENTS = (CLIENT, ADMIN)
"""An admin is a client with access to all clients' tasks and objects."""
OBJECT_PEERS = (CLIENT, WORKER, Role.SCHEDULER, STORE)
"""Peers that read and write objects in the storage."""
STORAGE_PEERS = (*OBJECT_PEERS, MONITOR, ADMIN)


class Outcome(IntEnum):
    """Outcome of a task or attempt. The payload is UTF-8 text, except for SUCCESS and the two exceptions."""

    SUCCESS = 0
    EXCEPTION = 1  # the task raised an exception; the payload contains the exception and its traceback
    EXCEPTION_TO_RETRY = 2  # an exception of a type in `retry_on`. From workers only
    CANCELLED = 3
    TIMED_OUT = 4
    REJECTED = 5
    WORKER_LOST = 6
    PROCESSOR_DIED = 7
    POISON = 8
    OBJECT_LOST = 9
    NOT_STARTED = 10  # the attempt never began, so its retry is not counted. From workers only
    MEMORY_LIMIT = 11  # the task exceeded its memory limit
    OUT_OF_MEMORY = 12  # the task's worker or machine ran out of memory. From workers only
    INPUT_MISSING = 13  # like NOT_STARTED; the payload begins with the id of an object that the storage lacks


_FROM_WORKERS = {Outcome.EXCEPTION_TO_RETRY, Outcome.NOT_STARTED, Outcome.OUT_OF_MEMORY, Outcome.INPUT_MISSING}
_FINAL = bytes(set(Outcome) - _FROM_WORKERS)

Outcomes = Annotated[list[int], f.Numbers("List(UInt8)", "of Outcome", bytes(Outcome))]
_FINAL_OUTCOMES = f.Numbers("List(UInt8)", "of Outcome, except those from workers only", _FINAL)
FinalOutcomes = Annotated[list[int], _FINAL_OUTCOMES]


class Capability(NamedTuple):
    """A capability that a worker offers, or that a task requires as a minimum. Names in a list are unique."""

    name: str
    amount: f.Number  # 0: a label, without a quantity; otherwise finite and above 0


class UnitId(NamedTuple):
    id: str


class PeerName(NamedTuple):
    id: f.PeerId


class AnnouncedFunction(NamedTuple):
    """A registered function or serializer, sent to a peer that lacks it."""

    id: f.Id  # content id if the payload is the pickle itself, object id if it is stored
    payload: bytes


Needs = Annotated[tuple[tuple[str, float], ...], f.PartList(Capability, f.needs_of, f.needs_of)]
"""In ascending order of their names."""
Offers = Annotated[dict[str, float | None], f.PartList(Capability, f.pairs_of, f.offers_of)]
"""None: a label."""
UnitIds = Annotated[list[str], f.list_of_values(UnitId, list)]
PeerIds = Annotated[list[bytes], f.list_of_values(PeerName, list)]
Functions = Annotated[list[tuple[bytes, bytes]], f.PartList(AnnouncedFunction, rows=16)]


class RetryDelay(NamedTuple):
    seconds: f.Seconds


class TaskTag(NamedTuple):
    text: str


class ImportedPackage(NamedTuple):
    """Package imported by a function, with the client's version."""

    module: str
    version: str


Packages = Annotated[
    tuple[tuple[str, str], ...], f.PartList(ImportedPackage, list, lambda parts: tuple(map(tuple, parts)))
]
RetryDelays = Annotated[tuple[float, ...], f.list_of_values(RetryDelay, tuple)]
TaskTags = Annotated[tuple[str, ...], f.list_of_values(TaskTag, tuple)]


@dataclass(slots=True)
class ClientDetails:
    """Details of a client."""

    name: str = ""  # display text
    session: str = ""  # name of the client's durable session, or empty


@dataclass(slots=True)
class WorkerDetails:
    """Details of a worker."""

    manager_id: str  # manager that started the worker, or empty
    unit_id: str  # unit in which the worker runs, or empty
    slots: f.Count32  # maximum concurrent tasks
    queue_size: f.Count32  # maximum tasks queued behind each slot
    capabilities: Offers
    memory_bytes: f.Count64 = 0  # memory for the worker's tasks; 0: unknown
    memory_pool: str = ""  # workers with equal values share one host's memory; empty: not shared
    death_timeout_seconds: f.Seconds = 0.0  # exits after being idle this long without its manager; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """Properties of a backend's units, for the scheduler and its policy."""

    max_slots: f.Limit
    unit_slots: f.Count32
    capabilities: Offers = field(default_factory=dict)  # capabilities of each unit, as configured
    fixed: bool = False  # always has max_slots slots, regardless of the policy
    unit_memory_bytes: f.Count64 = 0  # memory for all tasks of a unit; 0: unknown until a worker has joined
    backlog: f.Count32 = 0  # queued units to keep when demand falls, because a new unit would have to wait again
    unit_price: f.Price = 0.0  # per hour, in the currency of spend_limit; 0: free or unknown
    unit_minimum_seconds: f.Seconds = 0.0  # minimum charged lifetime of a unit
    usual_startup_seconds: f.Seconds = 0.0  # expected time until a worker connects, excluding queue time; 0: unknown
    usual_dispatch_seconds: f.Seconds = 0.0  # expected delay until a task begins on a free slot
    charges_tasks: bool = False  # unit_price and unit_minimum_seconds apply to tasks; units are free
    minimum_units: f.Count32 = 0  # units that always exist
    warm_units: f.Count32 = 0  # running units to keep when work ends
    buffer_units: f.Count32 = 0  # spare units whose slots are kept free while other slots are busy


@dataclass(frozen=True, slots=True)
class ManagerDetails(UnitFacts):
    """Details of a worker manager."""

    manager_id: str
    kind: str  # type of the manager as in the configuration, such as baremetal_native


@dataclass(slots=True)
class StoreDetails:
    """Details of a host's object store."""

    address: str  # address for other stores; empty: unreachable
    public_key: str  # key for connections with other stores; empty without authentication
    limit_bytes: f.Limit  # memory for objects


Details = ClientDetails | WorkerDetails | ManagerDetails | StoreDetails | None
_DETAILS: dict[Role, type[Any]] = {
    CLIENT: ClientDetails,
    ADMIN: ClientDetails,
    WORKER: WorkerDetails,
    MANAGER: ManagerDetails,
    STORE: StoreDetails,
}
"""Type of the details of each role. Other roles have no details."""


@message(0, to_scheduler=PEERS, to_storage=STORAGE_PEERS, sequenced=False)
class Hello(Message):
    """First message of every connection, from the connecting side. Answered by Welcome or Refused."""

    role: Role
    resume: bool  # whether this session was connected to the server before
    protocol_version: f.Count32
    scaler_version: str
    python_version: str  # such as 3.11.7; empty for peers in other languages
    cloudpickle_version: str
    hostname: str
    pid: f.Count32
    details: Details = None
    owner_token: f.OptionalId = field(default=b"", repr=False)
    """To the object storage: the token from Welcome. Between schedulers: the id of their cluster."""
    compression: str = ""  # supported compression of frames: zstd; empty: none
    epoch: f.Count64 = 0  # the scheduler's epoch: see Welcome


def wrong_details(server: Server, hello: Hello) -> str:
    """Return why the details of a Hello do not match its role, or an empty string."""
    own = _DETAILS.get(hello.role, NoneType)
    is_optional = server is not Server.SCHEDULER or own is ClientDetails
    if isinstance(hello.details, own) or (hello.details is None and is_optional):
        return ""
    return f"a Hello with role {hello.role} needs {own.__name__}, not {type(hello.details).__name__}"


@message(1, from_scheduler=PEERS, from_storage=STORAGE_PEERS, sequenced=False)
class Welcome(Message):
    """Accepts a Hello. Unless the session is resumed, the header contains the session id for all later messages."""

    resumed: bool  # false: the session is unknown, and both sides count from 1
    incarnation: f.Count64  # changes whenever the server starts
    lease_seconds: f.Seconds  # how long the server keeps the session of an unreachable peer
    heartbeat_seconds: f.Seconds  # interval between the peer's heartbeats
    object_storage_address: str = ""  # empty: unknown
    max_pending_tasks: f.Limit = -1  # maximum unfinished tasks of a client
    owner_token: f.OptionalId = field(default=b"", repr=False)
    """Proves to the object storage that the peer id belongs to the client; empty without keys. Between schedulers: see
    Hello."""
    compression: str = ""  # compression from the Hello if both sides support it; otherwise empty
    tables: str = ""  # names of the tables that ReadTable can read, separated by blanks
    epoch: f.Count64 = 0  # increases when another scheduler takes over; peers ignore a scheduler with an earlier epoch


class RefusalReason(StrEnum):
    """Reason why a server rejects a peer."""

    VERSION = "version"
    ROLE = "role"
    DUPLICATE = "duplicate"
    LIMIT = "limit"
    MALFORMED = "malformed"
    EXPIRED = "expired"
    CREDENTIAL = "credential"
    STANDBY = "standby"  # another server is active; peers with several addresses try the next one


@message(2, from_scheduler=tuple(Role), from_storage=tuple(Role), sequenced=False)
class Refused(Message):
    """Ends the connection."""

    reason: RefusalReason
    text: str  # display text; names both sides


@message(
    3, to_scheduler=PEERS, from_scheduler=PEERS, to_storage=STORAGE_PEERS, from_storage=STORAGE_PEERS, sequenced=False
)
class Goodbye(Message):
    """Closes the session, from either side. The receiver drops the session immediately."""

    text: str = ""  # display text: reason for closing


@message(
    4, to_scheduler=PEERS, from_scheduler=PEERS, to_storage=STORAGE_PEERS, from_storage=STORAGE_PEERS, sequenced=False
)
class Acknowledge(Message):
    """An empty message, sent for the acknowledged number in its envelope's header."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Properties shared by the tasks of a group. Tasks with equal specs form a group."""

    function: f.Id  # id of a registered function
    serializer: f.OptionalId = b""  # id of the user's registered serializer; empty: the built-in one
    needs: Needs = ()  # in ascending order by name
    priority: f.Signed64 = 0  # higher priorities run first
    retries: f.Count32 = 3  # maximum retries after exceptions in retry_on; 0: starts at most once
    retry_on: bytes = b""
    """Pickled tuple of exception types, pickled predicate that takes an exception, payload with a list of type names,
    or empty"""
    timeout_seconds: f.Seconds = 0.0  # 0: no limit
    profiling: bool = False
    stream_output: bool = False
    deliver: bool = True  # false: on success, the client needs only the outcome (inner nodes of a graph)
    name: str = ""  # display text: the user's name for it, or the function's qualified name
    parent: f.OptionalId = b""  # task that submitted these tasks, or empty
    expected_seconds: f.Seconds = 0.0  # the user's estimate, used until the function has been measured; 0: none
    call: f.Count64 = 0  # number of the client's call, such as a map; 0: tasks submitted singly
    losses: f.Count32 = 0  # lost attempts after which the task ends; 0: retries + 1. Gangs: 2 if they may restart
    retry_delays: RetryDelays = ()
    """Delays before retries after exceptions; the last one repeats. Empty: the scheduler's default."""
    retry_jitter: f.Share = 0.0  # maximum random reduction of a delay, as a share of the delay
    failed: f.Count32 = 0  # no longer used
    tags: TaskTags = ()
    code: f.OptionalId = b""  # id of the client's registered archive of uploaded modules, or empty
    packages: Packages = ()  # packages that the function imports, with the client's versions
    preemptible: f.Seconds = 0.0  # the task may be preempted, with this time between SIGTERM and SIGKILL; 0: never
    context: str = ""
    """Lines such as `traceparent: ...`, sent by the client's extensions to the processor's extensions"""
    environment: f.OptionalId = b""  # id of the processor's registered requirements; empty: the worker's environment

    @property
    def max_losses(self) -> int:
        """Maximum reruns after a worker or processor is lost."""
        return self.losses - 1 if self.losses and self.retries else self.retries

    @property
    def registered(self) -> tuple[bytes, ...]:
        """Ids to register with the worker first: function, serializer, uploaded code, environment."""
        if not (self.serializer or self.code or self.environment):
            return (self.function,)
        return tuple(filter(None, (self.function, self.serializer, self.code, self.environment)))


@dataclass(slots=True)
class TaskGroup:
    """Tasks with one spec, in columns."""

    spec: Spec
    ids: f.Ids
    payloads: f.Payloads  # the arguments
    references: f.RaggedIds = field(default_factory=list)
    """Tasks and objects that each task needs, in the order of the placeholders in its arguments."""
    labels: f.RaggedPayloads = field(default_factory=list)
    """Key and tag of each task in a durable session, in UTF-8 (empty: none). Outside, the list is empty."""
    calls: f.Profile = field(default_factory=list)  # calls in each task (a chunk of a map); empty: one in each task


@message(5, to_scheduler=CLIENTS, batch=True)
class Submit(Message):
    functions: Functions  # functions and serializers that are new to the scheduler
    groups: Annotated[list[TaskGroup], f.PartList(TaskGroup, rows=32)]
    acknowledged: f.Count64 = 0
    """Number of the last Finished whose futures are resolved. The scheduler may drop results up to this number."""
    again: f.Count64 = 0
    """0: new tasks. Otherwise, how many times the client has resent its unfinished tasks."""


@message(6, to_scheduler=CLIENTS)
class AcknowledgeResults(Message):
    """Carries Submit.acknowledged when the client has nothing to submit."""

    acknowledged: f.Count64  # see Submit


@message(7, to_scheduler=CLIENTS)
class Cancel(IdList):
    """Asks to cancel tasks. Each task ends in a Finished, cancelled or not."""


@message(8, to_scheduler=CLIENTS)
class Clear(Message):
    """Cancels all tasks of the client and releases all its objects and functions."""

    client: f.OptionalPeerId = b""  # the client to clear, if sent by an admin


@message(9, to_scheduler=CLIENTS)
class Pin(IdList):
    """Announces objects that the client has stored for use in many tasks."""


@message(10, to_scheduler=CLIENTS)
class Release(IdList):
    """Releases objects, stored results, and functions."""


@message(11, from_scheduler=CLIENTS, batch=True)
class Finished(Message):
    """Tasks that ended. Every task gets exactly one entry. The profile columns contain 0 for unknown values."""

    number: f.Count64  # counts this client's Finished messages from 1; 0: nothing is retained
    ids: f.Ids
    outcomes: FinalOutcomes
    payloads: f.Payloads  # the value, the exception, or UTF-8 text
    duration_us: f.Durations  # wall time
    cpu_us: f.Profile = field(default_factory=list)  # CPU time in microseconds
    peak_bytes: f.Profile = field(default_factory=list)  # peak memory


@dataclass(slots=True)
class RunGroup:
    """Attempts at tasks with one spec, in columns."""

    spec: Spec
    ids: f.Ids
    attempts: f.Attempts
    payloads: f.Payloads  # the arguments
    inputs: f.RaggedPayloads = field(default_factory=list)  # payloads of each task's references, in order
    devices: f.Devices = field(default_factory=list)  # GPU indexes of each task on the worker


@message(12, from_scheduler=(WORKER,), batch=True)
class Run(Message):
    functions: Functions  # functions and serializers that are new to this worker
    groups: list[RunGroup]


@message(13, from_scheduler=(WORKER,))
class ForgetFunctions(IdList):
    """Names functions and serializers that no task uses, for the worker to drop."""


@message(14, from_scheduler=(WORKER,))
class Recall(Message):
    """Recalls attempts. Each attempt is answered in a Returned (unstarted, or still running) or a Done."""

    ids: f.Ids
    attempts: f.Attempts
    kill: bool  # true: kill started attempts; false: let them run
    preempt: bool = False  # true: stop started attempts if the worker can (see Spec.preemptible)


@message(15, to_scheduler=(WORKER,))
class Returned(Message):
    """Answers Recall, or returns attempts of a draining worker. An exiting worker reports all its attempts this way. A
    final empty message means that the worker will not start later attempts."""

    ids: f.Ids
    attempts: f.Attempts
    started: f.Flags  # false: dropped before starting; true: still running, and a Done follows


@message(16, to_scheduler=(WORKER,))
class Suspended(Message):
    """Started attempts that wait for their own tasks and lend out their slots, or that resume."""

    ids: f.Ids
    attempts: f.Attempts
    suspended: f.Flags  # false: the attempt resumes and occupies a slot again


@message(17, to_scheduler=(WORKER,), batch=True)
class Done(Message):
    """Attempts that ended. For the profile columns, see Finished."""

    ids: f.Ids
    attempts: f.Attempts
    outcomes: Outcomes
    payloads: f.Payloads  # see Finished
    duration_us: f.Durations  # wall time
    cpu_us: f.Profile = field(default_factory=list)  # CPU time in microseconds
    peak_bytes: f.Profile = field(default_factory=list)  # peak memory
    began_us: f.Times = field(default_factory=list)  # start times
    lanes: f.Lanes = field(default_factory=list)  # processor of the worker, from 1; 0: none
    inputs_us: f.Profile = field(default_factory=list)  # part of the wall time spent waiting for stored inputs
    inputs_bytes: f.Profile = field(default_factory=list)  # size of these inputs
    calls: f.Profile = field(default_factory=list)  # ended calls of a map chunk; 0: the task is a single call
    failed_calls: f.Profile = field(default_factory=list)  # number of these calls that failed


@message(18, to_scheduler=(WORKER,), from_scheduler=CLIENTS)
class Started(Message):
    """Tasks that have run for 50 ms. Shorter tasks end without this message."""

    ids: f.Ids
    began_us: f.Times = field(default_factory=list)  # see Done; not sent to clients
    lanes: f.Lanes = field(default_factory=list)  # see Done; not sent to clients
    requeued: bool = False  # to clients: the tasks were stopped, and will run again


@message(19, to_scheduler=(WORKER,), from_scheduler=CLIENTS)
class Output(Message):
    """Output from a task with `stream_output`. Best effort."""

    task: f.Id
    is_stderr: bool
    text: bytes  # the output, unchanged


@message(20, to_scheduler=(WORKER,))
class Printed(Message):
    """Output from tasks without `stream_output`, kept for ReadLog. A task may appear twice."""

    ids: f.Ids
    are_stderr: f.Flags  # 1: stderr, 0: stdout
    truncated_bytes: f.Totals  # bytes omitted before each text
    texts: f.Payloads  # UTF-8


@dataclass(slots=True)
class ProcessorStatus:
    """One processor of a worker, for monitors."""

    pid: f.Count32
    cpu_percent: f.Percent
    rss_bytes: f.Count64
    initialized: bool
    suspended: bool
    running: f.OptionalId = b""  # the running task, or empty
    running_seconds: f.Seconds = 0.0
    lane: f.Count32 = 0  # see Done
    waits_for: str = ""  # display text: what the task waits for, except nested tasks; empty: nothing


@dataclass(slots=True)
class FunctionUse:
    """Memory used by tasks with one function name on a worker since the previous report. Sampled twice a second for the
    whole processor."""

    function: str
    samples: f.Count64  # number of samples taken while its tasks ran, or after only its tasks had run
    mean_bytes: f.Count64  # mean resident memory in the samples
    peak_bytes: f.Count64  # peak resident memory, since the worker's start


@message(21, to_scheduler=(WORKER,), sequenced=False)
class WorkerHeartbeat(Message):
    sent_at: f.Clock  # returned in HeartbeatEcho
    agent_cpu_percent: f.Percent
    agent_rss_bytes: f.Count64
    queued: f.Count32  # tasks queued behind the slots
    latency_seconds: f.Seconds  # round trip of the previous heartbeat
    processors: list[ProcessorStatus] = field(default_factory=list)
    clock_offset_seconds: f.Clock = 0.0  # scheduler's monotonic clock minus the worker's
    clock_error_seconds: f.Seconds = 0.0  # maximum error of the offset; 0: unknown
    unix_seconds: f.Clock = 0.0  # the worker's wall clock at the time of sending
    memory_kills: f.Count32 = 0  # processors terminated for their memory since the start
    processors_replaced: f.Count32 = 0  # processors replaced between tasks since the start
    degraded_reason: str = ""  # why tasks cannot run on the worker, or empty
    dispatch_seconds: f.Seconds = 0.0  # delay before a task begins at the worker's service; 0: not measured
    paid_seconds: f.Seconds = 0.0  # charged time of the worker's tasks at a service, since its start
    paid_tasks: f.Count32 = 0  # tasks that are running at the service
    rss_mean_bytes: f.Count64 = 0  # mean resident memory of all processors, since the worker's start
    rss_peak_bytes: f.Count64 = 0
    functions: list[FunctionUse] = field(default_factory=list)  # functions used since the previous heartbeat
    memory_percent: f.Percent = 0.0  # memory used in its container or machine; 0: unknown
    cpu_granted_percent: f.Percent = 0.0  # CPU time allowed by container quota and hypervisor; 0: unknown
    disk_free_bytes: f.Count64 = 0  # free space on the disk for temporary files
    disk_bytes: f.Count64 = 0  # 0: unknown


@message(22, to_scheduler=PEERS, to_storage=STORAGE_PEERS, sequenced=False)
class Heartbeat(Message):
    """Heartbeat of any other peer."""

    sent_at: f.Clock  # returned in HeartbeatEcho
    latency_seconds: f.Seconds = 0.0  # round trip of the previous heartbeat; 0: unknown


@message(23, from_scheduler=PEERS, from_storage=STORAGE_PEERS, sequenced=False)
class HeartbeatEcho(Message):
    """Answers a heartbeat."""

    sent_at: f.Clock  # copied from the heartbeat
    answered_at: f.Clock = 0.0


@message(24, to_scheduler=(WORKER,), from_scheduler=(WORKER,))
class Drain(Message):
    """From the scheduler: start no new tasks, return unstarted tasks, and exit when idle. From a worker: it must exit
    because of a signal or notice. The scheduler answers with a Drain, its last message."""

    text: str  # reason, display text


@message(25, to_scheduler=(WORKER,), from_scheduler=(WORKER,), batch=True)
class Relay(Message):
    """A message from or to a nested client, sent through its worker. Follows the rules for clients."""

    client: f.PeerId  # the nested client
    body: bytes  # a Body, framed as usual
    task: f.OptionalId = b""  # from a worker: the task in the client's process, or empty


@message(26, to_scheduler=(WORKER,))
class RelayClosed(Message):
    """A nested client has disconnected for good."""

    client: f.PeerId


@message(27, to_scheduler=CLIENTS)
class ShutdownCluster(Inquiry):
    """Asks to shut down the cluster. Answered by ShutdownReply."""

    has_effects = True


@message(28, from_scheduler=CLIENTS)
class ShutdownReply(Reply):
    accepted: bool
    text: str  # display text


@message(29, from_scheduler=(WORKER, MANAGER))
class Shutdown(Message):
    """The cluster is shutting down: stop all running work, and exit."""

    text: str  # reason, display text


class UnitState(StrEnum):
    """State of a unit, as reported by its manager."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"
    WAITING = "waiting"  # waiting in a shared queue, for an unknown time


@dataclass(slots=True)
class UnitStatus:
    """One unit of a worker manager."""

    unit_id: str
    state: UnitState
    slots: f.Count32
    age_seconds: f.Seconds
    reason: str = ""  # display text, or empty
    remaining_seconds: f.Seconds = 0.0  # time until the unit's limit; 0: no known limit


@message(30, to_scheduler=(MANAGER,))
class ManagerStatus(Message):
    """Units of a manager, sent after every poll of its backend. Also the manager's heartbeat."""

    sent_at: f.Clock  # returned in HeartbeatEcho
    units: list[UnitStatus]
    degraded_reason: str = ""  # display text: why the manager cannot start units, or empty


@message(31, from_scheduler=(MANAGER,))
class Desired(Message):
    units: f.Count32  # wanted number of units, excluding draining ones
    drained: UnitIds  # ids of idle units that may be stopped
    reason: str  # display text
    joined: UnitIds = field(default_factory=list)  # ids of units whose worker has connected since the last Desired
    draining: f.Count32 = 0  # number of additional units that get no new tasks but still run some
    left: UnitIds = field(default_factory=list)  # ids of units whose worker has disconnected since the last Desired
    together: f.Count32 = 0  # number of new units for one gang; a batch system can start them as one job


@message(41, to_storage=(Role.SCHEDULER,), from_scheduler=(STORE,))
class ForgetObjects(IdList):
    """Releases objects, so that the storage may drop them."""


@message(42, to_storage=(Role.SCHEDULER,), from_scheduler=(STORE,))
class ForgetOwner(Message):
    """Drops all objects whose ids begin with this peer id."""

    owner: f.PeerId


@message(46, from_scheduler=CLIENTS)
class Notice(Message):
    """Advice for the user of a client, sent once."""

    text: str  # display text


@message(47, to_scheduler=(WORKER,))
class PackagesDiffer(Message):
    """Packages on the worker differ from the client's, or are missing."""

    task: f.Id
    function: str  # display text: the worker's name
    text: str  # display text: the packages, with both versions


@message(48, from_scheduler=(WORKER,))
class Named(Message):
    """Display name of a joined worker, such as cloud-3."""

    name: str


@message(55, from_scheduler=CLIENTS)
class ObjectsMissing(IdList):
    """Names the client's objects that tasks need and the object storage has lost. Answered by ObjectsRestored."""


@message(56, to_scheduler=CLIENTS)
class ObjectsRestored(Message):
    """Answers ObjectsMissing in one or more messages: each object is back in the storage, or lost."""

    ids: f.Ids
    lost: f.Ids
    text: str = ""  # display text: why the objects are lost


@message(57, to_scheduler=CLIENTS)
class Redeliver(IdList):
    """Asks for the results of tasks in a durable session. Each is sent in a Finished once the task has ended. The
    scheduler sends available results in portions, each after the client has acknowledged the previous one."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One durable session."""

    id: f.PeerId  # prefix of its task ids
    name: str
    key: str  # name of its key
    attached: bool  # whether a client is using it
    client: str  # host and pid of its current or last client
    unfinished: f.Count64
    ended: f.Count64
    failed: f.Count64
    size_bytes: f.Count64  # size of the arguments and results in the scheduler
    idle_seconds: f.Seconds  # time since the last use, or since the last task ended


@message(58, to_scheduler=CLIENTS)
class ListSessions(Inquiry):
    """Asks for the durable sessions of the client's key, or of all keys if the client is an admin. Answered by
    SessionsListed."""

    extension = "durability"


@message(59, from_scheduler=CLIENTS, batch=True)
class SessionsListed(Reply):
    sessions: list[SessionRow]


@message(67, to_scheduler=(WORKER,), batch=True)
class WorkerReport(Message):
    """All attempts on a worker: the first message in each of its sessions after the first. Done messages of ended
    attempts follow."""

    ids: f.Ids
    attempts: f.Attempts
    suspended: f.Flags  # see Suspended
    once: f.Flags  # 1: the task has retries=0
    devices: f.Devices = field(default_factory=list)  # see RunGroup


@message(68, from_scheduler=(WORKER,))
class ReleaseResults(Message):
    """Releases results that the worker retains for a restarted scheduler."""

    numbers: f.Counts  # numbers of Done messages; both sides count from 1 in each session


@message(69, to_scheduler=(WORKER,))
class UseStore(Message):
    """Sets the store that the worker's tasks use for results and inputs from now on."""

    store: f.OptionalPeerId = b""  # the store of its host; empty: the object storage


@message(103, to_scheduler=CLIENTS)
class PersistResults(IdList):
    """Names stored results of the client that need a copy in the object storage."""


@dataclass(slots=True)
class CallReport:
    """Progress of a client's call. items: 0 while unknown."""

    number: f.Count64  # see Spec.call
    verb: str  # the method of the client: map, get, ...
    name: str  # name of the function or graph
    items: f.Count64 = 0  # total number of items
    has_chunks: bool = False  # whether the tasks are chunks, and the following columns count items
    sent: f.Count64 = 0  # submitted items
    ended: f.Count64 = 0  # ended items, including failed items
    failed: f.Count64 = 0
    is_over: bool = False  # whether no more tasks will be submitted


@message(85, to_scheduler=CLIENTS)
class CallsReported(Message):
    """Progress of the calls that changed since the last report. Sent once a second."""

    calls: Annotated[list[CallReport], f.PartList(CallReport)]


@message(86, to_scheduler=(WORKER,), sequenced=False)
class TasksProfiled(Message):
    """Profile of a task, or of several short tasks with one function, since the last such message."""

    task: f.Id  # the most recent task
    document: bytes  # UTF-8 JSON: function name, whether it covers only this task, and a profile


@dataclass(slots=True)
class LogLine:
    """A record from a worker's own log."""

    unix_seconds: f.Clock  # time on the worker's wall clock
    level: str  # name of the level, such as WARNING
    logger: str
    text: str
    task: f.OptionalId = b""  # task that the record concerns


@message(87, to_scheduler=(WORKER,), sequenced=False)
class WorkerLogged(Message):
    """Records from the worker's own log since the last such message, at level `WARNING` or above."""

    lines: Annotated[list[LogLine], f.PartList(LogLine)]
    dropped: f.Count32 = 0  # number of records omitted since the last such message, because of the limit


@message(96, to_scheduler=CLIENTS)
class RestartWorkers(Inquiry):
    """Asks the scheduler to stop workers, which managers then replace. Answered by WorkersRestarted."""

    has_effects = True

    workers: PeerIds  # empty: all workers
    graceful: bool  # running tasks finish first


@message(97, from_scheduler=CLIENTS)
class WorkersRestarted(Reply):
    workers: PeerIds  # workers that will exit
    refused: str  # display text: reason of a rejection; empty if accepted


class HostAddress(NamedTuple):
    host: str


HostAddresses = Annotated[list[str], f.list_of_values(HostAddress, list)]


@message(104, to_scheduler=CLIENTS)
class JoinGang(Inquiry):
    """Reports that a member of a gang is ready to start. Answered by GangFormed when all members are ready."""

    extension: ClassVar[str] = "gangs"
    task: f.Id
    host: str  # address of the member's host
    port: f.Count32  # a free port on that host


@message(105, from_scheduler=CLIENTS)
class GangFormed(Reply):
    """All members of a gang are ready."""

    rank: f.Count32
    hosts: HostAddresses  # addresses by rank
    port: f.Count32  # a free port on the host of rank 0


@message(100, from_scheduler=(*CLIENTS, MONITOR))
class Unanswered(Reply):
    """Rejects a question to the scheduler."""

    text: str  # reason


@message(101, to_scheduler=(*CLIENTS, MONITOR))
class ReadTable(Inquiry):
    """Asks for the newest rows of a table listed in Welcome.tables. Answered by TableRead."""

    table: str
    search: str  # text that matching rows contain; empty: all rows
    most: f.Count32


@message(102, from_scheduler=(*CLIENTS, MONITOR), batch=True)
class TableRead(Reply):
    json: bytes  # UTF-8: columns and rows, as in a table of MonitorStatus


_Batch = TypeVar("_Batch", bound=Message)


def split(batch: _Batch, size_bytes: int = SPLIT_BATCH_BYTES, max_rows: int = f.MAX_ROWS) -> list[_Batch]:
    """Split a message with columns into several messages within the limits, in order. Never splits a task. Slightly
    overestimates sizes. Submit, Run, and Finished are never too large, because senders start a new message at
    SPLIT_BATCH_BYTES.
    """
    count, payloads = len(getattr(batch, "ids", ())), getattr(batch, "payloads", ())
    if ROW_BYTES * len(payloads) + sum(map(len, payloads)) <= size_bytes and count <= max_rows:
        return [batch]
    columns = {name: getattr(batch, name) for name in batch.__match_args__}
    sizes = [ROW_BYTES + len(payload) for payload in payloads]
    parts = []
    start = used = 0
    for row, size in enumerate(sizes or [0] * count):
        if row > start and (used + size > size_bytes or row - start == max_rows):
            parts.append(slice(start, row))
            start, used = row, 0
        used += size
    parts.append(slice(start, count))
    make = type(batch)
    return [make(*(each[rows] if isinstance(each, list) else each for each in columns.values())) for rows in parts]

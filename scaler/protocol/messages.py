"""The vocabulary: every message that peers exchange, declared once.

A declaration is a class: its docstring and those of its fields are the comments of the schema, the types of its fields
say what they look like on the wire (see `fields`), and `@message` says who may send it. The codec, the tables of roles
and `scaler.capnp` follow from it. The order of the fields numbers them; a message states its number.

Peers, journals, and black boxes of any release share these numbers. `tests/unit/protocol/test_released_schema.py`
compares the declarations with the last release: within one `PROTOCOL_VERSION` they only grow. A new message takes the
next free number; a new field comes last, and its default equals what a reader makes of zeros. Payloads and specs are
last on the wire, so a struct that has them gets no new field with a pointer. Anything else raises `PROTOCOL_VERSION`.
No number is ever used again. `Hello` and `Refused` only grow in any version, because each side of a refused handshake
reads them to name the other side.

A message about tasks is a batch: its lists are columns, and entry i of every column belongs to task i.

*Payloads* are bytes that begin with a tag (see `PayloadTag`); the platform reads nothing behind the tag. A payload
larger than `INLINE_LIMIT_BYTES` lies in the object storage, and a stored reference takes its place: tag 3, the object's
id (16 bytes), its size (8 bytes, little endian).
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum, StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from scaler.ids import content_id
from scaler.protocol import fields as f

PROTOCOL_VERSION = 4
INLINE_LIMIT_BYTES = 32 * 1024
MAX_HELLO_BYTES = 32 * 1024
"""Largest body of a Hello, and of whatever else comes before the Welcome."""
MAX_CONTROL_BYTES = 1024 * 1024
"""Largest body of any message that is not a batch."""
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Largest body of a batch; senders split their batches near `SPLIT_BATCH_BYTES`."""
SPLIT_BATCH_BYTES = 1024 * 1024
ROW_BYTES = 64
"""Rough size of a task's own columns, which senders add to its payloads when they split batches."""
GROUP_BYTES = 2048
"""The same of a group, and of a function, in a Submit: so none that is split has more than `fields.MAX_ROWS`."""
MAX_REFERENCES = 100_000
"""Most futures and objects among the arguments of one task."""
MAX_TAGS = 16
"""Of one task."""
MAX_LABEL_CHARACTERS = 200
"""Of a tag, of the name of a session, and of the key of a task."""
MAX_REPLICAS = 16
"""Most stores that are to have a copy of one result."""
MAX_ATTACHED_BYTES = 64 * 1024 * 1024
"""Most bytes of the attachments of one message (frames of an object's bytes)."""

STORED_REFERENCE_BYTES = 25
STARTED_AFTER_SECONDS = 0.05
"""A worker reports a task as started when it has run this long; shorter tasks end without such a report."""


class PayloadTag(IntEnum):
    """First byte of a payload."""

    PARTS = 1  # a pickle and its out-of-band buffers, framed
    ARGUMENTS = 2  # one entry per argument, each made by the user's serializer, framed
    STORED = 3  # a stored reference
    EXCEPTION = 4  # texts about an exception, then a pickle of it: see `serialization.exceptions`
    NAMED = 5  # a function by name: see `serialization.by_name`
    JSON = 6  # one document of JSON, in UTF-8
    MSGPACK = 7  # one document of MessagePack
    PICKLE = 0x80  # a pickle as it is: protocol 2 and later begin with this byte


def stored_reference(object_id: bytes, size_bytes: int, *, is_at_host: bool = False) -> bytes:
    """Return the payload that points to a stored object. is_at_host: it was put into the store of a host."""
    return b"\x03" + object_id + size_bytes.to_bytes(7, "little") + (b"\x01" if is_at_host else b"\x00")


def is_stored(payload: bytes) -> bool:
    """Tell whether a payload is a stored reference."""
    return len(payload) == STORED_REFERENCE_BYTES and payload[0] == 3


def stored_bytes(payload: bytes) -> int:
    """Return the size of the object that a stored reference names, as far as its maker knew it; otherwise 0."""
    return int.from_bytes(payload[17:24], "little")


def is_at_host(payload: bytes) -> bool:
    """Tell whether the object that a stored reference names was put into the store of a host."""
    return payload[24] == 1


def is_function_id(identifier: bytes, payload: bytes) -> bool:
    """Tell whether this id may stand for a function or serializer: the digest of its payload, or the object stored."""
    return (payload[1:17] if is_stored(payload) else content_id(payload)) == identifier


class Role(StrEnum):
    """What a connecting side is. A server decides by it which messages it accepts."""

    CLIENT = "client"
    WORKER = "worker"
    MANAGER = "manager"
    MONITOR = "monitor"
    ADMIN = "admin"
    SCHEDULER = "scheduler"  # the scheduler as a peer of the object storage
    STORE = "store"  # the object store of a host with workers


class Server(StrEnum):
    """What a peer connects to."""

    SCHEDULER = "scheduler"
    OBJECT_STORAGE = "object_storage"


class Message:
    """Base of all messages.

    Compares and prints like a dataclass: methods shared by all classes spare every process a quarter of this import.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __hash__: ClassVar[None]  # type: ignore[assignment]  # messages can change

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{self.__class__.__qualname__}({shown})"


class Inquiry(Message):
    """Base of questions to the scheduler. number: its answer has the same."""

    __slots__ = ("number",)
    if TYPE_CHECKING:  # each class declares the field, behind its others
        number: int


class Reply(Message):
    """Base of the scheduler's answers to questions."""

    __slots__ = ("number",)
    if TYPE_CHECKING:  # each class declares the field, behind its others
        number: int


MESSAGES: dict[int, type[Message]] = {}
"""All messages by their numbers on the wire, in the order of their declaration."""
NUMBERS: dict[type[Message], int] = {}
"""The number of each message on the wire."""
BATCHES: set[type[Message]] = set()
"""Messages whose body may have MAX_BATCH_BYTES."""
CARRIERS: set[type[Message]] = set()
"""Messages that may have attachments. None of them is a batch."""
UNSEQUENCED: set[type[Message]] = set()
"""Messages that are sent once, and not repeated after a break, because losing one does no harm."""
MAY_SEND = {server: {role: set[type[Message]]() for role in Role} for server in Server}
"""What a peer of each role may send to each server; nothing at all: that role does not connect to it.

The messages of a nested client, inside a Relay, have the rules of a client.
"""
MAY_ANSWER = {server: {role: set[type[Message]]() for role in Role} for server in Server}
"""What each server may send to a peer of each role."""

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
    """Declare a class as a message: make it a dataclass, and enter it in the tables above.

    number: of the message on the wire; never changed, and never used again.
    to_scheduler, to_storage: roles of peers that may send it to this server.
    from_scheduler, from_storage: roles of peers that this server may send it to.
    """

    def declare(of: type[_Declared]) -> type[_Declared]:
        made = dataclass(slots=True, eq=False, repr=False)(of)
        if number in MESSAGES:
            raise ValueError(
                f"{of.__name__} has the number {number} of {MESSAGES[number].__name__}: take the next free one"
            )
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
PEERS = (CLIENT, WORKER, MANAGER, MONITOR, ADMIN, STORE)
"""Peers of the scheduler."""
CLIENTS = (CLIENT, ADMIN)
"""An admin is a client that sees and may change what all clients own."""
OBJECT_PEERS = (CLIENT, WORKER, Role.SCHEDULER, STORE)
"""Peers that use objects of the storage."""
STORAGE_PEERS = (*OBJECT_PEERS, MONITOR, ADMIN)


class Outcome(IntEnum):
    """How a task, or one attempt of it, ended. The payload of all but SUCCESS and the two exceptions is UTF-8 text."""

    SUCCESS = 0
    EXCEPTION = 1  # the task's own exception; the payload holds it and its traceback
    EXCEPTION_TO_RETRY = 2  # the same, of a type in `retry_on`. From workers only
    CANCELLED = 3
    TIMED_OUT = 4
    REJECTED = 5
    WORKER_LOST = 6
    PROCESSOR_DIED = 7
    POISON = 8
    OBJECT_LOST = 9
    NOT_STARTED = 10  # the attempt never began and may move for free. From workers only
    MEMORY_LIMIT = 11  # it took more memory than it may
    OUT_OF_MEMORY = 12  # its worker or machine had too little memory for all that ran there. From workers only
    INPUT_MISSING = 13  # as NOT_STARTED, because the object whose id begins the payload is not in the storage


_FROM_WORKERS = {Outcome.EXCEPTION_TO_RETRY, Outcome.NOT_STARTED, Outcome.OUT_OF_MEMORY, Outcome.INPUT_MISSING}
_FINAL = bytes(set(Outcome) - _FROM_WORKERS)

Outcomes = Annotated[list[int], f.Numbers("List(UInt8)", "of Outcome", bytes(Outcome))]
_FINAL_OUTCOMES = f.Numbers("List(UInt8)", "of Outcome, but none that is from workers only", _FINAL)
FinalOutcomes = Annotated[list[int], _FINAL_OUTCOMES]


class Capability(NamedTuple):
    """What a worker offers, or what a task needs at least. Names in one list differ."""

    name: str
    amount: f.Number  # 0: a label, without a quantity; else finite and above 0


class UnitId(NamedTuple):
    """Names a unit of a worker manager."""

    id: str


class PeerName(NamedTuple):
    """Names a peer."""

    id: f.PeerId


class AnnouncedFunction(NamedTuple):
    """A registered function or serializer, announced to a peer that does not have it."""

    id: f.Id  # content id when the payload is the pickle itself, object id when it is stored
    payload: bytes


Needs = Annotated[tuple[tuple[str, float], ...], f.PartList(Capability, f.needs_of, f.needs_of)]
"""In ascending order of the names."""
Offers = Annotated[dict[str, float | None], f.PartList(Capability, f.pairs_of, f.offers_of)]
"""None: a label."""
UnitIds = Annotated[
    list[str], f.PartList(UnitId, lambda texts: [(text,) for text in texts], lambda parts: [text for (text,) in parts])
]
PeerIds = Annotated[
    list[bytes],
    f.PartList(PeerName, lambda peers: [(peer,) for peer in peers], lambda parts: [peer for (peer,) in parts]),
]
Functions = Annotated[list[tuple[bytes, bytes]], f.PartList(AnnouncedFunction, rows=16)]


class RetryDelay(NamedTuple):
    """How long a task waits before it runs again."""

    seconds: f.Seconds


class TaskTag(NamedTuple):
    """Names a task beside others."""

    text: f.Display


class ImportedPackage(NamedTuple):
    """A package that a function imports, as its client has it."""

    module: f.Display
    version: f.Display


Packages = Annotated[
    tuple[tuple[str, str], ...],
    f.PartList(ImportedPackage, lambda packages: [*packages], lambda parts: tuple(map(tuple, parts))),
]
RetryDelays = Annotated[
    tuple[float, ...],
    f.PartList(
        RetryDelay, lambda delays: [(each,) for each in delays], lambda parts: tuple(seconds for (seconds,) in parts)
    ),
]
TaskTags = Annotated[
    tuple[str, ...],
    f.PartList(TaskTag, lambda tags: [(each,) for each in tags], lambda parts: tuple(text for (text,) in parts)),
]


@dataclass(slots=True)
class ClientDetails:
    """What a client says about itself."""

    name: f.Display = ""  # display text
    session: f.Display = ""  # name of its durable session, or empty


@dataclass(slots=True)
class WorkerDetails:
    """What a worker says about itself."""

    manager_id: str  # manager that started it, or empty
    unit_id: str  # unit of that manager that it runs in, or empty
    slots: f.Count32  # tasks that it runs at once
    queue_size: f.Count32  # the most tasks that may wait behind each slot
    capabilities: Offers
    memory_bytes: f.Count64 = 0  # that it has for its tasks; 0: not known
    memory_pool: f.Display = ""  # workers of one host that say the same share it; empty: it is this worker's alone
    death_timeout_seconds: f.Seconds = 0.0  # without work and without its manager for so long, it ends; 0: it stays


@dataclass(slots=True)
class ManagerDetails:
    """What a worker manager says about itself."""

    manager_id: str
    kind: str  # type of the manager as in the configuration, such as baremetal_native
    max_concurrency: f.Limit  # the most slots that it may provide
    unit_slots: f.Count32  # slots of one unit
    capabilities: Offers
    fixed: bool = False  # it starts all of max_concurrency by itself, whatever Desired says
    unit_memory_bytes: f.Count64 = 0  # memory of one unit; 0: not known before its first worker has joined
    backlog_units: f.Count32 = 0  # units that stay in a queue although fewer are wanted
    unit_price: f.Price = 0.0  # of one unit and hour; 0: nothing, or not known
    unit_minimum_seconds: f.Seconds = 0.0  # a unit that lives for less is paid for so long
    usual_startup_seconds: f.Seconds = 0.0  # of a unit, without a queue, before it was measured; 0: not known
    usual_dispatch_seconds: f.Seconds = 0.0  # from giving a free slot a task until it begins, before it was measured
    charges_tasks: bool = False  # unit_price and unit_minimum_seconds are those of a task, and units cost nothing


@dataclass(slots=True)
class StoreDetails:
    """What the object store of a host says about itself."""

    address: f.Display  # where other stores reach it; empty: they cannot
    public_key: f.Display  # that it listens and connects to other stores with; empty without authentication
    limit_bytes: f.Limit  # memory for objects


Details = ClientDetails | WorkerDetails | ManagerDetails | StoreDetails | None
_DETAILS: dict[Role, type[Any]] = {
    CLIENT: ClientDetails,
    ADMIN: ClientDetails,
    WORKER: WorkerDetails,
    MANAGER: ManagerDetails,
    STORE: StoreDetails,
}
"""What peers of a role say about themselves; others say nothing."""


@message(0, to_scheduler=PEERS, to_storage=STORAGE_PEERS, sequenced=False)
class Hello(Message):
    """First message of every connection, from the connecting side. The answer is Welcome or Refused."""

    role: Role
    resume: bool  # this session has spoken to the server before
    protocol_version: f.Count32
    scaler_version: f.Display
    python_version: f.Display  # such as 3.11.7; a peer in another language leaves it empty
    cloudpickle_version: f.Display
    hostname: f.Display
    pid: f.Count32
    details: Details = None
    owner_token: f.OptionalId = field(default=b"", repr=False)  # of Welcome, to the object storage
    compression: f.Display = ""  # how frames to and from it may be compressed: zstd; empty: not at all


def wrong_details(server: Server, hello: Hello) -> str:
    """Return why the details of a Hello do not belong to its role; empty when they do."""
    own = _DETAILS.get(hello.role, NoneType)
    is_optional = server is not Server.SCHEDULER or own is ClientDetails
    if isinstance(hello.details, own) or (hello.details is None and is_optional):
        return ""
    return f"the role {hello.role} greets with {own.__name__}, not with {type(hello.details).__name__}"


@message(1, from_scheduler=PEERS, from_storage=STORAGE_PEERS, sequenced=False)
class Welcome(Message):
    """Accepts a Hello. Its header has the id of the session from now on, unless the session is resumed."""

    resumed: bool  # false: the server does not know the session, and both sides count from 1 again
    incarnation: f.Count64  # differs after every start of the server
    lease_seconds: f.Seconds  # how long the server keeps the session of a peer that is out of contact
    heartbeat_seconds: f.Seconds  # interval of the peer's heartbeats
    object_storage_address: str = ""  # empty: not known
    max_pending_tasks: f.Limit = -1  # unfinished tasks that a client may have
    owner_token: f.OptionalId = field(default=b"", repr=False)
    """Shows the object storage that the client's peer id is its own; only where keys authenticate peers."""
    compression: f.Display = ""  # that of the Hello, when both sides may compress so; else empty


class RefusalReason(StrEnum):
    """Why a server refuses a peer."""

    VERSION = "version"
    ROLE = "role"
    DUPLICATE = "duplicate"
    LIMIT = "limit"
    MALFORMED = "malformed"
    EXPIRED = "expired"
    CREDENTIAL = "credential"


@message(2, from_scheduler=tuple(Role), from_storage=tuple(Role), sequenced=False)
class Refused(Message):
    """Ends the connection."""

    reason: RefusalReason
    text: f.Display  # display text; names both sides


@message(
    3, to_scheduler=PEERS, from_scheduler=PEERS, to_storage=STORAGE_PEERS, from_storage=STORAGE_PEERS, sequenced=False
)
class Goodbye(Message):
    """Closes the session from either side. The receiver forgets the session at once."""

    text: f.Display = ""  # close reason, display text


@message(
    4, to_scheduler=PEERS, from_scheduler=PEERS, to_storage=STORAGE_PEERS, from_storage=STORAGE_PEERS, sequenced=False
)
class Acknowledge(Message):
    """Carries the envelope's header only: how far its sender has received."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the tasks of a group have in common. Equal specs are one group."""

    function: f.Id  # id of a registered function
    serializer: f.OptionalId = b""  # id of the user's registered serializer; empty: the built-in one
    needs: Needs = ()  # in ascending order of the names
    priority: f.Signed64 = 0  # higher runs first
    retries: f.Count32 = 3  # after exceptions of retry_on; 0: it starts at most once, whatever happens
    retry_on: bytes = b""
    """Pickled tuple of exception types, pickled predicate of an exception, payload with a list of names of types, or
    empty"""
    timeout_seconds: f.Seconds = 0.0  # 0: no limit of its own
    profiling: bool = False
    stream_output: bool = False
    deliver: bool = True  # false: the client wants the outcome of a success, not its value (inner nodes of a graph)
    name: f.Display = ""  # display text: the function's qualified name, unless the user gave one
    parent: f.OptionalId = b""  # task that submitted these, or empty
    replicas: f.Count32 = 1  # stores that are to have a copy of each large result; 0 says the same as 1
    expected_seconds: f.Seconds = 0.0  # the user's hint until a task of the function was measured; 0: none
    call: f.Count64 = 0  # number of the client's call that these are of, such as a map; 0: single submits
    losses: f.Count32 = 0  # losses of its worker or process after which it ends; 0: one more than retries
    retry_delays: RetryDelays = ()
    """Before each retry after an exception; the last one counts for all that follow. Empty: the scheduler's own."""
    retry_jitter: f.Share = 0.0  # the share of such a delay that chance takes off, at most
    failed: f.Count32 = 0  # how often their calls have raised an exception of retry_on before, as items of a chunk
    tags: TaskTags = ()
    code: f.OptionalId = b""  # id of the registered archive of the modules that the client has uploaded, or empty
    packages: Packages = ()  # what the function imports, as the client has it

    @property
    def max_losses(self) -> int:
        """How often a task may run again after its worker or process was lost."""
        return self.losses - 1 if self.losses and self.retries else self.retries

    @property
    def registered(self) -> tuple[bytes, ...]:
        """The ids of what must be registered and known to the worker: the function, and what else there is."""
        if not (self.serializer or self.code):
            return (self.function,)
        return tuple(filter(None, (self.function, self.serializer, self.code)))


@dataclass(slots=True)
class TaskGroup:
    """Tasks of one spec, in columns."""

    spec: Spec
    ids: f.Ids
    payloads: f.Payloads  # the arguments
    references: f.RaggedIds = field(default_factory=list)
    """Tasks and objects that each task needs, in the order of the arguments' placeholders."""
    labels: f.RaggedPayloads = field(default_factory=list)
    """Of tasks of a durable session: the user's key and tag of each in UTF-8 (empty: it has none), or nothing."""
    calls: f.Profile = field(default_factory=list)  # calls in each task, which is a chunk of a map; empty: one in each


@message(5, to_scheduler=CLIENTS, batch=True)
class Submit(Message):
    """New tasks."""

    functions: Functions  # functions and serializers new to the scheduler
    groups: Annotated[list[TaskGroup], f.PartList(TaskGroup, rows=32)]
    acknowledged: f.Count64 = 0
    """Number of the last Finished whose futures the client has resolved; the scheduler may drop earlier results."""
    again: f.Count64 = 0
    """0: new tasks. Otherwise the client has sent these in an earlier session, and its unfinished tasks this often."""


@message(6, to_scheduler=CLIENTS)
class AcknowledgeResults(Message):
    """What Submit.acknowledged says, from a client that has nothing to submit."""

    acknowledged: f.Count64  # as in Submit


@message(7, to_scheduler=CLIENTS)
class Cancel(Message):
    """Asks to cancel tasks. Each of them ends in a Finished, cancelled or not."""

    ids: f.Ids


@message(8, to_scheduler=CLIENTS)
class Clear(Message):
    """Cancels all tasks of the client and releases all its objects and functions."""

    client: f.OptionalPeerId = b""  # of an admin: the client that it means


@message(9, to_scheduler=CLIENTS)
class Pin(Message):
    """Names objects that the client has put into the storage to use them in many tasks."""

    ids: f.Ids


@message(10, to_scheduler=CLIENTS)
class Release(Message):
    """Names objects, stored results and functions that the client no longer uses."""

    ids: f.Ids


@message(11, from_scheduler=CLIENTS, batch=True)
class Finished(Message):
    """Tasks that ended: exactly one entry per task, ever. The profile columns hold 0 where a value is unknown."""

    number: f.Count64  # counts the Finished of this client from 1; 0: nothing of it is retained
    ids: f.Ids
    outcomes: FinalOutcomes
    payloads: f.Payloads  # the value, the exception, or text in UTF-8
    duration_us: f.Durations  # wall time
    cpu_us: f.Profile = field(default_factory=list)  # CPU time in microseconds
    peak_bytes: f.Profile = field(default_factory=list)  # peak memory


@dataclass(slots=True)
class RunGroup:
    """Attempts at tasks of one spec, in columns."""

    spec: Spec
    ids: f.Ids
    attempts: f.Attempts
    payloads: f.Payloads  # the arguments
    inputs: f.RaggedPayloads = field(default_factory=list)  # the payloads of each task's references, in their order
    devices: f.Devices = field(default_factory=list)  # indexes of each task's gpus among those of the worker


@dataclass(slots=True)
class Followers:
    """Attempts at tasks of one spec, in columns. Each runs as soon as another task has succeeded here, with its value.

    When that task ends in another way, or is given back, its follower is dropped without a word. One that comes when
    the task has ended is given back.
    """

    spec: Spec
    ids: f.Ids
    after: f.Ids  # the task before each
    attempts: f.Attempts
    payloads: f.Payloads  # the arguments
    inputs: f.RaggedPayloads  # the payloads of each task's references; an empty one: the value of the task before


@message(12, from_scheduler=(WORKER,), batch=True)
class Run(Message):
    """Tasks to run."""

    functions: Functions  # functions and serializers new to this worker
    groups: list[RunGroup]
    followers: list[Followers] = field(default_factory=list)


@message(13, from_scheduler=(WORKER,))
class ForgetFunctions(Message):
    """Names functions and serializers that no task uses any more."""

    ids: f.Ids


@message(14, from_scheduler=(WORKER,))
class Recall(Message):
    """Takes attempts back. Each id is answered in a Returned (not started, or it runs on) or in a Done."""

    ids: f.Ids
    attempts: f.Attempts
    kill: bool  # true: kill the started ones. False: they run on.


@message(15, to_scheduler=(WORKER,))
class Returned(Message):
    """Answers Recall, or gives attempts back unasked because the worker drains.

    A worker that ends reports all of its attempts in this way. An empty message follows: whatever else the scheduler
    has sent never starts there.
    """

    ids: f.Ids
    attempts: f.Attempts
    started: f.Flags  # false: never started, and forgotten. True: it runs on and will be in a Done.


@message(16, to_scheduler=(WORKER,))
class Suspended(Message):
    """Started attempts that now wait for tasks of their own and take no slot, or that go on."""

    ids: f.Ids
    attempts: f.Attempts
    suspended: f.Flags  # false: it goes on, and takes a slot again


@message(17, to_scheduler=(WORKER,), batch=True)
class Done(Message):
    """Attempts that ended. The profile columns are as in Finished."""

    ids: f.Ids
    attempts: f.Attempts
    outcomes: Outcomes
    payloads: f.Payloads  # as in Finished
    duration_us: f.Durations  # wall time
    cpu_us: f.Profile = field(default_factory=list)  # CPU time in microseconds
    peak_bytes: f.Profile = field(default_factory=list)  # peak memory
    began_us: f.Times = field(default_factory=list)  # when they began
    lanes: f.Lanes = field(default_factory=list)  # which processor of the worker ran them, from 1; 0: none did
    inputs_us: f.Profile = field(default_factory=list)  # of the wall time: until stored inputs had come
    inputs_bytes: f.Profile = field(default_factory=list)  # of these
    calls: f.Profile = field(default_factory=list)  # calls that ended in a chunk of a map; 0: the task is a single call
    failed_calls: f.Profile = field(default_factory=list)  # calls among these that failed


@message(18, to_scheduler=(WORKER,), from_scheduler=CLIENTS)
class Started(Message):
    """Tasks that have run for 50 ms. Shorter tasks end without this message."""

    ids: f.Ids
    began_us: f.Times = field(default_factory=list)  # as in Done; clients do not get it
    lanes: f.Lanes = field(default_factory=list)  # as in Done; clients do not get it


@message(19, to_scheduler=(WORKER,), from_scheduler=CLIENTS)
class Output(Message):
    """What a task with `stream_output` wrote. Best effort."""

    task: f.Id
    is_stderr: bool
    text: bytes  # bytes as written


@message(20, to_scheduler=(WORKER,))
class Printed(Message):
    """What tasks without `stream_output` printed; the scheduler keeps it for ReadLog. A task may be there twice."""

    ids: f.Ids
    are_stderr: f.Flags  # 1: stderr, 0: stdout
    truncated_bytes: f.Totals  # bytes that were left out before each text
    texts: f.Payloads  # UTF-8


@dataclass(slots=True)
class ProcessorStatus:
    """One processor of a worker, for monitors."""

    pid: f.Count32
    cpu_percent: f.Percent
    rss_bytes: f.Count64
    initialized: bool
    suspended: bool
    running: f.OptionalId = b""  # the task that it runs, or empty
    running_seconds: f.Seconds = 0.0
    lane: f.Count32 = 0  # as in Done
    waits_for: f.Display = ""  # "waits for ...": besides tasks of its own; empty: nothing


@dataclass(slots=True)
class FunctionUse:
    """What tasks of one function have used on a worker since its start; those of one name are one function.

    Memory is that of the whole processor, in samples twice a second.
    """

    function: str
    samples: f.Count64  # while a task of it ran, or after only such tasks had run
    mean_bytes: f.Count64  # of resident memory in these
    peak_bytes: f.Count64  # of resident memory
    growth_bytes: f.Count64 = 0  # that each task leaves behind in the processors that grow
    judged: f.Count32 = 0  # processors of which it is known whether tasks leave something behind
    growing: f.Count32 = 0  # those of them where they do


@message(21, to_scheduler=(WORKER,), sequenced=False)
class WorkerHeartbeat(Message):
    """Sign of life of a worker, every heartbeat interval."""

    sent_at: f.Clock  # comes back in HeartbeatEcho
    agent_cpu_percent: f.Percent
    agent_rss_bytes: f.Count64
    queued: f.Count32  # tasks that wait behind the slots
    latency_seconds: f.Seconds  # round trip of the heartbeat before this one
    processors: list[ProcessorStatus] = field(default_factory=list)
    clock_offset_seconds: f.Clock = 0.0  # added to the worker's monotonic clock, this is the scheduler's
    clock_error_seconds: f.Seconds = 0.0  # of the offset, at most; 0: it is not known yet
    unix_seconds: f.Clock = 0.0  # the worker's wall clock when it sent this
    memory_kills: f.Count32 = 0  # processors that it ended for their memory, since its start
    processors_replaced: f.Count32 = 0  # processors that it replaced between tasks, since its start
    degraded_reason: f.Display = ""  # what keeps tasks from running there; empty: nothing
    dispatch_seconds: f.Seconds = 0.0  # from giving a free slot a task until it begins elsewhere; 0: not measured
    paid_seconds: f.Seconds = 0.0  # that its tasks elsewhere are paid for, all together since its start
    paid_tasks: f.Count32 = 0  # of them that run elsewhere now
    rss_mean_bytes: f.Count64 = 0  # resident memory of its processors together, since its start
    rss_peak_bytes: f.Count64 = 0
    functions: list[FunctionUse] = field(default_factory=list)  # those that were used since the one before
    memory_percent: f.Percent = 0.0  # used of its container or machine; 0: not known
    cpu_granted_percent: f.Percent = 0.0  # of the time, by the quota of its container and its hypervisor; 0: not known
    disk_free_bytes: f.Count64 = 0  # on the disk of its temporary files
    disk_bytes: f.Count64 = 0  # 0: not known


@message(22, to_scheduler=PEERS, to_storage=STORAGE_PEERS, sequenced=False)
class Heartbeat(Message):
    """Sign of life of any other peer."""

    sent_at: f.Clock  # comes back in HeartbeatEcho
    latency_seconds: f.Seconds = 0.0  # round trip of the heartbeat before this one; 0: not known yet


@message(23, from_scheduler=PEERS, from_storage=STORAGE_PEERS, sequenced=False)
class HeartbeatEcho(Message):
    """Answers a heartbeat."""

    sent_at: f.Clock  # of the heartbeat
    answered_at: f.Clock = 0.0


@message(24, to_scheduler=(WORKER,), from_scheduler=(WORKER,))
class Drain(Message):
    """From the scheduler: start nothing new, return what has not started, exit when idle.

    From a worker: something else asked it to drain. The scheduler answers with the same, and has sent nothing after
    that.
    """

    text: f.Display  # reason, display text


@message(25, to_scheduler=(WORKER,), from_scheduler=(WORKER,), batch=True)
class Relay(Message):
    """A message of or to a client that lives inside a task, through its worker. Its rules are those of a client."""

    client: f.PeerId  # the nested client
    body: bytes  # A Body, framed as any other
    task: f.OptionalId = b""  # from the worker: the task that the client's process runs, or empty


@message(26, to_scheduler=(WORKER,))
class RelayClosed(Message):
    """A nested client is gone."""

    client: f.PeerId


@message(27, to_scheduler=CLIENTS)
class ShutdownCluster(Inquiry):
    """Asks to end the cluster. The answer is a ShutdownReply."""

    number: f.Count64 = 0


@message(28, from_scheduler=CLIENTS)
class ShutdownReply(Reply):
    """Answers ShutdownCluster."""

    accepted: bool
    text: f.Display  # display text
    number: f.Count64 = 0


@message(29, from_scheduler=(WORKER, MANAGER))
class Shutdown(Message):
    """The cluster ends: stop all that runs, and exit."""

    text: f.Display  # reason, display text


class UnitState(StrEnum):
    """State of a unit as its manager sees it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"
    WAITING = "waiting"  # in a shared queue, for an unknown time


@dataclass(slots=True)
class UnitStatus:
    """One unit of a worker manager."""

    unit_id: str
    state: UnitState
    slots: f.Count32
    age_seconds: f.Seconds
    reason: f.Display = ""  # display text, or empty
    remaining_seconds: f.Seconds = 0.0  # until it is ended, whatever it does; 0: no such time is known


@message(30, to_scheduler=(MANAGER,))
class ManagerStatus(Message):
    """The units of a manager, after every poll of its backend; its heartbeat as well."""

    sent_at: f.Clock  # comes back in HeartbeatEcho
    units: list[UnitStatus]
    degraded_reason: f.Display = ""  # why the manager cannot start units now, display text; empty when it can


@message(31, from_scheduler=(MANAGER,))
class Desired(Message):
    """The units that should exist."""

    units: f.Count32  # how many, without those that drain
    drained: UnitIds  # ids of units that have no work and may be stopped
    reason: f.Display  # display text
    joined: UnitIds = field(default_factory=list)  # ids of units whose worker has connected since the last Desired
    draining: f.Count32 = 0  # units that get no more work but still have some: they exist beside the others
    left: UnitIds = field(default_factory=list)  # ids of units whose worker has lost its connection since, or has left


@message(32, from_scheduler=(MONITOR,))
class MonitorStatus(Message):
    """The state of the cluster (see docs/design.md)."""

    json: bytes  # UTF-8


@message(33, from_scheduler=(MONITOR,))
class MonitorEvents(Message):
    """What has happened since the last MonitorEvents (see docs/design.md)."""

    json: bytes  # UTF-8


@message(34, to_scheduler=(*CLIENTS, MONITOR))
class Explain(Inquiry):
    """Asks why a task waits, or how it ended. The answer is Explained."""

    task: f.Id
    number: f.Count64 = 0


@message(35, from_scheduler=(*CLIENTS, MONITOR))
class Explained(Reply):
    """Answers Explain."""

    task: f.Id
    text: f.Display  # display text
    number: f.Count64 = 0


@message(36, to_scheduler=(*CLIENTS, MONITOR))
class ReadLog(Inquiry):
    """Asks for what a task printed. The answer is TaskLog."""

    task: f.Id
    number: f.Count64 = 0


@message(37, from_scheduler=(*CLIENTS, MONITOR))
class TaskLog(Reply):
    """What a task printed."""

    task: f.Id
    stdout: bytes
    stderr: bytes
    truncated_bytes: f.Count64  # bytes that were left out because there were too many
    traceback: bytes = b""  # UTF-8; of a task that has failed
    number: f.Count64 = 0


@message(38, to_storage=OBJECT_PEERS, attachments=True)
class PutObject(Message):
    """Attachments: pieces of the object's bytes from offset on. The object is complete when all its bytes have come.

    Without attachments, and not shared, at offset 0: asks only whether there is room.
    """

    request: f.Count64  # chosen by the asking side; comes back in the reply
    id: f.Id
    parts: f.PartSizes  # sizes of the object's parts (a pickle, then its buffers); their sum is the object's size
    offset: f.Count64
    shared: bool = False  # no attachments: the descriptor of the memory that holds the object was sent beside


@message(39, to_storage=OBJECT_PEERS)
class GetObject(Message):
    """Asks for an object. Answered when the object is complete, or with `missing` after the deadline."""

    request: f.Count64
    id: f.Id
    deadline_seconds: f.Seconds  # 0: at once
    shared: bool = False  # the asking side can take the descriptor of shared memory
    offset: f.Count64 = 0  # where the bytes begin that it wants
    size: f.Count64 = 0  # how many they are; 0: all from offset on


@message(40, to_storage=OBJECT_PEERS, from_scheduler=(STORE,))
class LinkObject(Message):
    """Makes `id` another name of the bytes of `target`. Of the store of a host, the scheduler wants no answer."""

    request: f.Count64
    id: f.Id
    target: f.Id


@message(41, to_storage=OBJECT_PEERS, from_scheduler=(STORE,))
class ForgetObjects(Message):
    """Names objects that the storage may drop."""

    ids: f.Ids


@message(42, to_storage=(Role.SCHEDULER,), from_scheduler=(STORE,))
class ForgetOwner(Message):
    """Drops all objects whose ids begin with this peer id."""

    owner: f.PeerId


@message(43, to_storage=STORAGE_PEERS)
class StatStorage(Message):
    """Asks for a StorageStatus."""

    request: f.Count64


class StorageResult(StrEnum):
    """What became of a request to the object storage."""

    OK = "ok"
    MISSING = "missing"
    FULL = "full"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    UNSHARED = "unshared"  # the descriptor of a shared PutObject did not arrive: put the object again with attachments
    UNWRITABLE = "unwritable"  # the disk of a durable storage takes nothing now: put the object again later


@message(44, from_storage=OBJECT_PEERS, attachments=True)
class StorageReply(Message):
    """Answers PutObject and LinkObject, and GetObject with attachments: the next pieces of the object.

    A large object comes in several replies, in order.
    """

    request: f.Count64
    result: StorageResult
    text: f.Display = ""  # display text, or empty
    parts: f.PartSizes = field(default_factory=list)  # sizes of the object's parts
    offset: f.Count64 = 0  # where the attachments of this reply begin
    shared: bool = False  # no attachments: the descriptor of the object's memory was sent beside


@message(45, from_storage=STORAGE_PEERS)
class StorageStatus(Message):
    """Answers StatStorage."""

    request: f.Count64
    objects: f.Count64
    bytes: f.Count64
    limit_bytes: f.Count64
    waiting_gets: f.Count64
    spilled_bytes: f.Count64 = 0  # of objects in spill_directory
    state_bytes: f.Count64 = 0  # what state_directory takes on the disk
    disk_failure: f.Display = ""  # why objects cannot be kept in state_directory, and are refused; or empty
    hits: f.Count64 = 0  # as in StoreReport
    misses: f.Count64 = 0


@message(46, from_scheduler=CLIENTS)
class Notice(Message):
    """Tells a client's user what to change, once."""

    text: f.Display  # display text


@message(47, to_scheduler=(WORKER,))
class PackagesDiffer(Message):
    """A worker has other versions of packages than the client of a task has, or lacks them."""

    task: f.Id
    function: f.Display  # display text: its name
    text: f.Display  # display text: the packages, with both versions


@message(48, from_scheduler=(WORKER,))
class Named(Message):
    """The display name of a worker that has joined, such as cloud-3."""

    name: str


@message(49, to_scheduler=CLIENTS)
class ReadFailure(Inquiry):
    """Asks what a failed task ran, to run it again. The answer is FailedTask."""

    task: f.Id
    number: f.Count64 = 0


@message(50, from_scheduler=CLIENTS, batch=True)
class FailedTask(Reply):
    """What a failed task ran."""

    task: f.Id
    functions: Functions  # its function and serializer
    runs: list[RunGroup]  # one, with this task alone; none where it cannot run again
    text: f.Display = ""  # why it cannot, display text
    number: f.Count64 = 0


@message(51, to_scheduler=(*CLIENTS, MONITOR))
class FindTasks(Inquiry):
    """Asks for live tasks, and the last that ended. The answer is TasksFound."""

    search: str  # the beginning of a task's id in hex, or a part of the name of its function, client or worker
    number: f.Count64 = 0


@message(52, from_scheduler=(*CLIENTS, MONITOR))
class TasksFound(Reply):
    """Answers FindTasks."""

    search: str
    json: bytes  # UTF-8: a table of tasks as in MonitorEvents
    number: f.Count64 = 0


@message(53, to_scheduler=(*CLIENTS, MONITOR))
class FindObjects(Inquiry):
    """Asks which stores have objects: those that are named, or the largest ones. The answer is ObjectsFound."""

    named: f.Ids  # a task stands for its result; empty: the largest ones
    most: f.Count32
    number: f.Count64 = 0


@message(54, from_scheduler=(*CLIENTS, MONITOR))
class ObjectsFound(Reply):
    """Answers FindObjects."""

    named: f.Ids
    most: f.Count32
    json: bytes  # UTF-8: a list of the values of `data_rows.ObjectRow`, with a list of all holders
    number: f.Count64 = 0


@message(55, from_scheduler=CLIENTS)
class ObjectsMissing(Message):
    """Names objects of the client that tasks need and the object storage has lost. The answer is ObjectsRestored."""

    ids: f.Ids


@message(56, to_scheduler=CLIENTS)
class ObjectsRestored(Message):
    """Answers ObjectsMissing, in one message or several: each of the objects is in the storage again, or lost."""

    ids: f.Ids
    lost: f.Ids
    text: f.Display = ""  # why they are lost, display text


@message(57, to_scheduler=CLIENTS)
class Redeliver(Message):
    """Asks for the results of tasks of a durable session: each comes in a Finished once it has ended.

    The scheduler sends what it has in portions: the next one when the client has acknowledged the last.
    """

    ids: f.Ids


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One durable session."""

    id: f.PeerId  # with which the ids of its tasks begin
    name: f.Display
    key: f.Display  # name of the key whose it is
    attached: bool  # a client uses it now
    client: f.Display  # host and pid of the client that uses it, or used it last
    unfinished: f.Count64
    ended: f.Count64
    failed: f.Count64
    size_bytes: f.Count64  # arguments and results that the scheduler keeps
    idle_seconds: f.Seconds  # since a client used it, or a task of it ended


@message(58, to_scheduler=CLIENTS)
class ListSessions(Inquiry):
    """Asks for the durable sessions of the asking client's key; an admin, for all. The answer is SessionsListed."""

    number: f.Count64 = 0


@message(59, from_scheduler=CLIENTS, batch=True)
class SessionsListed(Reply):
    """Answers ListSessions."""

    sessions: list[SessionRow]
    number: f.Count64 = 0


UNFINISHED = 255
"""Stands in place of an outcome of SessionTasks."""


@message(60, to_scheduler=CLIENTS)
class ListSessionTasks(Inquiry):
    """Asks for tasks of a durable session, in the order of their submission. The answer is SessionTasks."""

    session: f.PeerId
    first: f.Count64 = 0  # tasks to leave out
    number: f.Count64 = 0


@message(61, from_scheduler=CLIENTS, batch=True)
class SessionTasks(Reply):
    """Answers ListSessionTasks: as many tasks as one message takes."""

    session: f.PeerId
    first: f.Count64
    total: f.Count64  # tasks of the session; 0 also when the client may not see it
    ids: f.Ids
    outcomes: Annotated[list[int], f.Numbers("List(UInt8)", "of Outcome, or 255: unfinished")]
    names: f.Payloads  # UTF-8
    keys: f.Payloads  # UTF-8
    tags: f.Payloads  # UTF-8
    number: f.Count64 = 0


@message(62, to_scheduler=CLIENTS)
class EndSession(Inquiry):
    """Asks to cancel all tasks of a durable session. The answer is SessionEnded."""

    session: f.PeerId
    remove: bool  # and to remove it, with its results
    number: f.Count64 = 0


@message(63, from_scheduler=CLIENTS)
class SessionEnded(Reply):
    """Answers EndSession."""

    session: f.PeerId
    cancelled: f.Count64
    error: f.Display = ""  # why it cannot be done, or empty
    number: f.Count64 = 0


@message(64, to_scheduler=CLIENTS)
class SessionLost(Message):
    """First message of a client whose earlier session is lost; its unfinished tasks follow, with Submit.again."""

    expired: bool  # it was out of contact for longer than its lease: its tasks with retries=0 may have been ended
    workers: PeerIds  # those that the client knew by Roster


@message(65, from_scheduler=CLIENTS)
class Roster(Message):
    """Workers to which tasks of this client with retries=0 may be sent once it has answered with RosterNoted.

    Should the scheduler be restarted, the client can say which workers may run them.
    """

    number: f.Count64  # counts the Rosters of this client from 1
    joined: PeerIds
    left: PeerIds  # they have none of its tasks any more


@message(66, to_scheduler=CLIENTS)
class RosterNoted(Message):
    """Answers Roster."""

    number: f.Count64  # of the last Roster that the client has received


@message(67, to_scheduler=(WORKER,), batch=True)
class WorkerReport(Message):
    """All attempts that a worker has: its first message in every session but its first one.

    The Done of those that have ended follow it.
    """

    ids: f.Ids
    attempts: f.Attempts
    suspended: f.Flags  # as in Suspended
    once: f.Flags  # 1: the task has retries=0
    devices: f.Devices = field(default_factory=list)  # as in RunGroup


@message(68, from_scheduler=(WORKER,))
class ReleaseResults(Message):
    """Names results that the worker need not keep any more to report them to a restarted scheduler."""

    numbers: f.Counts  # of Done messages, which both sides count from 1 in each session


@message(69, to_scheduler=(WORKER,))
class UseStore(Message):
    """From now on, the worker's tasks put their results into this store, and get their objects from it."""

    store: f.OptionalPeerId = b""  # the store of its host; empty: the object storage


@message(70, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,), to_storage=(Role.SCHEDULER,))
class ObjectsHeld(Message):
    """Names objects that this store has, whole. A store names all of them after each Welcome that resumes nothing.

    What a store has written to the backend, the scheduler tells the object storage, which deletes it in time.
    """

    ids: f.Ids
    sizes: f.Sizes
    in_backend: bool = False  # the backend has them; the store may have them, too


@message(71, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsDropped(Message):
    """Names objects that this store does not have any more."""

    ids: f.Ids


@message(72, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsWanted(Message):
    """Names objects that readers of this store wait for. Each is answered with FetchChunks or ObjectsUnavailable."""

    ids: f.Ids


@message(73, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ObjectsUnwanted(Message):
    """Names objects for which no reader of this store waits any more."""

    ids: f.Ids


@message(74, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class ChunksFetched(Message):
    """Runs of chunks that have come: the store can pass them on. It has the object when all have come."""

    ids: f.Ids
    firsts: f.Numbers32  # number of the first chunk, from 0
    counts: f.Numbers32  # of chunks
    sizes: f.Sizes  # of the whole objects


@message(75, to_scheduler=(STORE,), from_storage=(Role.SCHEDULER,))
class FetchesFailed(Message):
    """Runs of chunks that did not come."""

    ids: f.Ids
    firsts: f.Numbers32
    sources: f.Numbers32  # of FetchChunks
    unreachable: f.Flags  # 1: there is no way from this store to the source; 0: the source does not have the chunks


@message(76, to_scheduler=(STORE,), sequenced=False)
class StoreReport(Message):
    """Sign of life of a store, with its figures. Counts are since its start."""

    sent_at: f.Clock  # comes back in HeartbeatEcho
    objects: f.Count64
    used_bytes: f.Count64  # of memory
    spilled_bytes: f.Count64
    hits: f.Count64  # gets of objects that were there
    misses: f.Count64  # gets of objects that were fetched


@message(77, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class FetchChunks(Message):
    """Runs of chunks to fetch. `chunks.chunk_bytes` of an object's size is the size of its chunks."""

    ids: f.Ids
    sizes: f.Sizes  # of the whole objects; 0: not known, and the run is all of it
    firsts: f.Numbers32
    counts: f.Numbers32
    sources: f.Numbers32  # numbers of stores; 0: the object storage


@message(78, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class ObjectsUnavailable(Message):
    """Names objects that were wanted and that no store has."""

    ids: f.Ids
    host: f.Display = ""  # the host that had the only copies when it was lost; or empty


@message(79, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class SoleCopies(Message):
    """Names objects of which this store has the only copy now."""

    ids: f.Ids


@message(80, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class PushObjects(Message):
    """Names objects that this store is to put into the object storage, too."""

    ids: f.Ids


@dataclass(slots=True)
class StoreAddress:
    """Where a store is, and the key by which it and its peers know each other. The backend is listed as one."""

    number: f.Count32
    peer: f.PeerId  # its peer id at the scheduler
    address: f.Display
    public_key: f.Display
    backend_key: bytes = field(default=b"", repr=False)  # of UseBackend; of the backend only


@message(81, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,), batch=True)
class StoresChanged(Message):
    """Stores that have come and gone. The first one in a session names all others."""

    stores: list[StoreAddress]
    gone: f.Counts  # numbers, which are not used again


@message(82, from_storage=(Role.SCHEDULER,))
class UseBackend(Message):
    """The object storage has a backend, for all stores. Comes first in each of its sessions."""

    url: f.Display  # of the folder of this run
    key: bytes = field(repr=False)  # that its content is verified with


@message(83, from_scheduler=(STORE,), to_storage=(Role.SCHEDULER,))
class CopyObjects(Message):
    """Names objects of which this store is to get a copy, and to keep it. Those that it has it names in ObjectsHeld.

    It fetches the others as if readers waited, or names them in ObjectsUnwanted when it has no room.
    """

    ids: f.Ids
    sizes: f.Sizes  # 0: not known


@message(84, to_scheduler=CLIENTS)
class ReplicateResults(Message):
    """Names stored results of the client that are to have copies in more than one store."""

    ids: f.Ids
    replicas: f.Numbers32  # copies in all; 0: one of them in the object storage


@dataclass(frozen=True, slots=True)
class CallReport:
    """How far a call of a client is. items: 0 while their number is unknown."""

    number: f.Count64  # as in Spec.call
    verb: f.Display  # the method of the client: map, get, ...
    name: f.Display  # of the function, or of the graph
    items: f.Count64 = 0  # in all
    has_chunks: bool = False  # its tasks are chunks of items, and the following columns count these
    sent: f.Count64 = 0  # items that were submitted
    ended: f.Count64 = 0  # items that have ended, those that failed among them
    failed: f.Count64 = 0
    is_over: bool = False  # nothing more will be submitted


@message(85, to_scheduler=CLIENTS)
class CallsReported(Message):
    """Tells how far calls are: those that have changed since the last time, once in a second."""

    calls: Annotated[list[CallReport], f.PartList(CallReport)]


@message(86, to_scheduler=(WORKER,), sequenced=False)
class TasksProfiled(Message):
    """Where the time of a task, or of several short ones of its function, was spent since the last such message."""

    task: f.Id  # the last one
    document: bytes  # UTF-8 JSON: name of the function, single (all of it is of this task), and a profile


@dataclass(slots=True)
class LogLine:
    """A record of a worker's own log."""

    unix_seconds: f.Clock  # by the worker's wall clock
    level: f.Display  # its name, such as WARNING
    logger: f.Display
    text: f.Display
    task: f.OptionalId = b""  # that it is about


@message(87, to_scheduler=(WORKER,), sequenced=False)
class WorkerLogged(Message):
    """Records of the worker's own log since the last such message, from warnings on."""

    lines: Annotated[list[LogLine], f.PartList(LogLine)]
    dropped: f.Count32 = 0  # records that were left out since then: there were too many


@message(88, to_scheduler=(*CLIENTS, MONITOR))
class FindWorkerLogs(Inquiry):
    """Asks for records of workers' own logs. The answer is WorkerLogsFound."""

    search: str  # name or id of a worker; empty: of all
    most: f.Count32
    number: f.Count64 = 0


@message(89, from_scheduler=(*CLIENTS, MONITOR), batch=True)
class WorkerLogsFound(Reply):
    """Answers FindWorkerLogs."""

    search: str
    most: f.Count32
    json: bytes  # UTF-8: a list of the values of a LogRow, the newest first
    number: f.Count64 = 0


@message(90, to_scheduler=(*CLIENTS, MONITOR))
class ReadProfile(Inquiry):
    """Asks for the profile of a task or a function; without both, for the functions that have one.

    The answer is Profiled.
    """

    task: f.OptionalId = b""
    search: str = ""  # the name of a function
    number: f.Count64 = 0


@message(91, from_scheduler=(*CLIENTS, MONITOR), batch=True)
class Profiled(Reply):
    """Answers ReadProfile."""

    task: f.OptionalId
    search: str
    json: bytes  # UTF-8: of (task, function or empty: there is none), name, and a profile or the list of functions
    number: f.Count64 = 0


@message(92, to_scheduler=CLIENTS)
class FindCosts(Inquiry):
    """Asks what functions of the client's key have cost, an admin of all keys. The answer is CostsFound."""

    most: f.Count32
    number: f.Count64 = 0


@message(93, from_scheduler=CLIENTS)
class CostsFound(Reply):
    """Answers FindCosts."""

    most: f.Count32
    json: bytes  # UTF-8: a list of function, client, key and cost, that with the largest cost first
    number: f.Count64 = 0


@message(94, to_scheduler=(*CLIENTS, MONITOR))
class FindHistory(Inquiry):
    """Asks what happened between two times, in unix seconds. The answer is HistoryFound."""

    since: f.Clock
    until: f.Clock
    number: f.Count64 = 0


@message(95, from_scheduler=(*CLIENTS, MONITOR))
class HistoryFound(Reply):
    """Answers FindHistory."""

    since: f.Clock
    until: f.Clock
    json: bytes  # UTF-8: a document of `history_rows.ClusterHistory`, with tables of rows as in MonitorStatus
    number: f.Count64 = 0


@message(96, to_scheduler=CLIENTS)
class RestartWorkers(Inquiry):
    """Asks to end workers, whose managers then start others. The answer is WorkersRestarted."""

    workers: PeerIds  # none: all
    graceful: bool  # what runs on them ends first
    number: f.Count64 = 0


@message(97, from_scheduler=CLIENTS)
class WorkersRestarted(Reply):
    """Answers RestartWorkers."""

    workers: PeerIds  # those that end
    refused: f.Display  # why none does, display text; empty when it was accepted
    number: f.Count64 = 0


@message(98, to_scheduler=CLIENTS)
class ReadCluster(Inquiry):
    """Asks for the state of the cluster, as far as the client may see it. The answer is ClusterRead."""

    number: f.Count64 = 0


@message(99, from_scheduler=CLIENTS, batch=True)
class ClusterRead(Reply):
    """Answers ReadCluster."""

    status: bytes  # UTF-8: the document of a MonitorStatus
    events: bytes  # UTF-8: that of a MonitorEvents with the last tasks
    number: f.Count64 = 0


@message(100, from_scheduler=(*CLIENTS, MONITOR))
class Unanswered(Reply):
    """Answers a question that the scheduler does not answer."""

    text: f.Display  # why not
    number: f.Count64 = 0

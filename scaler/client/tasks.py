"""Records of a client: tasks and their functions, uploads, and objects; inputs and commands of task sessions. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from scaler.errors import ObjectLostError, ScalerError, UsageError
from scaler.ids import is_task
from scaler.protocol import messages as m
from scaler.protocol.messages import Spec
from scaler.serialization import Buffer, Serializer
from scaler.serialization.arguments import ByReference, Collection, DependencyFailedError


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class RemoteReference:
    """A function, upload, or stored result of this client. When Python frees it, its id is appended to `releases`."""

    id: bytes
    releases: deque[bytes]
    is_invalid: bool = field(default=False, init=False)
    """True after the client was cleared, because the scheduler has then released the object."""
    is_persisted: bool = field(default=False, init=False)
    """Whether the object storage keeps a copy of a stored result."""

    def __del__(self) -> None:
        self.releases.append(self.id)


class SharedParts(Protocol):
    def parts(self) -> list[memoryview]: ...


class Kept:
    """The parts of one upload, freed with this object."""

    __slots__ = ("__weakref__", "memory", "parts", "size_bytes")

    def __init__(self, parts: Sequence[Buffer], memory: SharedParts | None) -> None:
        self.memory = memory
        self.parts: Sequence[Buffer] | None = parts if memory is None else None
        self.size_bytes = sum(len(part) for part in parts)

    def read(self) -> Sequence[Buffer] | None:
        """Return the parts, or None if they were lost to a full disk. Raises OSError."""
        return self.memory.parts() if self.memory is not None else self.parts


@dataclass(slots=True, eq=False, repr=False)
class ObjectUpload(RemoteReference):
    """An object in the storage, or in transit to it. waiting: tasks to send once it is stored."""

    payload: bytes
    is_stored: bool = False
    error: ScalerError | None = None
    kept: Kept | None = None
    """Source for restoring the object after a loss. None until stored."""
    waiting: list[ClientTask] = field(default_factory=list)

    @property
    def _reference_id(self) -> bytes:
        return self.id


@dataclass(slots=True, eq=False, repr=False)
class FunctionReference(RemoteReference):
    """A function or serializer, announced to the scheduler before the first task that needs it."""

    payload: bytes
    upload: ObjectUpload | None
    announced_in: int = 0
    """Number of the scheduler session in which it was last announced; 0: never."""


class ObjectReference(ByReference):
    """An object sent once, for use as an argument of tasks until the client is cleared or disconnected."""

    _how_to_send = "pass it to submit as an argument, or inside one, and the task gets the object"

    def __init__(self, owner: object, upload: ObjectUpload, name: str, size_bytes: int) -> None:
        self._owner = owner
        self._upload = upload
        self.name = name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        state = "cleared" if self._upload.is_invalid else f"{self.size_bytes:,} B"
        return f"<ObjectReference {self.name!r} {state}>"

    @property
    def _reference_id(self) -> bytes:
        return self._upload.id

    def _known_value(self, collection: Collection, /) -> None:
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client: send the object with this client")
        if self._upload.is_invalid:
            why = ObjectLostError(f"object {self.name!r} was cleared: send it again")
            raise DependencyFailedError(why, self)


@dataclass(slots=True, eq=False, repr=False)
class TaskTemplate:
    """The common part of tasks with the same function and options. A Submit groups its tasks by template."""

    spec: Spec
    functions: tuple[FunctionReference, ...]
    serializer: Serializer | None
    owner: object = None
    shapes: set[tuple[object, ...]] = field(default_factory=set)
    """Checked call shapes: number of arguments, and names of keyword arguments."""
    has_chunks: bool = False
    """Whether each task makes several calls, counted in `ClientTask.calls`."""
    uploads: tuple[ObjectUpload, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.uploads = tuple(function.upload for function in self.functions if function.upload is not None)


class Stage(IntEnum):
    UNSENT = 0
    SENT = 1
    FETCHING = 2
    AGAIN = 3
    """Sent in an earlier session with a scheduler, but not yet in the current one."""
    KEPT = 4
    """Finished; the value stays in the cluster until the user requests it."""


@dataclass(slots=True, eq=False, repr=False)
class ClientTask:
    """A task of this client. `template` is None once the task has ended and will not be sent again.

    Exception: an undelivered task stays sendable while other tasks reference it, for a restarted scheduler.
    """

    task_id: bytes
    template: TaskTemplate | None
    payload: bytes
    references: tuple[Reference, ...] = ()
    uploads: tuple[ObjectUpload, ...] = ()
    stage: Stage = Stage.UNSENT
    resolved: int = field(init=False)
    """Number of the last Finished whose futures were resolved when this task was queued; unset until then."""
    is_used: bool = field(init=False)
    """Whether other tasks reference its value; unset if not."""
    is_persisted: bool = field(init=False)
    """Whether the user wants a copy of the result in the object storage; unset if not."""
    calls: int = field(init=False)
    label: tuple[bytes, bytes] = field(init=False)
    """Key and tag of a task in a durable session; unset for any other task."""

    @property
    def _reference_id(self) -> bytes:
        return self.task_id

    @property
    def is_adopted(self) -> bool:
        """Whether another program submitted the task, so that only the scheduler has its content."""
        return self.template is not None and not self.template.functions


Reference = ClientTask | ObjectUpload | ObjectReference


def sendable(pending: Mapping[bytes, ClientTask]) -> Iterator[ClientTask]:
    yielded: set[bytes] = set()
    for last in pending.values():
        stack = [last] if last.stage is not Stage.FETCHING and not last.is_adopted else []
        while stack:
            task = stack[-1]
            needed = [
                reference
                for reference in task.references
                if isinstance(reference, ClientTask)
                and reference.template is not None
                and reference.stage not in (Stage.FETCHING, Stage.KEPT)
                and not reference.is_adopted
                and reference.task_id not in yielded
            ]
            if needed:
                stack.extend(needed)
                continue
            stack.pop()
            if task.task_id not in yielded:
                yielded.add(task.task_id)
                yield task


def lost_values(pending: Mapping[bytes, ClientTask]) -> list[tuple[ClientTask, Serializer | None]]:
    """Return, in order, the tasks whose lost values pending tasks need, each with the serializer for its upload."""
    tasks = list(sendable(pending))
    ids = {task.task_id for task in tasks}
    lost = {
        (reference, task.template.serializer): None
        for task in tasks
        if task.template is not None
        for reference in task.references
        if isinstance(reference, ClientTask) and reference.task_id not in ids and is_task(reference._reference_id)
    }
    return list(lost)


StandIns = Mapping[tuple[ClientTask, Serializer | None], ObjectUpload]
"""Uploads of finished tasks' values, by task and the serializer of the dependent tasks."""


class TasksAdded(NamedTuple):
    """Tasks were submitted, in this order. Their references were unresolved futures or objects at that time."""

    tasks: list[ClientTask]


class TasksAdopted(NamedTuple):
    """Futures were created for a durable session's tasks that another program submitted, so the tasks cannot be
    resent."""

    tasks: list[ClientTask]


class TaskSettled(NamedTuple):
    """The future of a task ended here: the user cancelled it, or its stored result has arrived or is lost."""

    task: ClientTask


class UploadEnded(NamedTuple):
    """An upload was stored, or failed with an error."""

    upload: ObjectUpload
    error: ScalerError | None = None


class ObjectPinned(NamedTuple):
    """The user sent an object, which is kept until the client is cleared."""

    upload: ObjectUpload


class ReferencesReleased(NamedTuple):
    """These functions, objects, and results are unreferenced."""

    ids: list[bytes]


class ClientCleared(NamedTuple):
    """The user cleared the client: drop all earlier tasks and objects."""


class ClientGaveUp(NamedTuple):
    """No further event will end the pending tasks. cancel: request cancellation from the running scheduler."""

    error: ScalerError
    cancel: bool


class SchedulerRestarted(NamedTuple):
    """The scheduler was restarted or dropped this client. stand_ins: new uploads of the `lost_values`."""

    stand_ins: StandIns


class ConnectionReady(NamedTuple):
    """The connection accepts tasks of up to free_bytes. max_pending: limit of unfinished tasks; -1: none."""

    free_bytes: int
    max_pending: int = -1


SessionInput = (
    TasksAdded
    | TasksAdopted
    | TaskSettled
    | m.Finished
    | UploadEnded
    | ObjectPinned
    | ReferencesReleased
    | ClientCleared
    | ClientGaveUp
    | SchedulerRestarted
    | ConnectionReady
)
"""Inputs of a session. Finished is a message from the scheduler."""


class DropTasks(NamedTuple):
    """End the futures of these tasks, which are no longer pending, with this error; None: as cancelled."""

    tasks: list[ClientTask]
    error: ScalerError | None


SessionCommand = m.Message | DropTasks

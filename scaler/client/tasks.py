"""What a client keeps of one task, and of what tasks share: functions, uploads, objects, stored results. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from scaler.errors import ObjectLostError, ScalerError, UsageError
from scaler.ids import is_task
from scaler.protocol.messages import Spec
from scaler.serialization import Serializer
from scaler.serialization.arguments import ByReference, Collection, DependencyFailedError

if TYPE_CHECKING:
    from scaler.client.kept import Kept


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class RemoteReference:
    """A function, upload, or stored result of this client. Its id enters `releases` when Python frees this."""

    id: bytes
    releases: deque[bytes]
    is_invalid: bool = field(default=False, init=False)
    """True after the client was cleared: the scheduler no longer keeps it."""
    replicas: int = field(default=1, init=False)
    is_persisted: bool = field(default=False, init=False)
    """The stores that are to have a copy of a stored result, and whether the object storage is one of them."""

    def __del__(self) -> None:
        self.releases.append(self.id)


@dataclass(slots=True, eq=False, repr=False)
class ObjectUpload(RemoteReference):
    """An object on its way to the storage, or in it. waiting: tasks that may be sent once it is there."""

    payload: bytes
    is_stored: bool = False
    error: ScalerError | None = None
    kept: Kept | None = None
    """What it is put from again, should the storage lose it. None before it is in the storage."""
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
    """The number of the scheduler's session in which it was last announced; 0: in none."""


class ObjectReference(ByReference):
    """An object sent once, for the arguments of tasks, until the client is cleared or disconnected."""

    _how_to_send = "give it to submit as an argument, alone or inside one, and the task gets the object"

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
        """Return None. Raises UsageError for another client's object, DependencyFailedError after `clear`."""
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client: send the object with this one")
        if self._upload.is_invalid:
            why = ObjectLostError(f"object {self.name!r} was cleared: send it again")
            raise DependencyFailedError(why, self)


@dataclass(slots=True, eq=False, repr=False)
class TaskTemplate:
    """What tasks of one function and one set of options share. One Submit groups its tasks by template."""

    spec: Spec
    functions: tuple[FunctionReference, ...]
    serializer: Serializer | None
    """Loads the results; None: the built-in one."""
    owner: object = None
    shapes: set[tuple[object, ...]] = field(default_factory=set)
    """Calls that the function takes, as far as they were checked: number of arguments, and names of keyword ones."""
    has_chunks: bool = False
    """Each task makes several calls, and `ClientTask.calls` says how many."""
    uploads: tuple[ObjectUpload, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.uploads = tuple(function.upload for function in self.functions if function.upload is not None)


class Stage(IntEnum):
    """How far an unfinished task is."""

    UNSENT = 0
    SENT = 1
    FETCHING = 2
    """It has ended, and its value is on its way from the object storage."""
    AGAIN = 3
    """It was sent in an earlier session with a scheduler, and not yet in this one."""
    KEPT = 4
    """It has ended, and its value stays where it is until the user asks for it."""


@dataclass(slots=True, eq=False, repr=False)
class ClientTask:
    """A task of this client. `template` is None once the task will not be sent any more.

    That is when it ends. A task whose value is not delivered stays sendable while other tasks name it, because after a
    restart of the scheduler only running it again gives its value.
    """

    task_id: bytes
    template: TaskTemplate | None
    payload: bytes
    references: tuple[Reference, ...] = ()
    uploads: tuple[ObjectUpload, ...] = ()
    stage: Stage = Stage.UNSENT
    resolved: int = field(init=False)
    """Number of the last Finished whose futures were resolved when it was queued to be sent; unset before."""
    is_used: bool = field(init=False)
    """Other tasks name its value; unset when none does."""
    is_persisted: bool = field(init=False)
    """The user wants the object storage to keep a copy of its result; unset for all others."""
    calls: int = field(init=False)
    """Calls in a chunk; unset for a task of another kind."""
    label: tuple[bytes, bytes] = field(init=False)
    """Key and tag of a task of a durable session; other tasks have none, not even an empty one."""

    @property
    def _reference_id(self) -> bytes:
        """The id by which other tasks name its value."""
        return self.task_id

    @property
    def is_adopted(self) -> bool:
        """Tell whether only the scheduler has what the task runs: another program submitted it."""
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
    """Return the tasks, in order, whose lost values pending tasks need, each with the serializer for its upload."""
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

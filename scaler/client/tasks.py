"""What a client keeps of one task, and of what tasks share: functions, uploads, stored results. Pure."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Protocol

from scaler.errors import ScalerError
from scaler.protocol.messages import Spec
from scaler.serialization import Serializer


class RemoteReference:
    """A function, upload or stored result that the scheduler keeps for this client.

    When the last Python reference to it goes, its id goes into `releases`: Python's reference count is the use count.
    """

    __slots__ = ("__weakref__", "_releases", "id", "is_invalid")

    def __init__(self, identifier: bytes, releases: deque[bytes]) -> None:
        self.id = identifier
        self.is_invalid = False
        """True after the client was cleared: the scheduler no longer keeps it."""
        self._releases = releases

    def __del__(self) -> None:
        self._releases.append(self.id)


class ObjectUpload(RemoteReference):
    """An object on its way to the storage, or in it. waiting: tasks that may be sent once it is there."""

    __slots__ = ("error", "is_stored", "payload", "waiting")

    def __init__(self, identifier: bytes, payload: bytes, releases: deque[bytes]) -> None:
        super().__init__(identifier, releases)
        self.payload = payload
        self.is_stored = False
        self.error: ScalerError | None = None
        self.waiting: list[ClientTask] = []

    @property
    def reference_id(self) -> bytes:
        """The id by which tasks name the object."""
        return self.id


class FunctionReference(RemoteReference):
    """A function or serializer, announced to the scheduler before the first task that needs it."""

    __slots__ = ("announced_in", "payload", "upload")

    def __init__(self, identifier: bytes, payload: bytes, upload: ObjectUpload | None, releases: deque[bytes]) -> None:
        super().__init__(identifier, releases)
        self.payload = payload
        self.upload = upload
        self.announced_in = 0
        """The number of the scheduler's session in which it was last announced; 0: in none."""


class TaskTemplate:
    """What tasks of one function and one set of options share. One Submit groups its tasks by template.

    owner: the executor that submits them, None for a client's own.
    """

    __slots__ = ("functions", "owner", "serializer", "spec", "uploads")

    def __init__(
        self,
        spec: Spec,
        functions: tuple[FunctionReference, ...],
        serializer: Serializer | None,
        owner: object = None,
    ) -> None:
        self.spec = spec
        self.serializer = serializer
        """Loads the results; None: the built-in one."""
        self.functions = functions
        self.uploads = tuple(function.upload for function in functions if function.upload is not None)
        self.owner = owner


class Reference(Protocol):
    """What a task needs: the id by which the scheduler knows it."""

    @property
    def reference_id(self) -> bytes: ...


class Stage(IntEnum):
    """How far an unfinished task is."""

    UNSENT = 0
    SENT = 1
    FETCHING = 2
    """It has ended, and its value is on its way from the object storage."""


class ClientTask:
    """A task of this client. `template` is None once the task will not be sent any more.

    That is when it ends. A task whose value is not delivered stays sendable while other tasks name it, because after a
    restart of the scheduler only running it again gives its value.
    """

    __slots__ = ("payload", "references", "stage", "task_id", "template", "uploads")

    def __init__(
        self,
        task_id: bytes,
        template: TaskTemplate,
        payload: bytes,
        references: tuple[Reference, ...] = (),
        uploads: tuple[ObjectUpload, ...] = (),
    ) -> None:
        self.task_id = task_id
        self.template: TaskTemplate | None = template
        self.payload = payload
        self.references = references
        self.uploads = uploads
        self.stage = Stage.UNSENT

    @property
    def reference_id(self) -> bytes:
        """The id by which other tasks name its value."""
        return self.task_id

"""Inputs and commands of a client's task session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scaler.client.tasks import ClientTask, ObjectUpload
from scaler.errors import ScalerError
from scaler.protocol import messages as m
from scaler.serialization import Serializer

StandIns = Mapping[tuple[ClientTask, Serializer | None], ObjectUpload]
"""Uploads of finished tasks' values, by task and the serializer of the dependent tasks."""


class TasksAdded(NamedTuple):
    """Tasks were submitted, in this order. Their references were unresolved futures or objects at that time."""

    tasks: list[ClientTask]


class TasksAdopted(NamedTuple):
    """Futures were made for tasks of a durable session that another program submitted, so they cannot be resent."""

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
    """The scheduler was restarted, or dropped this client. stand_ins: available values of `lost_values`."""

    stand_ins: StandIns


class ConnectionReady(NamedTuple):
    """The connection accepts free_bytes of tasks. max_pending: limit of unfinished tasks; -1: none."""

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
"""Finished is a message of the scheduler."""


class DropTasks(NamedTuple):
    """End the futures of these tasks, which are no longer pending, with this error; None: as cancelled."""

    tasks: list[ClientTask]
    error: ScalerError | None


SessionCommand = m.Message | DropTasks

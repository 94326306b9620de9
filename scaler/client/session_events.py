"""Events of the tasks of a client, which its session takes in, and the commands that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scaler.client.tasks import ClientTask, ObjectUpload
from scaler.errors import ScalerError
from scaler.protocol import messages as m
from scaler.serialization import Serializer

StandIns = Mapping[tuple[ClientTask, Serializer | None], ObjectUpload]
"""Uploads of the values of finished tasks, by task and the serializer of the tasks that need them."""


class TasksAdded(NamedTuple):
    """Tasks were submitted, in this order. Their references were unresolved futures or objects at that moment."""

    tasks: list[ClientTask]


class TasksAdopted(NamedTuple):
    """Futures were made of tasks of a durable session that another program submitted, so they cannot be sent again."""

    tasks: list[ClientTask]


class TaskSettled(NamedTuple):
    """The future of a task ended here: the user cancelled it, or its stored result has come or is lost."""

    task: ClientTask


class UploadEnded(NamedTuple):
    """An upload is in the storage, or failed with an error."""

    upload: ObjectUpload
    error: ScalerError | None = None


class ObjectPinned(NamedTuple):
    """The user sent an object, which stays until the client is cleared, whether tasks use it or not."""

    upload: ObjectUpload


class ReferencesReleased(NamedTuple):
    """Nothing refers to these functions, objects and results any more."""

    ids: list[bytes]


class ClientCleared(NamedTuple):
    """The user cleared the client: all tasks and objects of before are dropped."""


class ClientGaveUp(NamedTuple):
    """Nothing will end these tasks any more. cancel: the scheduler is still there, and must cancel them."""

    error: ScalerError
    cancel: bool


class SchedulerRestarted(NamedTuple):
    """The scheduler was restarted, or gave this client up (expired). stand_ins: available values of `lost_values`."""

    stand_ins: StandIns
    expired: bool = False


class ConnectionReady(NamedTuple):
    """The connection takes free_bytes of tasks. max_pending: limit of unfinished tasks; -1: none."""

    free_bytes: int
    max_pending: int = -1


SessionInput = (
    TasksAdded
    | TasksAdopted
    | TaskSettled
    | m.Finished
    | m.Roster
    | UploadEnded
    | ObjectPinned
    | ReferencesReleased
    | ClientCleared
    | ClientGaveUp
    | SchedulerRestarted
    | ConnectionReady
)
"""Finished: the scheduler's message, whose futures are resolved or wait for their stored results. Roster: also its."""


class DropTasks(NamedTuple):
    """End the futures of these tasks, which are no longer pending, with this error; None: as cancelled."""

    tasks: list[ClientTask]
    error: ScalerError | None


SessionCommand = m.Message | DropTasks

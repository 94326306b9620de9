"""What a client keeps of one task, and of what tasks share: functions, uploads, stored results. Pure."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from scaler.errors import ScalerError
from scaler.protocol.messages import Spec
from scaler.serialization import Serializer


class Held:
    """A definition, upload or stored result that this client keeps alive on the other side.

    When nothing refers to it any more, its id goes into `releases`: Python's own counting is the count of uses.
    """

    __slots__ = ("__weakref__", "_releases", "id", "void")

    def __init__(self, identifier: bytes, releases: deque[bytes]) -> None:
        self.id = identifier
        self.void = False
        """True when the client was cleared: the scheduler no longer keeps it."""
        self._releases = releases

    def __del__(self) -> None:
        self._releases.append(self.id)


class Upload(Held):
    """An object on its way to the storage, or there. waiting: tasks that may be sent when it is there."""

    __slots__ = ("error", "payload", "ready", "waiting")

    def __init__(self, identifier: bytes, payload: bytes, releases: deque[bytes]) -> None:
        super().__init__(identifier, releases)
        self.payload = payload
        self.ready = False
        self.error: ScalerError | None = None
        self.waiting: list[Task] = []

    @property
    def reference_id(self) -> bytes:
        """The id by which tasks name the object."""
        return self.id


class Definition(Held):
    """A function or serializer, said to the scheduler before the first task that needs it."""

    __slots__ = ("payload", "said", "upload")

    def __init__(self, identifier: bytes, payload: bytes, upload: Upload | None, releases: deque[bytes]) -> None:
        super().__init__(identifier, releases)
        self.payload = payload
        self.upload = upload
        self.said = False


class Kind:
    """What tasks of one function and one set of options share. Groups of one drain are by kind."""

    __slots__ = ("definitions", "serializer", "spec", "uploads")

    def __init__(self, spec: Spec, definitions: tuple[Definition, ...], serializer: Serializer | None) -> None:
        self.spec = spec
        self.serializer = serializer
        """Loads the results; None: the built-in one."""
        self.definitions = definitions
        self.uploads = tuple(definition.upload for definition in definitions if definition.upload is not None)


class Reference(Protocol):
    """What a task needs: the id by which the scheduler knows it."""

    @property
    def reference_id(self) -> bytes: ...


class Task:
    """A task of this client. kind is None, and the rest void, as soon as the task is not to be sent any more.

    That is when it ends; one whose value is not delivered stays sendable for as long as other tasks name it, because
    only running it again could tell a scheduler that has forgotten everything what its value is.
    """

    __slots__ = ("is_sent", "kind", "payload", "references", "task_id", "uploads")

    def __init__(
        self,
        task_id: bytes,
        kind: Kind,
        payload: bytes,
        references: tuple[Reference, ...] = (),
        uploads: tuple[Upload, ...] = (),
    ) -> None:
        self.task_id = task_id
        self.kind: Kind | None = kind
        self.payload = payload
        self.references = references
        self.uploads = uploads
        self.is_sent = False

    @property
    def reference_id(self) -> bytes:
        """The id by which other tasks name its value."""
        return self.task_id

    def forget(self) -> None:
        """Let go of everything that was kept to send the task."""
        self.kind = None
        self.payload = b""
        self.references = ()
        self.uploads = ()

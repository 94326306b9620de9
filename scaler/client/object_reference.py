"""What stands for an object in the storage: `ObjectReference`, which `Client.send_object` returns, and its kin."""

from __future__ import annotations

from abc import abstractmethod

from scaler.client.tasks import Upload
from scaler.errors import UsageError
from scaler.serialization import ByReference, Collection


class InStorage(ByReference):
    """Base of what stands for an object that this client has put into the storage."""

    @property
    @abstractmethod
    def upload(self) -> Upload:
        """The object. Raises UsageError when it is void."""

    @property
    def reference_id(self) -> bytes:
        """The id of the object. Raises UsageError when it is void."""
        return self.upload.id


class SharedValue(InStorage):
    """A value of a graph that several of its tasks need. It only ever stands in the arguments of those."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    @property
    def upload(self) -> Upload:
        """The value in the storage."""
        return self._upload

    def known_value(self, _collection: Collection, /) -> None:
        """Return None: the value is in the storage."""


class ObjectReference(InStorage):
    """Stands for an object that was sent once, in the arguments of any number of tasks: they get the object.

    Valid until the client that made it is cleared or disconnected.
    """

    how_to_send = "give it to submit as an argument, alone or inside one, and the task gets the object"

    def __init__(self, owner: object, upload: Upload, name: str, size_bytes: int) -> None:
        self._owner = owner
        self._upload: Upload | None = upload
        self.name = name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        if self._upload is None:
            return f"<ObjectReference {self.name!r} cleared>"
        return f"<ObjectReference {self.name!r} {self.size_bytes} bytes>"

    @property
    def upload(self) -> Upload:
        """The object in the storage. Raises UsageError when the reference is void."""
        if self._upload is None:
            raise UsageError(f"object {self.name!r} was cleared: send it again")
        return self._upload

    def invalidate(self) -> None:
        """The client was cleared: the object is gone."""
        self._upload = None

    def known_value(self, collection: Collection, /) -> None:
        """Return None: the object is in the storage. Raises UsageError when this client cannot use it."""
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client: send the object with this one")
        _ = self.upload

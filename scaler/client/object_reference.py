"""`ObjectReference`, which `Client.send_object` returns, and which parts a client has in the object storage already."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from scaler.client.tasks import ObjectUpload
from scaler.errors import UsageError
from scaler.ids import content_id
from scaler.serialization import ByReference, Collection, Parts, size_of

MAX_COPIED_BYTES = 1024 * 1024
"""A larger buffer that its owner could still write to is not copied: the caller waits until it is in the storage."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16

_Key = tuple[bytes, ...]


class ObjectReference(ByReference):
    """Stands for an object that was sent once, in the arguments of any number of tasks: they get the object.

    Valid until the client that made it is cleared or disconnected.
    """

    how_to_send = "give it to submit as an argument, alone or inside one, and the task gets the object"

    def __init__(self, owner: object, upload: ObjectUpload, name: str, size_bytes: int) -> None:
        self._owner = owner
        self._upload: ObjectUpload | None = upload
        self.name = name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        if self._upload is None:
            return f"<ObjectReference {self.name!r} cleared>"
        return f"<ObjectReference {self.name!r} {self.size_bytes} bytes>"

    @property
    def upload(self) -> ObjectUpload:
        """The object in the storage. Raises UsageError when the reference is invalid."""
        if self._upload is None:
            raise UsageError(f"object {self.name!r} was cleared: send it again")
        return self._upload

    @property
    def reference_id(self) -> bytes:
        """The id of the object. Raises UsageError when the reference is invalid."""
        return self.upload.id

    def invalidate(self) -> None:
        """The client was cleared: the object is gone."""
        self._upload = None

    def known_value(self, collection: Collection, /) -> None:
        """Return None: the object is in the storage. Raises UsageError when this client cannot use it."""
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client: send the object with this one")
        _ = self.upload


class KnownUploads:
    """Uploads by content, while something refers to them: the same bytes go up once.

    Digests of large parts cost as much as sending them. Samples distinguish those above `MAX_COPIED_BYTES` first,
    and only parts whose samples were seen before are digested in full: so the second copy may still go up, later
    ones do not.
    """

    __slots__ = ("_lock", "_sampled", "_uploads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()
        self._sampled: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()

    def key_of(self, parts: Parts) -> _Key | None:
        """Return the key of these parts, or None when nothing like them is there."""
        if size_of(parts) <= MAX_COPIED_BYTES or _sample(parts) in self._sampled:
            return (content_id(*parts), *(len(part).to_bytes(8, "little") for part in parts))
        return None

    def find(self, key: _Key | None) -> ObjectUpload | None:
        with self._lock:
            return None if key is None else self._uploads.get(key)

    def remember(self, key: _Key | None, parts: Parts, upload: ObjectUpload) -> None:
        with self._lock:
            if key is not None:
                self._uploads[key] = upload
            else:
                self._sampled[_sample(parts)] = upload

    def clear(self) -> None:
        """Nothing that is there may be used again."""
        with self._lock:
            self._uploads.clear()
            self._sampled.clear()


def snapshot(parts: Parts, max_copied_bytes: float) -> tuple[Parts, bool]:
    """Return parts that do not change. True: only if the caller waits until they are in the storage.

    max_copied_bytes: a part that its owner could write to is copied up to this size.
    """
    must_wait = False
    stable: Parts = []
    for part in parts:
        if isinstance(part, memoryview) and not part.readonly:
            if len(part) > max_copied_bytes:
                must_wait = True
            else:
                part = bytes(part)  # noqa: PLW2901
        stable.append(part)
    return stable, must_wait


def _sample(parts: Parts) -> _Key:
    digests = []
    for part in parts:
        view = memoryview(part)
        step = max(_SAMPLE_BYTES, len(view) // _SAMPLES)
        samples = [view[at : at + _SAMPLE_BYTES] for at in range(0, len(view), step)]
        digests.append(content_id(len(view).to_bytes(8, "little"), *samples, view[-_SAMPLE_BYTES:]))
    return tuple(digests)

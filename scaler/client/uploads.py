"""Large parts on their way into the storage: which are new, and which are there already."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from scaler.client.tasks import Upload
from scaler.ids import content_id
from scaler.serialization import Parts, size_of

MAX_COPIED_BYTES = 1024 * 1024
"""A larger buffer that its owner could still write to is not copied: the caller waits until it is in the storage."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16

_Key = tuple[bytes, ...]


class KnownUploads:
    """Uploads by content, as long as something holds them: the same bytes go up once.

    Digests of large parts cost as much as sending them. Those above `MAX_COPIED_BYTES` are told apart by samples first,
    and only parts whose samples were seen before are digested in full: so the second copy may still go up, later
    ones do not.
    """

    __slots__ = ("_lock", "_sampled", "_uploads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: WeakValueDictionary[_Key, Upload] = WeakValueDictionary()
        self._sampled: WeakValueDictionary[_Key, Upload] = WeakValueDictionary()

    def key_of(self, parts: Parts) -> _Key | None:
        """Return the key of these parts, or None when nothing like them is there."""
        if size_of(parts) <= MAX_COPIED_BYTES or _sample(parts) in self._sampled:
            return (content_id(*parts), *(len(part).to_bytes(8, "little") for part in parts))
        return None

    def find(self, key: _Key | None) -> Upload | None:
        with self._lock:
            return None if key is None else self._uploads.get(key)

    def remember(self, key: _Key | None, parts: Parts, upload: Upload) -> None:
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
    """Return parts that stay as they are; True: they do so only if the caller waits until they are in the storage.

    max_copied_bytes: a part that its owner could write to is copied up to this size.
    """
    must_wait = False
    kept: Parts = []
    for part in parts:
        if isinstance(part, memoryview) and not part.readonly:
            if len(part) > max_copied_bytes:
                must_wait = True
            else:
                part = bytes(part)  # noqa: PLW2901
        kept.append(part)
    return kept, must_wait


def _sample(parts: Parts) -> _Key:
    digests = []
    for part in parts:
        view = memoryview(part)
        step = max(_SAMPLE_BYTES, len(view) // _SAMPLES)
        pieces = [view[at : at + _SAMPLE_BYTES] for at in range(0, len(view), step)]
        digests.append(content_id(len(view).to_bytes(8, "little"), *pieces, view[-_SAMPLE_BYTES:]))
    return tuple(digests)

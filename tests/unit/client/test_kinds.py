"""Kinds of task: what the functions of a client are to the scheduler."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from scaler.client.kinds import KindTable, Options
from scaler.client.loop import ClientLoop
from scaler.client.session import Session
from scaler.client.tasks import Upload
from scaler.errors import LimitError
from scaler.ids import IdFactory
from scaler.protocol.messages import stored_reference
from scaler.serialization import Parts, size_of


class Storage:
    """Takes note of what is put into it."""

    def __init__(self, session: Session) -> None:
        self.uploads: list[Upload] = []
        self._session = session
        self._ids = IdFactory(b"client--")

    def upload(self, parts: Parts) -> Upload:
        identifier = self._ids.object()
        self.uploads.append(Upload(identifier, stored_reference(identifier, size_of(parts)), self._session.releases))
        return self.uploads[-1]


def test_a_function_that_the_storage_had_no_room_for_is_put_again_with_the_next_task() -> None:
    session = Session()
    storage = Storage(session)
    futures = SimpleNamespace(session=session, condition=threading.Condition())
    kinds = KindTable(cast("ClientLoop", SimpleNamespace(futures=futures, objects=storage)), None)
    large: Any = bytes(2_000_000)

    def function() -> int:
        return len(large)

    first = kinds.kind(function, Options(), b"")
    assert kinds.kind(function, Options(), b"") is first
    session.drop_upload(storage.uploads[0], LimitError("full"))
    again = kinds.kind(function, Options(), b"")
    assert again.uploads == (storage.uploads[1],)
    assert kinds.kind(function, Options(), b"") is again

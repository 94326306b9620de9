"""The storage core and its peers with simulated shared memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from scaler.ids import IdFactory, result_id
from scaler.net.connection import Received, Welcomed
from scaler.object_storage.body import cut
from scaler.object_storage.commands import ReceivedMemory, SendToPeer
from scaler.object_storage.messages import GetObject, PutObject, StatStorage, StorageReply, StorageResult
from scaler.object_storage.requests import (
    CallEnded,
    GetCall,
    PutCall,
    Requests,
    RequestsCommand,
    SendRequest,
    StorageCall,
)
from scaler.protocol import messages as m
from tests.unit.object_storage.storage_story import (
    CLIENT,
    READER,
    SCHEDULER,
    WORKER,
    Story,
    contents,
    messages,
    replies,
)

MADE = IdFactory(CLIENT)
OBJECT = MADE.object()
OTHER = MADE.object()
RESULT = result_id(MADE.task(), 1)
SERVER = bytes(8)
PARTS = [b"pickle", b"buffer"]


class Shared:
    def __init__(self, *parts: bytes) -> None:
        self.parts = [memoryview(part) for part in parts]

    def fileno(self) -> int:
        raise NotImplementedError

    def frames(self) -> list[memoryview]:
        return [frame for message in cut(self.parts) for frame in message]


def shares(
    story: Story, peer: bytes, object_id: bytes, memory: Shared | None, sizes: Sequence[int], request: int = 1
) -> list[SendToPeer]:
    return story.step(ReceivedMemory(peer, PutObject(request, object_id, list(sizes), 0, True), (), (), memory))


def sizes_of(parts: Sequence[bytes]) -> list[int]:
    return [len(part) for part in parts]


def used_bytes(story: Story) -> int:
    status: Any = story.says(SCHEDULER, StatStorage(99))[0].message
    return int(status.bytes)


# -- the storage ------------------------------------------------------------------------------------------------------


def test_reader_with_shared_memory_gets_the_same_memory() -> None:
    story, memory = Story(), Shared(*PARTS)
    assert replies(shares(story, WORKER, OBJECT, memory, [6, 6], request=7)) == [(WORKER, 7, "ok")]
    (answer,) = story.says(READER, GetObject(3, OBJECT, 0.0, True))
    assert answer == SendToPeer(READER, StorageReply(3, StorageResult.OK, "", [6, 6], 0, True), (), memory)


def test_reader_without_shared_memory_gets_frames() -> None:
    story = Story()
    shares(story, WORKER, OBJECT, Shared(*PARTS), [6, 6])
    for request in (3, 4):
        (answer,) = story.says(READER, GetObject(request, OBJECT, 0.0))
        assert contents([answer]) == [(READER, request, b"picklebuffer")]
        assert messages([answer])[0].parts == [6, 6]
        assert not messages([answer])[0].shared
        assert answer.memory is None


def test_put_without_its_descriptor_must_be_resent_with_frames() -> None:
    story = Story()
    assert replies(shares(story, WORKER, OBJECT, None, [6, 6])) == [(WORKER, 1, "unshared")]
    assert replies(story.says(WORKER, PutObject(2, OBJECT, [6, 6], 0, True))) == [(WORKER, 2, "unshared")]
    assert used_bytes(story) == 0
    assert replies(story.puts(WORKER, OBJECT, *PARTS)) == [(WORKER, 1, "ok")]


def test_memory_is_freed_with_its_object() -> None:
    story, memory = Story(), Shared(*PARTS)
    reference = weakref.ref(memory)
    shares(story, WORKER, OBJECT, memory, [6, 6])
    del memory
    story.says(CLIENT, GetObject(2, OBJECT, 0.0))
    assert reference() is not None
    story.says(SCHEDULER, m.ForgetObjects([OBJECT]))
    assert reference() is None
    assert used_bytes(story) == 0


def test_reserved_space_is_kept_until_the_peer_leaves() -> None:
    story = Story(limit_bytes=20)
    assert replies(story.says(WORKER, PutObject(1, RESULT, [12], 0))) == [(WORKER, 1, "ok")]
    assert used_bytes(story) == 12
    assert replies(story.says(CLIENT, PutObject(1, OTHER, [12], 0))) == [(CLIENT, 1, "full")]
    assert replies(shares(story, WORKER, RESULT, Shared(bytes(12)), [12])) == [(WORKER, 1, "ok")]
    assert used_bytes(story) == 12
    assert replies(story.says(READER, PutObject(1, OTHER, [5], 0))) == [(READER, 1, "ok")]
    story.leaves(READER)
    assert used_bytes(story) == 12


# -- its peers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def requests() -> Requests:
    requests = Requests("tcp://storage:1", 10.0, 0.0)
    requests.is_sharing = True
    requests.step([Welcomed(m.Welcome(False, 1, 60.0, 2.0))], 0.0)
    return requests


def reply(request: int, result: StorageResult = StorageResult.OK, text: str = "") -> Received:
    return Received(SERVER, StorageReply(request, result, text))


def given(request: int, parts: Sequence[bytes], attachments: Sequence[bytes]) -> Received:
    message = StorageReply(request, StorageResult.OK, "", sizes_of(parts), 0, True)
    return Received(SERVER, message, [memoryview(each) for each in attachments])


def ended(commands: list[RequestsCommand]) -> list[tuple[StorageCall, object]]:
    return [(command.call, command.outcome) for command in commands if isinstance(command, CallEnded)]


VIEWS = [memoryview(part) for part in PARTS]


def test_shared_put_is_sent_with_its_memory_and_without_frames(requests: Requests) -> None:
    memory = Shared(*PARTS)
    call = PutCall(OBJECT, VIEWS, memory)
    assert requests.step([call], 0.0) == [SendRequest(PutObject(1, OBJECT, [6, 6], 0, True), [], memory)]
    assert ended(requests.step([reply(1)], 0.0)) == [(call, None)]


def test_put_that_cannot_be_shared_is_resent_with_frames(requests: Requests) -> None:
    call = PutCall(OBJECT, VIEWS, Shared(*PARTS))
    requests.step([call], 0.0)
    (say,) = requests.step([reply(1, StorageResult.UNSHARED)], 0.0)
    assert isinstance(say, SendRequest)
    assert say.message == PutObject(2, OBJECT, [6, 6], 0)
    assert b"".join(say.attachments) == b"picklebuffer"
    assert say.memory is None
    assert ended(requests.step([reply(2)], 0.0)) == [(call, None)]


def test_shared_get_announces_itself_and_returns_the_parts_unchanged(requests: Requests) -> None:
    call = GetCall(OBJECT)
    assert requests.step([call], 0.0) == [SendRequest(GetObject(1, OBJECT, 0.0, True))]
    assert ended(requests.step([given(1, PARTS, PARTS)], 0.0)) == [(call, PARTS)]


def test_get_with_a_lost_descriptor_is_repeated_for_frames(requests: Requests) -> None:
    call = GetCall(OBJECT)
    requests.step([call], 0.0)
    assert requests.step([given(1, PARTS, [])], 1.0) == [SendRequest(GetObject(2, OBJECT, 0.0))]
    answer = Received(SERVER, StorageReply(2, StorageResult.OK, "", [6, 6]), [memoryview(b"picklebuffer")])
    assert ended(requests.step([answer], 1.0)) == [(call, PARTS)]

from __future__ import annotations

import math
from typing import Any

import pytest

from scaler.errors import LimitError, ObjectLostError, ProtocolError, RefusedError, UnreachableError
from scaler.ids import IdFactory
from scaler.net.connection import Broken, ConnectionRefused, Received, Resumed, Welcomed
from scaler.object_storage.body import views_of
from scaler.object_storage.messages import GetObject, PutObject, StorageReply, StorageResult
from scaler.object_storage.requests import (
    PUT_WINDOW_BYTES,
    CallEnded,
    GetCall,
    PutCall,
    Requests,
    RequestsCommand,
    SendRequest,
    StorageCall,
)
from scaler.protocol import messages as m

SERVER = bytes(8)
OBJECT = IdFactory(b"client-A").object()
OTHER = IdFactory(b"client-B").object()
WELCOMED = Welcomed(m.Welcome(False, 1, 60.0, 2.0))


def reply(request: int, result: StorageResult = StorageResult.OK, text: str = "") -> Received:
    return Received(SERVER, StorageReply(request, result, text))


def content(request: int, *frames: bytes, parts: list[int], offset: int = 0) -> Received:
    message = StorageReply(request, StorageResult.OK, "", parts, offset)
    return Received(SERVER, message, [memoryview(frame) for frame in frames])


def said(commands: list[RequestsCommand]) -> list[Any]:
    return [command.message for command in commands if isinstance(command, SendRequest)]


def ended(commands: list[RequestsCommand]) -> list[tuple[StorageCall, object]]:
    return [(command.call, command.outcome) for command in commands if isinstance(command, CallEnded)]


def put_of(object_id: bytes, parts: list[bytes]) -> PutCall:
    return PutCall(object_id, views_of(parts))


@pytest.fixture
def requests() -> Requests:
    requests = Requests("tcp://storage:1", 10.0, 0.0)
    requests.step([WELCOMED], 0.0)
    return requests


def test_put_is_sent_and_completes_when_answered(requests: Requests) -> None:
    call = put_of(OBJECT, [b"ab", b"c"])
    commands = requests.step([call], 0.0)
    assert said(commands) == [PutObject(1, OBJECT, [2, 1], 0)]
    assert requests.step([], 0.0) == []
    assert ended(requests.step([reply(1)], 0.0)) == [(call, None)]


def test_get_completes_once_all_bytes_have_arrived(requests: Requests) -> None:
    call = GetCall(OBJECT)
    requests.step([Broken(SERVER), call], 0.0)
    assert said(requests.step([Resumed(SERVER)], 1.0)) == [GetObject(1, OBJECT, 0.0)]
    assert requests.step([content(1, b"ab", parts=[3, 2])], 0.0) == []
    assert ended(requests.step([content(1, b"cde", parts=[], offset=2)], 0.0)) == [(call, [b"abc", b"de"])]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (StorageResult.MISSING, ObjectLostError),
        (StorageResult.FULL, LimitError),
        (StorageResult.TOO_LARGE, LimitError),
        (StorageResult.INVALID, ProtocolError),
    ],
)
def test_refusals_are_errors_with_the_storages_text(
    requests: Requests, result: StorageResult, error: type[Exception]
) -> None:
    requests.step([GetCall(OBJECT), put_of(OBJECT, [b"x"])], 0.0)
    outcomes = [outcome for _, outcome in ended(requests.step([reply(1, result, "why"), reply(2, result, "why")], 0.0))]
    assert [type(outcome) for outcome in outcomes] == [error, error]
    assert all("why" in str(outcome) for outcome in outcomes)


def test_large_puts_are_sent_window_by_window(requests: Requests) -> None:
    chunk = bytes(m.MAX_ATTACHED_BYTES)
    call = put_of(OBJECT, [chunk] * 4)
    messages = said(requests.step([call], 0.0))
    assert [message.offset for message in messages] == [0, m.MAX_ATTACHED_BYTES]
    assert len(messages) * m.MAX_ATTACHED_BYTES == PUT_WINDOW_BYTES
    assert [message.offset for message in said(requests.step([reply(2)], 0.0))] == [2 * m.MAX_ATTACHED_BYTES]
    requests.step([reply(1)], 0.0)
    requests.step([reply(4)], 0.0)
    assert ended(requests.step([reply(3)], 0.0)) == [(call, None)]


def test_storage_without_the_session_gets_all_unfinished_calls_again(requests: Requests) -> None:
    chunk = bytes(m.MAX_ATTACHED_BYTES)
    put, get = put_of(OBJECT, [chunk, chunk, chunk]), GetCall(OTHER)
    requests.step([put, get], 0.0)
    requests.step([reply(2), content(1, b"half", parts=[8])], 1.0)
    messages = said(requests.step([Broken(SERVER), WELCOMED], 4.0))
    assert [(type(message).__name__, message.request) for message in messages] == [
        ("GetObject", 5),
        ("PutObject", 6),
        ("PutObject", 7),
    ]
    assert (messages[0].offset, messages[1].offset) == (4, 0)
    late = [reply(3), content(1, b"late", parts=[], offset=4)]  # from the old session, so it does not count
    assert ended(requests.step(late, 4.0)) == []
    answers = [content(5, b"full", parts=[8], offset=4), reply(6), reply(7)]
    outcomes = ended(requests.step(answers, 5.0)) + ended(requests.step([reply(8)], 5.0))
    assert outcomes == [(get, [b"halffull"]), (put, None)]


def test_calls_fail_when_the_storage_is_unreachable_too_long(requests: Requests) -> None:
    put, get = put_of(OBJECT, [b"x"]), GetCall(OBJECT)
    requests.step([put], 0.0)
    requests.step([Broken(SERVER)], 3.0)
    requests.step([get], 8.0)
    assert requests.wake_at == 13.0
    assert requests.step([], 12.9) == []
    ((call, error),) = ended(requests.step([], 13.0))
    assert (call, type(error)) == (put, UnreachableError)
    assert "tcp://storage:1" in str(error)
    assert requests.wake_at == 18.0
    ((call, error),) = ended(requests.step([], 18.0))
    assert (call, type(error)) == (get, ObjectLostError)
    assert requests.wake_at == math.inf


def test_refused_peers_calls_fail_at_once_now_and_later(requests: Requests) -> None:
    requests.step([GetCall(OBJECT)], 0.0)
    refused = ConnectionRefused(m.Refused(m.RefusalReason.VERSION, "versions differ"))
    outcomes = ended(requests.step([Broken(SERVER), refused], 1.0))
    assert [type(outcome) for _, outcome in outcomes] == [RefusedError]
    outcomes = ended(requests.step([put_of(OBJECT, [b"x"])], 9.0))
    assert [type(outcome) for _, outcome in outcomes] == [RefusedError]

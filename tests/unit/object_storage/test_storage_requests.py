from __future__ import annotations

from typing import Any

import pytest

from scaler.errors import LimitError, ObjectLostError, ProtocolError, RefusedError, UnreachableError
from scaler.ids import IdFactory
from scaler.net.connection import Broken, ConnectionRefused, Received, Resumed, Welcomed
from scaler.object_storage.requests import PUT_WINDOW_BYTES, Command, Ended, Requests, Say
from scaler.protocol.messages import (
    MAX_CHUNK_BYTES,
    ForgetObjects,
    ForgetOwner,
    GetObject,
    Heartbeat,
    LinkObject,
    PutObject,
    RefusalReason,
    Refused,
    StatStorage,
    StorageReply,
    StorageResult,
    StorageStatus,
    Welcome,
)

SERVER = bytes(8)
OBJECT = IdFactory(b"client-A").object()
OTHER = IdFactory(b"client-B").object()
WELCOMED = Welcomed(Welcome(False, 1, 60.0, 2.0))


def reply(request: int, result: StorageResult = StorageResult.OK, text: str = "") -> Received:
    return Received(SERVER, StorageReply(request, result, text))


def content(request: int, *pieces: bytes, parts: list[int], offset: int = 0) -> Received:
    message = StorageReply(request, StorageResult.OK, "", parts, offset)
    return Received(SERVER, message, [memoryview(piece) for piece in pieces])


def said(commands: list[Command]) -> list[Any]:
    return [command.message for command in commands if isinstance(command, Say)]


def ended(commands: list[Command]) -> list[tuple[int, object]]:
    return [(command.ticket, command.outcome) for command in commands if isinstance(command, Ended)]


@pytest.fixture
def requests() -> Requests:
    requests = Requests("tcp://storage:1", 10.0, 0.0)
    requests.step([WELCOMED], 0.0)
    return requests


def test_a_put_is_said_and_ends_when_it_is_answered(requests: Requests) -> None:
    ticket = requests.put(OBJECT, [b"ab", b"c"], 0.0)
    commands = requests.step([], 0.0)
    assert said(commands) == [PutObject(1, OBJECT, [2, 1], 0)]
    assert requests.step([], 0.0) == []
    assert ended(requests.step([reply(1)], 0.0)) == [(ticket, None)]


def test_a_get_ends_when_all_its_bytes_have_come(requests: Requests) -> None:
    ticket = requests.get(OBJECT, 5.0, 0.0)
    assert said(requests.step([], 1.0)) == [GetObject(1, OBJECT, 4.0)]
    assert requests.step([content(1, b"ab", parts=[3, 2])], 0.0) == []
    assert ended(requests.step([content(1, b"cde", parts=[], offset=2)], 0.0)) == [(ticket, [b"abc", b"de"])]


def test_link_stat_and_forget_are_said(requests: Requests) -> None:
    link, stat = requests.link(OTHER, OBJECT, 0.0), requests.stat(0.0)
    requests.forget([OBJECT])
    requests.forget_owner(b"client-A")
    assert said(requests.step([], 0.0)) == [
        ForgetObjects([OBJECT]),
        ForgetOwner(b"client-A"),
        LinkObject(1, OTHER, OBJECT),
        StatStorage(2),
    ]
    status = StorageStatus(2, 1, 2, 3, 4)
    assert ended(requests.step([reply(1), Received(SERVER, status)], 0.0)) == [(link, None), (stat, status)]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (StorageResult.MISSING, ObjectLostError),
        (StorageResult.FULL, LimitError),
        (StorageResult.TOO_LARGE, LimitError),
        (StorageResult.INVALID, ProtocolError),
    ],
)
def test_refusals_are_errors_that_carry_the_storage_s_text(
    requests: Requests, result: StorageResult, error: type[Exception]
) -> None:
    requests.put(OBJECT, [b"x"], 0.0)
    requests.get(OBJECT, 0.0, 0.0)
    requests.step([], 0.0)
    outcomes = [outcome for _, outcome in ended(requests.step([reply(1, result, "why"), reply(2, result, "why")], 0.0))]
    assert [type(outcome) for outcome in outcomes] == [error, error]
    assert all("why" in str(outcome) for outcome in outcomes)


def test_pieces_after_a_refused_one_are_not_said(requests: Requests) -> None:
    chunk = bytes(MAX_CHUNK_BYTES)
    first = requests.put(OBJECT, [chunk] * 4, 0.0)
    second = requests.put(OTHER, [b"x"], 0.0)
    assert len(said(requests.step([], 0.0))) == 2
    commands = requests.step([reply(1, StorageResult.FULL)], 0.0)
    assert [ticket for ticket, _ in ended(commands)] == [first]
    assert said(commands) == [PutObject(3, OTHER, [1], 0)]
    assert ended(requests.step([reply(2, StorageResult.MISSING), reply(3)], 0.0)) == [(second, None)]


def test_large_puts_are_said_window_by_window(requests: Requests) -> None:
    chunk = bytes(MAX_CHUNK_BYTES)
    ticket = requests.put(OBJECT, [chunk] * 4, 0.0)
    messages = said(requests.step([], 0.0))
    assert [message.offset for message in messages] == [0, MAX_CHUNK_BYTES]
    assert len(messages) * MAX_CHUNK_BYTES == PUT_WINDOW_BYTES
    assert [message.offset for message in said(requests.step([reply(2)], 0.0))] == [2 * MAX_CHUNK_BYTES]
    requests.step([reply(1)], 0.0)
    requests.step([reply(4)], 0.0)
    assert ended(requests.step([reply(3)], 0.0)) == [(ticket, None)]


def test_nothing_is_said_while_the_storage_is_away_and_all_of_it_when_it_is_back(requests: Requests) -> None:
    requests.step([Broken(SERVER)], 0.0)
    requests.get(OBJECT, 0.0, 0.0)
    requests.forget([OTHER])
    assert requests.step([], 1.0) == []
    assert said(requests.step([Resumed(SERVER)], 2.0)) == [ForgetObjects([OTHER]), GetObject(1, OBJECT, 0.0)]


def test_a_resumed_session_repeats_nothing(requests: Requests) -> None:
    requests.put(OBJECT, [b"x"], 0.0)
    requests.step([], 0.0)
    assert requests.step([Broken(SERVER), Resumed(SERVER)], 1.0) == []


def test_a_storage_that_has_forgotten_the_session_is_told_everything_again(requests: Requests) -> None:
    chunk = bytes(MAX_CHUNK_BYTES)
    put = requests.put(OBJECT, [chunk, chunk, chunk], 0.0)
    get = requests.get(OTHER, 9.0, 0.0)
    link = requests.link(OTHER, OBJECT, 0.0)
    requests.step([], 0.0)
    requests.step([reply(3), content(1, b"half", parts=[8])], 1.0)
    messages = said(requests.step([Broken(SERVER), WELCOMED], 4.0))
    assert [(type(message).__name__, message.request) for message in messages] == [
        ("GetObject", 6),
        ("LinkObject", 7),
        ("PutObject", 8),
        ("PutObject", 9),
    ]
    assert (messages[0].deadline_seconds, messages[2].offset) == (5.0, 0)
    late = [reply(4), content(1, b"late", parts=[], offset=4)]  # of the old session: counts for nothing
    assert ended(requests.step(late, 4.0)) == []
    answers = [content(6, b"12345678", parts=[8]), reply(7), reply(8), reply(9), reply(10)]
    outcomes = ended(requests.step([*answers[:2], *answers[2:4]], 5.0)) + ended(requests.step(answers[4:], 5.0))
    assert outcomes == [(get, [b"12345678"]), (link, None), (put, None)]


def test_calls_fail_when_the_storage_is_away_for_too_long(requests: Requests) -> None:
    put = requests.put(OBJECT, [b"x"], 0.0)
    requests.step([Broken(SERVER)], 3.0)
    get = requests.get(OBJECT, 100.0, 8.0)
    assert requests.next_deadline() == 13.0
    assert requests.step([], 12.9) == []
    ((ticket, error),) = ended(requests.step([], 13.0))
    assert (ticket, type(error)) == (put, UnreachableError)
    assert "tcp://storage:1" in str(error)
    assert requests.next_deadline() == 18.0
    ((ticket, error),) = ended(requests.step([], 18.0))
    assert (ticket, type(error)) == (get, ObjectLostError)
    assert requests.next_deadline() is None


def test_nobody_waits_for_ever_for_a_storage_that_was_never_there() -> None:
    requests = Requests("tcp://nowhere:1", 10.0, 5.0)
    requests.put(OBJECT, [b"x"], 6.0)
    assert requests.next_deadline() == 16.0
    assert len(ended(requests.step([], 16.0))) == 1


def test_a_refused_peer_s_calls_fail_at_once_now_and_later(requests: Requests) -> None:
    requests.get(OBJECT, 5.0, 0.0)
    refused = ConnectionRefused(Refused(RefusalReason.VERSION, "versions differ"))
    outcomes = ended(requests.step([Broken(SERVER), refused], 1.0))
    assert [type(outcome) for _, outcome in outcomes] == [RefusedError]
    requests.put(OBJECT, [b"x"], 9.0)
    assert [type(outcome) for _, outcome in ended(requests.step([], 9.0))] == [RefusedError]


def test_an_object_with_too_many_parts_is_refused_before_anything_is_sent(requests: Requests) -> None:
    with pytest.raises(LimitError, match="parts"):
        requests.put(OBJECT, [b""] * 100_001, 0.0)


def test_heartbeats_are_said_where_the_connector_leaves_them_to_its_user() -> None:
    requests = Requests("tcp://storage:1", 10.0, 0.0, pings=True)
    assert requests.next_deadline() is None
    assert said(requests.step([WELCOMED], 5.0)) == [Heartbeat(5.0)]
    assert requests.next_deadline() == 7.0
    assert said(requests.step([], 6.9)) == []
    assert said(requests.step([], 7.0)) == [Heartbeat(7.0)]
    assert said(requests.step([Broken(SERVER)], 9.0)) == []
    assert requests.next_deadline() is None
    assert said(requests.step([Resumed(SERVER)], 9.5)) == [Heartbeat(9.5)]

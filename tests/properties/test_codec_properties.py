"""Every message round-trips, and the codec decodes or rejects any bytes."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.extensions.environment.messages import EnvironmentState
from scaler.extensions.standby.messages import Following, JournalBytes, Promote, Promoted
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.ids import MAX_ATTEMPT
from scaler.monitor.messages import (
    ClusterRead,
    EndSession,
    Explain,
    Explained,
    FailedTask,
    FindHistory,
    FindObjects,
    FindTasks,
    HistoryFound,
    ListSessionTasks,
    MonitorEvents,
    MonitorStatus,
    ObjectsFound,
    Profiled,
    ReadCluster,
    ReadFailure,
    ReadLog,
    ReadProfile,
    SessionEnded,
    SessionTasks,
    TaskLog,
    TasksFound,
)
from scaler.object_storage.messages import (
    ChunksFetched,
    CopyObjects,
    FetchChunks,
    FetchesFailed,
    GetObject,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsUnwanted,
    ObjectsWanted,
    PushObjects,
    PutObject,
    SoleCopies,
    StatStorage,
    StorageReply,
    StorageResult,
    StorageStatus,
    StoreAddress,
    StoreReport,
    StoresChanged,
    UseBackend,
)
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.texts import escaped_lines

# Expensive inputs are short, because bugs depend on a row's contents rather than on the number of rows.
ID = st.binary(min_size=16, max_size=16)
OPTIONAL_ID = st.just(b"") | ID
PEER = st.binary(min_size=8, max_size=8)
IDS = st.lists(ID, max_size=40)
DATA = st.binary(max_size=40)
TEXT = st.text(max_size=12).map(escaped_lines)
NAME = st.from_regex(r"[a-z_][a-z0-9_.]{0,6}", fullmatch=True)
SECONDS = st.floats(0, 1e9)
PERCENT = st.floats(0, 1e6)
CLOCK = st.floats(allow_nan=False, allow_infinity=False)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
LIMIT = st.integers(-1, 2**62)
AMOUNT = st.floats(0, 1e9, exclude_min=True)
OFFERS = st.dictionaries(NAME, st.none() | AMOUNT, max_size=4)
NEEDS = st.dictionaries(NAME, st.just(0.0) | AMOUNT, max_size=4).map(lambda needs: tuple(sorted(needs.items())))
ATTEMPT = st.integers(1, MAX_ATTEMPT)
U16 = st.integers(0, 65_535)
NUMBERS = st.lists(U64, max_size=4)
FUNCTIONS = st.lists(st.tuples(ID, DATA), max_size=3)
SPEC = st.builds(
    m.Spec,
    function=ID,
    serializer=OPTIONAL_ID,
    needs=NEEDS,
    priority=st.integers(-(2**63), 2**63 - 1),
    retries=U32,
    retry_on=DATA,
    timeout_seconds=SECONDS,
    profiling=st.booleans(),
    stream_output=st.booleans(),
    deliver=st.booleans(),
    name=TEXT,
    parent=OPTIONAL_ID,
    code=OPTIONAL_ID,
    packages=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    context=TEXT,
    environment=OPTIONAL_ID,
)
FROM_WORKERS = {m.Outcome.EXCEPTION_TO_RETRY, m.Outcome.NOT_STARTED, m.Outcome.OUT_OF_MEMORY, m.Outcome.INPUT_MISSING}
FINAL = st.sampled_from(sorted(set(m.Outcome) - FROM_WORKERS))


@st.composite
def columns(draw: st.DrawFn, /, optional: tuple[str, ...] = (), **kinds: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw columns of equal length by name. Columns in `optional` may be empty instead."""
    count = draw(st.integers(0, 6))
    kinds = {"ids": ID, **kinds}
    drawn = {name: draw(st.lists(kind, min_size=count, max_size=count)) for name, kind in kinds.items()}
    for name in optional:
        if draw(st.booleans()):
            drawn[name] = []
    return drawn


def rows(of: Any, **kinds: Any) -> st.SearchStrategy[Any]:
    return st.builds(lambda spec, drawn: of(spec=spec, **drawn), SPEC, columns(**kinds))


PROFILE: dict[str, Any] = {"duration_us": U64, "cpu_us": U64, "peak_bytes": U64, "optional": ("cpu_us", "peak_bytes")}
TASKS = rows(
    m.TaskGroup,
    payloads=DATA,
    references=st.lists(ID, max_size=3).map(tuple),
    labels=st.just(()) | st.tuples(DATA, DATA),
    optional=("references", "labels"),
)
ATTEMPTS = rows(
    m.RunGroup, payloads=DATA, attempts=ATTEMPT, inputs=st.lists(DATA, max_size=3).map(tuple), optional=("inputs",)
)
DETAILS = (
    st.none()
    | st.builds(m.ClientDetails, TEXT)
    | st.builds(m.WorkerDetails, TEXT, TEXT, U32, U32, OFFERS)
    | st.builds(m.ManagerDetails, TEXT, TEXT, max_slots=LIMIT, unit_slots=U32, capabilities=OFFERS, fixed=st.booleans())
    | st.builds(m.StoreDetails, TEXT, TEXT, LIMIT)
)
PROCESSOR = st.builds(
    m.ProcessorStatus, U32, PERCENT, U64, st.booleans(), st.booleans(), OPTIONAL_ID, running_seconds=SECONDS
)
USE = st.builds(m.FunctionUse, TEXT, U64, U64, U64)
SESSION = st.builds(m.SessionRow, PEER, TEXT, TEXT, st.booleans(), TEXT, U64, U64, U64, U64, SECONDS)
UNIT = st.builds(m.UnitStatus, TEXT, st.sampled_from(m.UnitState), U32, SECONDS, TEXT)

EVERY: dict[type[Any], st.SearchStrategy[Any]] = {
    m.Hello: st.builds(
        m.Hello, st.sampled_from(m.Role), st.booleans(), U32, TEXT, TEXT, TEXT, TEXT, U32, details=DETAILS, epoch=U64
    ),
    m.Welcome: st.builds(m.Welcome, st.booleans(), U64, SECONDS, SECONDS, TEXT, LIMIT, epoch=U64),
    m.Refused: st.builds(m.Refused, st.sampled_from(m.RefusalReason), TEXT),
    m.Goodbye: st.builds(m.Goodbye, TEXT),
    m.Acknowledge: st.builds(m.Acknowledge),
    m.Submit: st.builds(m.Submit, FUNCTIONS, st.lists(TASKS, max_size=3), U64, U64),
    m.WorkerReport: columns(attempts=ATTEMPT, suspended=st.booleans(), once=st.booleans()).map(
        lambda drawn: m.WorkerReport(**drawn)
    ),
    m.ReleaseResults: st.builds(m.ReleaseResults, st.lists(U64, max_size=4)),
    m.AcknowledgeResults: st.builds(m.AcknowledgeResults, U64),
    m.Cancel: st.builds(m.Cancel, IDS),
    m.Clear: st.builds(m.Clear),
    m.Pin: st.builds(m.Pin, IDS),
    m.Release: st.builds(m.Release, IDS),
    m.Finished: st.builds(
        lambda number, drawn: m.Finished(number=number, **drawn), U64, columns(outcomes=FINAL, payloads=DATA, **PROFILE)
    ),
    m.Run: st.builds(m.Run, FUNCTIONS, st.lists(ATTEMPTS, max_size=3)),
    m.ForgetFunctions: st.builds(m.ForgetFunctions, IDS),
    m.Started: st.builds(m.Started, IDS) | columns(began_us=U64, lanes=U16).map(lambda drawn: m.Started(**drawn)),
    m.Recall: st.builds(
        lambda kill, preempt, drawn: m.Recall(kill=kill, preempt=preempt, **drawn),
        st.booleans(),
        st.booleans(),
        columns(attempts=ATTEMPT),
    ),
    m.Returned: columns(attempts=ATTEMPT, started=st.booleans()).map(lambda drawn: m.Returned(**drawn)),
    m.Printed: columns(are_stderr=st.booleans(), truncated_bytes=st.integers(0, 2**64 - 1), texts=DATA).map(
        lambda drawn: m.Printed(**drawn)
    ),
    m.Suspended: columns(attempts=ATTEMPT, suspended=st.booleans()).map(lambda drawn: m.Suspended(**drawn)),
    m.Done: columns(
        attempts=ATTEMPT,
        outcomes=st.sampled_from(m.Outcome),
        payloads=DATA,
        began_us=U64,
        lanes=U16,
        inputs_us=U64,
        inputs_bytes=U64,
        **{**PROFILE, "optional": (*PROFILE["optional"], "inputs_us", "inputs_bytes")},
    ).map(lambda drawn: m.Done(**drawn)),
    m.Output: st.builds(m.Output, ID, st.booleans(), DATA),
    m.WorkerHeartbeat: st.builds(
        m.WorkerHeartbeat,
        CLOCK,
        PERCENT,
        U64,
        U32,
        SECONDS,
        st.lists(PROCESSOR, max_size=3),
        CLOCK,
        SECONDS,
        CLOCK,
        rss_peak_bytes=U64,
        functions=st.lists(USE, max_size=3),
    ),
    m.Heartbeat: st.builds(m.Heartbeat, CLOCK),
    m.HeartbeatEcho: st.builds(m.HeartbeatEcho, CLOCK, CLOCK),
    m.Named: st.builds(m.Named, TEXT),
    m.Drain: st.builds(m.Drain, TEXT),
    m.Relay: st.builds(m.Relay, PEER, DATA),
    m.RelayClosed: st.builds(m.RelayClosed, PEER),
    m.ShutdownCluster: st.builds(m.ShutdownCluster),
    m.ShutdownReply: st.builds(m.ShutdownReply, st.booleans(), TEXT),
    m.RestartWorkers: st.builds(m.RestartWorkers, st.lists(PEER, max_size=3), st.booleans()),
    m.WorkersRestarted: st.builds(m.WorkersRestarted, st.lists(PEER, max_size=3), TEXT),
    m.Shutdown: st.builds(m.Shutdown, TEXT),
    m.ManagerStatus: st.builds(m.ManagerStatus, CLOCK, st.lists(UNIT, max_size=3), TEXT),
    m.Desired: st.builds(m.Desired, U32, st.lists(TEXT, max_size=3), TEXT, st.lists(TEXT, max_size=3)),
    MonitorStatus: st.builds(MonitorStatus, DATA),
    MonitorEvents: st.builds(MonitorEvents, DATA),
    Explain: st.builds(Explain, ID),
    Explained: st.builds(Explained, ID, TEXT),
    ReadLog: st.builds(ReadLog, ID),
    TaskLog: st.builds(TaskLog, ID, DATA, DATA, U64, DATA),
    ReadFailure: st.builds(ReadFailure, ID),
    FailedTask: st.builds(FailedTask, ID, FUNCTIONS, st.lists(ATTEMPTS, max_size=1), TEXT),
    FindTasks: st.builds(FindTasks, TEXT),
    TasksFound: st.builds(TasksFound, TEXT, DATA),
    m.Notice: st.builds(m.Notice, TEXT),
    m.Redeliver: st.builds(m.Redeliver, IDS),
    m.ListSessions: st.builds(m.ListSessions),
    m.SessionsListed: st.builds(m.SessionsListed, st.lists(SESSION, max_size=3)),
    ListSessionTasks: st.builds(ListSessionTasks, PEER, U64),
    SessionTasks: st.builds(
        lambda session, first, total, drawn: SessionTasks(session, first, total, **drawn),
        PEER,
        U64,
        U64,
        columns(outcomes=st.integers(0, 255), names=DATA, keys=DATA, tags=DATA),
    ),
    EndSession: st.builds(EndSession, PEER, st.booleans()),
    SessionEnded: st.builds(SessionEnded, PEER, U64, TEXT),
    m.ObjectsMissing: st.builds(m.ObjectsMissing, IDS),
    m.ObjectsRestored: st.builds(m.ObjectsRestored, IDS, IDS, TEXT),
    PutObject: st.builds(PutObject, U64, ID, st.lists(U64, max_size=4), U64),
    GetObject: st.builds(GetObject, U64, ID, SECONDS, st.booleans(), U64, U64),
    m.ForgetObjects: st.builds(m.ForgetObjects, IDS),
    m.ForgetOwner: st.builds(m.ForgetOwner, PEER),
    StatStorage: st.builds(StatStorage, U64),
    StorageReply: st.builds(StorageReply, U64, st.sampled_from(StorageResult), TEXT, st.lists(U64, max_size=4), U64),
    m.TasksProfiled: st.builds(m.TasksProfiled, ID, DATA),
    m.PackagesDiffer: st.builds(m.PackagesDiffer, ID, TEXT, TEXT),
    ReadProfile: st.builds(ReadProfile, st.just(b"") | ID, TEXT),
    Profiled: st.builds(Profiled, st.just(b"") | ID, TEXT, DATA),
    FindObjects: st.builds(FindObjects, IDS, U32),
    ObjectsFound: st.builds(ObjectsFound, IDS, U32, DATA),
    StorageStatus: st.builds(StorageStatus, U64, U64, U64, U64, U64, U64, U64, TEXT, U64, U64),
    m.UseStore: st.builds(m.UseStore, st.just(b"") | PEER),
    ObjectsHeld: columns(sizes=U64).flatmap(
        lambda drawn: st.builds(ObjectsHeld, in_backend=st.booleans(), **{k: st.just(v) for k, v in drawn.items()})
    ),
    UseBackend: st.builds(UseBackend, TEXT, DATA),
    StreamValue: st.builds(StreamValue, ID, ID, PEER, U64, U32, st.booleans(), DATA),
    StreamTaken: st.builds(StreamTaken, ID, U64, U64, PEER),
    EnvironmentState: st.builds(EnvironmentState, ID, st.booleans(), TEXT),
    Following: st.builds(Following, TEXT, U64, U64, SECONDS, st.booleans()),
    JournalBytes: st.builds(JournalBytes, SECONDS, SECONDS, DATA),
    Promote: st.builds(Promote, st.booleans()),
    Promoted: st.builds(Promoted, U64, TEXT),
    m.JoinGang: st.builds(m.JoinGang, ID, TEXT, U32),
    m.GangFormed: st.builds(m.GangFormed, U32, st.lists(TEXT, max_size=4), U32),
    ObjectsDropped: st.builds(ObjectsDropped, IDS),
    ObjectsWanted: st.builds(ObjectsWanted, IDS),
    ObjectsUnwanted: st.builds(ObjectsUnwanted, IDS),
    ChunksFetched: columns(firsts=U32, counts=U32, sizes=U64).map(lambda drawn: ChunksFetched(**drawn)),
    FetchesFailed: columns(firsts=U32, sources=U32, unreachable=st.booleans()).map(
        lambda drawn: FetchesFailed(**drawn)
    ),
    StoreReport: st.builds(StoreReport, CLOCK, U64, U64, U64, U64, U64),
    FetchChunks: columns(sizes=U64, firsts=U32, counts=U32, sources=U32).map(lambda drawn: FetchChunks(**drawn)),
    ObjectsUnavailable: st.builds(ObjectsUnavailable, IDS, TEXT),
    SoleCopies: st.builds(SoleCopies, IDS),
    PushObjects: st.builds(PushObjects, IDS),
    StoresChanged: st.builds(
        StoresChanged, st.lists(st.builds(StoreAddress, U32, PEER, TEXT, TEXT, DATA), max_size=3), NUMBERS
    ),
    CopyObjects: columns(sizes=U64).map(lambda drawn: CopyObjects(**drawn)),
    m.PersistResults: columns().map(lambda drawn: m.PersistResults(**drawn)),
    ReadCluster: st.builds(ReadCluster),
    ClusterRead: st.builds(ClusterRead, DATA, DATA),
    m.Unanswered: st.builds(m.Unanswered, TEXT),
    FindHistory: st.builds(FindHistory, CLOCK, CLOCK),
    HistoryFound: st.builds(HistoryFound, CLOCK, CLOCK, DATA),
    m.WorkerLogged: st.builds(
        m.WorkerLogged, st.lists(st.builds(m.LogLine, CLOCK, TEXT, TEXT, TEXT, st.just(b"") | ID), max_size=3), U32
    ),
    m.ReadTable: st.builds(m.ReadTable, TEXT, TEXT, U32),
    m.TableRead: st.builds(m.TableRead, DATA),
    m.CallsReported: st.builds(
        m.CallsReported,
        st.lists(
            st.builds(m.CallReport, U64, TEXT, TEXT, U64, st.booleans(), U64, U64, U64, st.booleans()), max_size=3
        ),
    ),
}


def _numbered(message: Any, number: int) -> Any:
    message.number = number
    return message


EVERY |= {
    kind: st.builds(_numbered, drawn, U64) for kind, drawn in EVERY.items() if issubclass(kind, m.Inquiry | m.Reply)
}


def answer_or_refuse(body: bytes) -> m.Message | None:
    """Decode within a second. The test fails on any result except a message or a rejection."""
    began = time.thread_time()
    try:
        return decode(body)
    except ProtocolError:
        return None
    finally:
        assert time.thread_time() - began < 1.0


def test_every_message_is_covered_here() -> None:
    assert set(EVERY) == set(m.NUMBERS)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_message_round_trips(kind: type[Any]) -> None:
    @settings(max_examples=settings().max_examples // 3)
    @given(EVERY[kind])
    def survives(message: m.Message) -> None:
        assert decode(encode(message)) == message

    survives()


@given(st.binary(max_size=256))
def test_any_bytes_are_answered_or_refused(body: bytes) -> None:
    answer_or_refuse(body)


@pytest.mark.parametrize("kind", [m.Hello, m.Submit, m.Run, m.Done, m.Finished, m.WorkerHeartbeat, m.ManagerStatus])
def test_random_bit_flips_never_break_the_codec(kind: type[Any]) -> None:
    # Readers fail on wrong pointers and lengths, so this tries many cheap changes of whole words in one rich body.
    chance = random.Random(kind.__name__)
    body = encode(RICH[kind])
    for _ in range(500):
        changed = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(0, len(body) // 8) * 8
            word = chance.choice(
                [
                    chance.randbytes(8),
                    bytes(8),
                    changed[(other := chance.randrange(0, len(body) // 8) * 8) : other + 8],
                    (int.from_bytes(changed[place : place + 8], "little") ^ (1 << chance.randrange(64))).to_bytes(
                        8, "little"
                    ),
                ]
            )
            changed[place : place + 8] = word
        message = answer_or_refuse(bytes(changed))
        if message is not None:
            assert decode(encode(message)) == message


_ID = bytes(range(16))
_SPEC = m.Spec(_ID, _ID, (("cpu", 1.0), ("gpu", 0.0)), 5, 1, b"retry", 2.5, True, True, False, "name", _ID, 2)
RICH: dict[type[Any], m.Message] = {
    m.Hello: m.Hello(
        m.Role.WORKER, True, 1, "1", "3.11", "3.1", "host", 9, m.WorkerDetails("m", "u", 4, 9, {"a": 2.0})
    ),
    m.Submit: m.Submit([(_ID, b"f")], [m.TaskGroup(_SPEC, [_ID] * 3, [b"a"] * 3, [(_ID,), (), (_ID, _ID)])] * 2, 4),
    m.Run: m.Run([(_ID, b"f")], [m.RunGroup(_SPEC, [_ID] * 3, [1, 2, 3], [b"a"] * 3, [(b"x",), (), (b"y", b"z")])] * 2),
    m.Done: m.Done([_ID] * 3, [1, 2, 3], [0, 1, 2], [b"a"] * 3, [1, 2, 3], [4, 5, 6], [7, 8, 9]),
    m.Finished: m.Finished(1, [_ID] * 3, [0, 1, 3], [b"a"] * 3, [1, 2, 3], [4, 5, 6], [7, 8, 9]),
    m.WorkerHeartbeat: m.WorkerHeartbeat(
        1.0, 2.0, 3, 4, 5.0, [m.ProcessorStatus(1, 2.0, 3, True, False, _ID, 4.0)] * 2
    ),
    m.ManagerStatus: m.ManagerStatus(1.0, [m.UnitStatus("u", m.UnitState.FAILED, 1, 2.0, "why")] * 2, "no quota"),
}

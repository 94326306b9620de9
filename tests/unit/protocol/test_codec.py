"""Accepted, rejected, and limited input of the codec. Invalid bodies are built like a peer in another language."""

from __future__ import annotations

import math
import struct
import tracemalloc
from importlib.resources import files
from typing import Any

import capnp
import pytest

from scaler.errors import LimitError, ProtocolError
from scaler.monitor.messages import MonitorStatus
from scaler.object_storage.messages import PutObject
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from tests.unit.protocol.schema import schema

SCHEMA = files("scaler.protocol").joinpath("scaler.capnp")
Body: Any = capnp.load(str(SCHEMA)).Body

ID = bytes(range(16))
OTHER = bytes(range(16, 32))
SPEC = m.Spec(function=ID)
WIRE_SPEC: dict[str, Any] = {"function": ID, "retries": 3, "deliver": True}


def said_by_a_peer(kind: str, **fields: Any) -> bytes:
    builder = Body.new_message()
    part = builder.init(kind)
    for name, value in fields.items():
        setattr(part, name, value)
    body: bytes = builder.to_bytes()
    return body


def done(**changed: Any) -> bytes:
    right = {"ids": ID, "attempts": [1], "outcomes": [0], "payloadSizes": [2], "payloads": b"\x80x", "durationUs": [1]}
    return said_by_a_peer("done", **(right | changed))


def group(**changed: Any) -> dict[str, Any]:
    return {"spec": WIRE_SPEC, "ids": ID, "payloadSizes": [0], "attempts": [1]} | changed


def run(**changed: Any) -> bytes:
    return said_by_a_peer("run", groups=[group(**changed)])


def submit(**changed: Any) -> bytes:
    entry = group(**changed)
    del entry["attempts"]
    return said_by_a_peer("submit", groups=[entry])


def spec(**changed: Any) -> bytes:
    return submit(spec=WIRE_SPEC | changed)


def hello(**changed: Any) -> bytes:
    return said_by_a_peer("hello", **changed)


def worker(offers: list[dict[str, Any]]) -> bytes:
    return hello(workerDetails={"managerId": "m", "unitId": "u", "capabilities": offers})


def test_understands_a_peer_in_another_language() -> None:
    assert decode(done()) == m.Done([ID], [1], [0], [b"\x80x"], [1])
    assert decode(spec()) == m.Submit([], [m.TaskGroup(SPEC, [ID], [b""])])
    assert decode(worker([{"name": "linux"}, {"name": "gpu", "amount": 2.0}])) == m.Hello(
        m.Role.CLIENT, False, 0, "", "", "", "", 0, m.WorkerDetails("m", "u", 0, 0, {"linux": None, "gpu": 2.0})
    )


def test_schema_matches_the_declarations() -> None:
    assert SCHEMA.read_text() == schema(), "run python -m tests.unit.protocol.schema > scaler/protocol/scaler.capnp"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"", "malformed message", id="nothing"),
        pytest.param(b"\xff" * 64, "malformed message", id="no message"),
        pytest.param(done()[:-8], "malformed", id="cut short"),
        pytest.param(done(ids=ID[:15]), "multiple of the id size, 16", id="id too short"),
        pytest.param(
            done(ids=ID + OTHER),
            "attempts: a column of length 1 does not match the ids: 2",
            id="two ids, one of all else",
        ),
        pytest.param(done(attempts=[]), "attempts: a column of length 0 does not match the ids: 1", id="no attempt"),
        pytest.param(done(attempts=[0]), "attempts: 0 is not allowed", id="attempt 0"),
        pytest.param(done(outcomes=[250]), "outcomes: 250 is not allowed", id="unknown outcome"),
        pytest.param(
            done(payloadSizes=[]), "payloads: a column of length 0 does not match the ids: 1", id="no payload"
        ),
        pytest.param(done(payloadSizes=[3]), "payloads: length 2 does not match the sizes", id="payload too short"),
        pytest.param(said_by_a_peer("finished", ids=ID, outcomes=[10]), "10 is not allowed", id="a worker's outcome"),
        pytest.param(
            run(inputCounts=[1]), "inputs: a column of length 0 does not match the ids: 1", id="input missing"
        ),
        pytest.param(
            run(inputs=b"x", inputSizes=[1]),
            "inputs: a column of length 1 does not match the ids: 0",
            id="input without count",
        ),
        pytest.param(submit(referenceCounts=[2**32 - 1]), "count as more than MAX_ROWS", id="4 billion references"),
        pytest.param(spec(function=b""), "an id has 16 bytes", id="no function"),
        pytest.param(spec(timeoutSeconds=math.nan), "not a number of seconds", id="timeout nan"),
        pytest.param(spec(needs=[{"name": "b"}, {"name": "a"}]), "out of order", id="needs out of order"),
        pytest.param(spec(needs=[{"name": "a", "amount": math.nan}]), "need a=nan", id="needs nan"),
        pytest.param(worker([{"name": "a"}, {"name": "a"}]), "twice", id="offers twice"),
        pytest.param(hello(role=77), "unknown Role 77", id="unknown role"),
        pytest.param(hello(managerDetails={"maxConcurrency": -2}), "neither a limit", id="limit -2"),
        pytest.param(said_by_a_peer("heartbeat", sentAt=math.nan), "clock", id="clock nan"),
        pytest.param(said_by_a_peer("relay", client=b"x"), "a peer id has 8 bytes", id="short peer id"),
        pytest.param(said_by_a_peer("returned", ids=ID, attempts=[1], started=[2]), "2 is not allowed", id="flag 2"),
    ],
)
def test_malformed_data_is_refused_with_a_readable_text(body: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(body)
    text = str(refused.value)
    assert says in text
    assert "\n" not in text
    assert len(text) < 300


def test_small_body_claiming_a_huge_list_costs_almost_nothing() -> None:
    # The word before a list of structs: 4 times its length, words of data, pointers in each. Now 2^29 - 1 of none.
    tag = (4).to_bytes(4, "little") + (0).to_bytes(2, "little") + (10).to_bytes(2, "little")
    body = submit()
    assert body.count(tag) == 1
    with pytest.raises(ProtocolError, match="malformed Submit"):
        decode(body.replace(tag, (0x7FFF_FFFC).to_bytes(8, "little")))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(said_by_a_peer("desired", drained=[{}] * 65_537), id="units"),
        pytest.param(said_by_a_peer("submit", groups=[{}] * 65_537), id="groups"),
        pytest.param(said_by_a_peer("run", functions=[{}] * 65_537), id="functions"),
    ],
)
def test_lists_that_use_more_memory_than_bytes_are_limited(body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"65537 .* more than MAX_ENTRIES|larger than MAX_CONTROL_BYTES"):
        decode(body)


def test_rejects_overlapping_parts_before_they_fill_memory() -> None:
    # A Run of 2,000 functions that all share one id and one payload of 64 kB: 128 MB out of 96 kB.
    count, words = 2_000, 8_000
    heads = []
    for entry in range(count):
        to_id = 2 * (count - entry) - 1
        heads += [16 << 35 | 2 << 32 | to_id << 2 | 1, 8 * words << 35 | 2 << 32 | (to_id + 1) << 2 | 1]
    tag = 2 << 48 | count << 2
    number = m.NUMBERS[m.Run]
    start = [1 << 48 | 1 << 32, number, 2 << 48, 2 * count << 35 | 7 << 32 | 1 << 2 | 1, 0, tag]
    rest = struct.pack(f"<{len(start) + len(heads)}Q", *start, *heads) + ID + bytes(8 * words)
    body = struct.pack("<2I", 0, len(rest) // 8) + rest
    with Body.from_bytes(body, traversal_limit_in_words=1 << 30) as reader:
        assert len(reader.run.functions[count - 1].payload) == 8 * words
    with pytest.raises(ProtocolError, match=r"malformed Run: functions: .*too much memory"):
        decode(body)


def test_rejects_a_list_of_empty_entries_quickly() -> None:
    def heartbeat(count: int) -> bytes:
        number, tag = m.NUMBERS[m.WorkerHeartbeat], count << 2
        words = [1 << 48 | 1 << 32, number, 1 << 48 | 4 << 32, 0, 0, 0, 0, 7 << 32 | 1, tag]
        return struct.pack(f"<2I{len(words)}Q", 0, len(words), *words)

    few = decode(heartbeat(3))
    assert isinstance(few, m.WorkerHeartbeat)
    assert len(few.processors) == 3
    with pytest.raises(ProtocolError, match=r"malformed WorkerHeartbeat: processors: .*too much memory"):
        decode(heartbeat(65_536))


def test_both_sides_limit_control_messages_to_one_mebibyte() -> None:
    almost = MonitorStatus(bytes(m.MAX_CONTROL_BYTES - 64))
    assert decode(encode(almost)) == almost
    with pytest.raises(LimitError, match=r"MonitorStatus of \d+ bytes is larger than MAX_CONTROL_BYTES \(1048576\)"):
        encode(MonitorStatus(bytes(m.MAX_CONTROL_BYTES)))
    with pytest.raises(ProtocolError, match="larger than MAX_CONTROL_BYTES"):
        decode(said_by_a_peer("monitorStatus", json=bytes(m.MAX_CONTROL_BYTES)))


def tasks(count: int, references: int = 0) -> m.TaskGroup:
    return m.TaskGroup(SPEC, [ID] * count, [b"x"] * count, [(OTHER,) * references] * count if references else [])


@pytest.mark.parametrize(
    ("most", "more"),
    [
        pytest.param(m.Submit([], [tasks(32_000)]), m.Submit([], [tasks(17_000)] * 2), id="tasks"),
        pytest.param(m.Submit([], [tasks(1)] * 900), m.Submit([], [tasks(1)] * 1_100), id="groups"),
        pytest.param(m.Submit([(ID, b"x")] * 2_000, []), m.Submit([(ID, b"x")] * 2_100, []), id="functions"),
        pytest.param(m.Submit([], [tasks(2, 100_000)]), m.Submit([], [tasks(3, 100_000)]), id="references"),
    ],
)
def test_submit_takes_at_most_one_iteration_of_the_scheduler(most: m.Submit, more: m.Submit) -> None:
    assert decode(encode(most)) == most
    with pytest.raises(ProtocolError, match=r"count as more than MAX_ROWS \(32768\)"):
        decode(encode(more))


def test_rejects_an_oversized_column_before_allocating() -> None:
    body = done(durationUs=list(range(1_000_000)))
    peaks_bytes = []
    for _ in range(2):  # the first time, it also creates the codec and imports modules
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="a column of length 1000000 does not match the ids: 1"):
            decode(body)
        peaks_bytes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks_bytes[1] < 100_000


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(m.Cancel([b"short"]), id="short id"),
        pytest.param(m.Done([ID], [1], [0], [], [0]), id="payload missing"),
        pytest.param(m.Done([ID], [1], [250], [b""], [0]), id="unknown outcome"),
        pytest.param(m.Finished(1, [ID], [m.Outcome.NOT_STARTED], [b""], [0]), id="a worker's outcome"),
        pytest.param(m.AcknowledgeResults(2**64), id="too large a number"),
        pytest.param(m.Heartbeat(math.inf), id="clock without end"),
        pytest.param(PutObject(1, ID, [-1], 0), id="negative size"),
    ],
)
def test_internal_errors_are_not_sent(message: m.Message) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        encode(message)


def test_long_durations_arrive_and_are_clamped_to_the_maximum() -> None:
    days = 12 * 86_400_000_000
    for sent, arrived in ((days, days), (2**70, 2**64 - 1)):
        done = decode(encode(m.Done([ID, OTHER], [1, 1], [0, 0], [b"", b""], [sent, 5])))
        finished = decode(encode(m.Finished(1, [ID, OTHER], [0, 0], [b"", b""], [sent, 5])))
        assert isinstance(done, m.Done)
        assert isinstance(finished, m.Finished)
        assert done.duration_us == finished.duration_us == [arrived, 5]

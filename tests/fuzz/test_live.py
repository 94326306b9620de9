"""A hostile peer with the same user, connected to a real cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.net.transport import MAX_MALFORMED_IN_A_ROW
from scaler.net.versions import own_hello
from scaler.protocol import messages as m
from scaler.protocol.codec import encode
from scaler.protocol.session import Header
from tests.fuzz import mutations
from tests.fuzz.conversations import Spoken, unpack
from tests.fuzz.corpora import bodies, seeds
from tests.fuzz.live import LivePeer

ENVELOPES = 20_000
SHORT_ENVELOPES = 4_000
MAX_GROWN_BYTES = 64 * 1024 * 1024
MAX_LOG_LINES = 100


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live") / "log"


@pytest.fixture(scope="module")
def combo(log: Path) -> Iterator[SchedulerClusterCombo]:
    with SchedulerClusterCombo(
        n_workers=2,
        per_worker_capabilities="good",
        protected=True,
        logging_paths=[str(log)],
        logging_level=logging.getLevelName(logging.WARNING),
    ) as made:
        yield made


def spoken(message: m.Message, sequence: int = 0, session: bytes = bytes(16)) -> Spoken:
    return Spoken(Header(m.PROTOCOL_VERSION, 0, session, sequence, 0).pack(), encode(message))


def scheduler_of(combo: SchedulerClusterCombo) -> psutil.Process:
    (found,) = (each for each in psutil.Process().children(recursive=True) if each.cmdline()[-1:] == ["scheduler"])
    return found


def test_thousand_invalid_messages_are_logged_once(combo: SchedulerClusterCombo, log: Path) -> None:
    session = b"nonsense" + bytes(8)
    details = m.WorkerDetails("nonsense", "unit", 1, 1, {})
    with LivePeer(combo.get_address()) as peer:
        peer.say([spoken(own_hello(m.Role.WORKER, details), session=session)])
        assert isinstance(peer.answer(), m.Welcome)
        relay = m.Relay(b"nested--", b"no message")
        peer.say([spoken(relay, number, session) for number in range(1, 1_001)])
        peer.say([spoken(m.WorkerHeartbeat(7.0, 0.0, 0, 0, 0.0), session=session)])
        while not isinstance(answer := peer.answer(), m.HeartbeatEcho):
            assert answer is not None
    assert log.read_text().count("peer 6e6f6e73656e7365: dropped: relayed malformed message") == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_mutated_envelopes_disturb_no_task_and_use_little_memory(
    combo: SchedulerClusterCombo, log: Path, soak: bool
) -> None:
    random = Random(13)
    doors = [(combo.get_address(), "scheduler"), (combo.get_object_storage_address(), "storage")]
    with Client(combo.get_address()) as client:
        assert client.map(abs, range(-200, 0)) == list(range(200, 0, -1))
        process = scheduler_of(combo)
        before_bytes = process.memory_info().rss
        said = 0
        futures = []
        while said < (ENVELOPES if soak else SHORT_ENVELOPES):
            address, name = random.choice(doors)
            data = mutations.conversation_of(random, random.choice(seeds(name)), bodies())
            conversation = unpack(data)
            if not conversation:
                continue
            with LivePeer(address) as peer:
                peer.converse(conversation)
            said += len(conversation)
            futures.append((said, client.submit_verbose(pow, (said, 2), capabilities={"good": None})))
        assert [future.result(30) for _, future in futures] == [number**2 for number, _ in futures]
        large = client.submit_verbose(bytes, (100_000,), capabilities={"good": None})
        assert large.result(30) == bytes(100_000)
        grown_bytes = process.memory_info().rss - before_bytes
        assert grown_bytes < MAX_GROWN_BYTES
        assert process.is_running()
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    assert len(lines) < MAX_LOG_LINES, lines[:: len(lines) // 40]


@pytest.mark.parametrize("door", ["scheduler", "storage"])
def test_exactly_five_malformed_messages_in_a_row_cut_a_peer(door: str, combo: SchedulerClusterCombo) -> None:
    address = combo.get_address() if door == "scheduler" else combo.get_object_storage_address()
    hello = own_hello(m.Role.CLIENT, m.ClientDetails("hostile") if door == "scheduler" else None)
    with Client(combo.get_address()) as client, LivePeer(address) as peer:
        session = b"hostile." + bytes(8)
        peer.say([spoken(hello, session=session)])
        assert isinstance(peer.answer(), m.Welcome)
        bad = spoken(m.Heartbeat(1.0), session=session)._replace(body=b"no body of any message")
        fine = spoken(m.Heartbeat(2.0), session=session)
        for _ in range(3):
            peer.say([bad] * (MAX_MALFORMED_IN_A_ROW - 1) + [fine])
            assert isinstance(peer.answer(), m.HeartbeatEcho)
        with suppress(OSError):
            peer.say([bad] * MAX_MALFORMED_IN_A_ROW)
        refused = peer.answer()
        assert isinstance(refused, m.Refused)
        assert refused.reason is m.RefusalReason.MALFORMED
        assert peer.answer() is None
        assert client.submit_verbose(pow, (2, 3), capabilities={"good": None}).result(20) == 8

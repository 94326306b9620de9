"""The monitors' port: recipients of reports, and the low cost of slow, frozen, and dead monitors."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scaler.config.servers import scheduler_model
from scaler.monitor.messages import Explain, Explained, FindTasks, ReadCluster
from scaler.monitor.reports.answers import (
    ANSWERING_SECONDS,
    BUSY,
    MAX_QUESTION_BYTES,
    MAX_UNTAKEN_BYTES,
    MAX_WAITING,
    MAX_WAITING_OF_KEY,
    UNTAKEN_SECONDS,
)
from scaler.monitor.reports.port import MAX_MONITORS, MAX_WAITING_BYTES, STATUS_SECONDS, Monitors
from scaler.monitor.rows import objects
from scaler.net.connection import LOCAL, Broken, Closed, Identity, LinkFigures, ListenerEvent, Opened, Received
from scaler.net.versions import own_hello
from scaler.protocol.messages import ClientDetails, Inquiry, Message, ReadTable, RefusalReason, Refused, Role, Welcome
from scaler.scheduler.core.changes import Action, Incident, ScalingDecided
from scaler.scheduler.core.commands import Input, MonitoringChanged, Perform
from scaler.scheduler.core.rooms import UNKNOWN, Rooms
from scaler.scheduler.rooms import Performers
from scaler.scheduler.server import SchedulerServer
from scaler.scheduler.vitals import Vitals
from tests.unit.scheduler.driver import Cluster

LEASE_SECONDS = 60.0
ALICE, BOB = b"alice...", b"bob....."


class Timer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """An event loop whose calls a test makes. Its clock is the cluster's."""

    def __init__(self, cluster: Cluster) -> None:
        self.soon: list[Callable[[], object]] = []
        self._timers: list[Timer] = []
        self._cluster = cluster
        self.seconds_per_look = 0.0
        """Duration of everything between two readings of the clock."""
        self._late_seconds = 0.0

    def time(self) -> float:
        self._late_seconds += self.seconds_per_look
        return self._cluster.now + self._late_seconds

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        self._timers.append(Timer(self.time() + delay, callback))
        return self._timers[-1]

    def ring(self) -> None:
        """Make the calls that are due."""
        for timer in [timer for timer in self._timers if timer.at <= self.time()]:
            self._timers.remove(timer)
            if not timer.is_cancelled:
                timer.callback()

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Recording:
    """A listener that records sent messages. waiting: bytes that a peer has not received."""

    addresses = ("tcp://127.0.0.1:1",)

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        self.waiting: Counter[bytes] = Counter()
        self.forgotten: list[bytes] = []

    def send(
        self, peer: bytes, message: Message, _attachments: Sequence[object] = (), _descriptors: Sequence[object] = ()
    ) -> None:
        self.sent.append((peer, message))

    def forget(self, peer: bytes, _reason: Message | None = None) -> None:
        self.forgotten.append(peer)

    def outbox_bytes(self, peer: bytes) -> int:
        return self.waiting[peer]

    def figures(self, _peer: bytes) -> LinkFigures:
        return LinkFigures()


class Port:
    """The monitors of a cluster, with a client and a worker in it."""

    def __init__(self, rooms: Rooms | None = None) -> None:
        self.cluster = Cluster()
        self.loop = HandLoop(self.cluster)
        self.listener = Recording()
        self.is_watched = False
        self.noted: list[object] = []
        self.incidents: list[Incident] = []
        self.config = scheduler_model()(bind_address="tcp://127.0.0.1:0")
        self.rooms = rooms or self.cluster.rooms
        self.observe = self.noted.extend
        self.performers = Performers(self.observe, self.incidents.append)
        self.state = self.cluster.state
        self.storage = SimpleNamespace(public_address="", ask=lambda: None)
        self.vitals = Vitals(cast("asyncio.AbstractEventLoop", self.loop))
        self.monitors = Monitors(cast("SchedulerServer", self))
        self.client = self.cluster.client()
        self.worker = self.cluster.worker("w")
        self.drain()

    def listen(self, _address: str, admit: Any, on_events: Any) -> Any:
        self.admit, self.on_events = admit, on_events
        return self.listener

    def welcome(self, _role: Role) -> Welcome:
        return Welcome(False, 1, LEASE_SECONDS, 2.0)

    def journal(self) -> tuple[int, str]:
        return 0, ""

    def step(self, inputs: Sequence[Input]) -> None:
        for item in inputs:
            assert isinstance(item, MonitoringChanged)
            self.is_watched = item.is_watched
        self.cluster.step(*inputs)

    def drain(self) -> None:
        self.monitors.add(fact for fact in self.cluster.take_facts() if type(fact) is not Action)

    def say(self, *events: ListenerEvent) -> None:
        self.on_events(list(events))

    def come(self, *peers: bytes) -> None:
        self.say(*(Opened(peer, own_hello(Role.MONITOR)) for peer in peers))

    def come_with_key(self, peer: bytes, key: str) -> None:
        self.say(Opened(peer, own_hello(Role.CLIENT), Identity(key, frozenset({Role.CLIENT}))))

    def answered(self, peer: bytes) -> list[tuple[str, Any]]:
        """Return the messages to a peer once all questions are answered."""
        while self.loop.soon:
            self.loop.turn()
        return self.told(peer)

    def report(self, seconds: float = STATUS_SECONDS) -> None:
        """Let time pass, by default the interval between two reports."""
        self.cluster.wait(seconds, alive=[self.client, self.worker])
        self.drain()
        self.loop.ring()

    def finish(self) -> bytes:
        (task,) = self.cluster.submit(self.client)
        self.cluster.finish(self.worker, task)
        return task

    def told(self, peer: bytes) -> list[tuple[str, Any]]:
        """Return and clear the messages to a monitor: kinds and documents."""
        found = [
            (type(message).__name__, json.loads(message.json) if hasattr(message, "json") else message)
            for name, message in self.listener.sent
            if name == peer
        ]
        self.listener.sent = [entry for entry in self.listener.sent if entry[0] != peer]
        return found


def numbered(question: Inquiry, number: int) -> Inquiry:
    question.number = number
    return question


def ids(document: Any) -> list[str]:
    return [row[0] for row in document["tasks"]["rows"]]


def test_new_monitor_gets_state_and_history_then_updates() -> None:
    port = Port()
    before = port.finish()
    port.come(ALICE)
    (status, state), (events, past) = port.told(ALICE)
    assert (status, events) == ("MonitorStatus", "MonitorEvents")
    assert state["tasks"]["ended"]["done"] == 1
    assert ids(past) == [before.hex()]
    after = port.finish()
    port.report()
    (status, state), (events, new) = port.told(ALICE)
    assert state["tasks"]["ended"]["done"] == 2
    assert ids(new) == [after.hex()]
    port.report()
    assert [kind for kind, _ in port.told(ALICE)] == ["MonitorStatus"]


def test_notes_are_read_newest_first_by_readers_of_all_keys() -> None:
    port = Port()
    port.monitors.add([Incident("joined", "worker 1", "", {}), ScalingDecided("grid", 3, 1, "7 tasks", {})])
    port.monitors.add(Incident("lost", f"worker {number}", "gone", {}) for number in range(3))
    port.come(ALICE)
    port.come_with_key(BOB, "bob")
    port.told(ALICE)

    def read(peer: bytes, table: str, search: str = "", most: int = 9) -> list[list[object]]:
        port.say(Received(peer, ReadTable(table, search, most)))
        ((_, document),) = port.answered(peer)
        return [row[1:] for row in document["rows"]]

    assert read(ALICE, "decisions") == [["grid", 3, 1, "7 tasks"]]
    assert [row[:2] for row in read(ALICE, "incidents", most=2)] == [["lost", "worker 2"], ["lost", "worker 1"]]
    assert read(ALICE, "incidents", "worker 0") == [["lost", "worker 0", "gone"]]
    assert read(BOB, "incidents") == []


def test_slow_monitor_skips_reports_and_learns_how_many_tasks_they_had() -> None:
    port = Port()
    port.come(ALICE, BOB)
    port.told(ALICE), port.told(BOB)
    port.listener.waiting[BOB] = MAX_WAITING_BYTES + 1
    for _ in range(3):
        port.finish()
        port.report()
    assert len(port.told(ALICE)) == 6
    assert port.told(BOB) == []
    port.listener.waiting[BOB] = 0
    last = port.finish()
    port.report()
    documents = dict(port.told(BOB))
    assert (documents["MonitorEvents"]["dropped"], ids(documents["MonitorEvents"])) == (3, [last.hex()])
    port.finish()
    port.report()
    assert dict(port.told(BOB))["MonitorEvents"]["dropped"] == 0


def test_disconnected_monitor_is_dropped() -> None:
    port = Port()
    port.come(ALICE, BOB)
    port.say(Broken(ALICE))
    assert port.listener.forgotten == [ALICE]
    assert port.is_watched
    port.say(Closed(BOB, ""))
    assert not port.is_watched


def test_admits_only_monitors_and_asking_clients_up_to_a_limit() -> None:
    port = Port()
    for hello in (own_hello(Role.MANAGER), own_hello(Role.CLIENT, ClientDetails("submits"))):
        stranger = port.admit(ALICE, hello, LOCAL)
        assert isinstance(stranger, Refused)
        assert stranger.reason is RefusalReason.ROLE
    assert isinstance(port.admit(ALICE, own_hello(Role.CLIENT), LOCAL), Welcome)
    port.come(*(number.to_bytes(8, "big") for number in range(MAX_MONITORS)))
    one_more = port.admit(ALICE, own_hello(Role.MONITOR), LOCAL)
    assert isinstance(one_more, Refused)
    assert "MAX_MONITORS" in one_more.text
    assert isinstance(port.admit((0).to_bytes(8, "big"), own_hello(Role.MONITOR), LOCAL), Welcome)


def test_keys_alternate_and_endless_questions_of_one_key_do_not_delay_others() -> None:
    port = Port()
    port.come_with_key(ALICE, "alice")
    port.come_with_key(BOB, "bob")
    port.loop.seconds_per_look = ANSWERING_SECONDS
    port.say(*(Received(ALICE, numbered(Explain(bytes(16)), number)) for number in range(MAX_WAITING)))
    port.say(Received(BOB, numbered(Explain(bytes(16)), 7)))
    port.loop.turn()
    assert [answer.number for _, answer in port.told(ALICE)] == [0]
    port.loop.turn()
    assert port.told(BOB) == [("Explained", Explained(bytes(16), UNKNOWN, number=7))]
    assert [answer.number for _, answer in port.answered(ALICE)] == list(range(1, MAX_WAITING))


def test_question_to_a_failed_extension_is_answered_with_the_reason() -> None:
    port = Port(Rooms(answerers={Explain: lambda *_: Perform("history", "work")}))
    port.performers.by_extension["history"] = object()  # without a method `answer`
    port.come(ALICE)
    port.told(ALICE)
    for _ in range(2):
        port.say(Received(ALICE, numbered(Explain(bytes(16)), 1)))
        ((_, answer),) = port.answered(ALICE)
        assert (answer.number, answer.text.partition(":")[0]) == (1, "the extension history has failed")
    (incident,) = port.incidents
    assert (incident.subject, incident.text.partition(" ")[0]) == ("the extension history", "answer")


@pytest.mark.parametrize("is_reading", [True, False])
def test_peer_with_too_many_questions_gets_an_error_unless_it_reads_no_answers(is_reading: bool) -> None:
    port = Port()
    port.come(ALICE)
    port.told(ALICE)
    port.listener.waiting[ALICE] = 0 if is_reading else MAX_UNTAKEN_BYTES + 1
    port.say(*(Received(ALICE, numbered(Explain(bytes(16)), number)) for number in range(MAX_WAITING + 1)))
    refused = [(answer.number, answer.text) for _, answer in port.told(ALICE)]
    assert refused == [(MAX_WAITING, BUSY.format("peer"))] * is_reading
    assert len(port.answered(ALICE)) == MAX_WAITING * is_reading


@pytest.mark.parametrize("is_performed", [True, False])
def test_answers_wait_for_a_peer_that_receives_many_results(is_performed: bool) -> None:
    work: list[Callable[[Explained], None]] = []
    port = Port(Rooms(answerers={Explain: lambda *_: Perform("history", "work")}) if is_performed else None)
    port.performers.by_extension["history"] = SimpleNamespace(answer=lambda _work, send: work.append(send))
    for peer, key in ((ALICE, "alice"), (BOB, "bob")):
        port.come_with_key(peer, key)
        port.say(Received(peer, numbered(Explain(bytes(16)), 7)))
    if is_performed:
        port.loop.turn()
    port.listener.waiting[ALICE] = MAX_UNTAKEN_BYTES + 1
    port.loop.turn()
    for send in work:
        send(Explained(bytes(16), UNKNOWN))
    assert [answer.number for _, answer in port.answered(BOB)] == [7]
    assert port.answered(ALICE) == []
    port.listener.waiting[ALICE] = 0
    port.report(UNTAKEN_SECONDS)
    assert [answer.number for _, answer in port.answered(ALICE)] == [7]


def test_key_and_question_limits_apply() -> None:
    port = Port()
    for number in range(MAX_WAITING_OF_KEY // MAX_WAITING + 1):
        peer = number.to_bytes(8, "big")
        port.come_with_key(peer, "alice")
        port.say(*(Received(peer, Explain(bytes(16))) for _ in range(MAX_WAITING)))
    assert [answer.text for _, answer in port.told(peer)] == [BUSY.format("key")] * MAX_WAITING
    port.come_with_key(BOB, "bob")
    port.say(Received(BOB, FindTasks("x" * (MAX_QUESTION_BYTES + 1))))
    ((_, answer),) = port.told(BOB)
    assert "larger than" in answer.text


def test_client_key_sees_all_workers_but_no_data_of_other_keys() -> None:
    port = Port()
    port.come_with_key(ALICE, "alice")
    (task,) = port.cluster.submit(port.client, name="secret")
    assert port.told(ALICE) == []
    assert not port.is_watched
    asked: list[Inquiry] = [ReadCluster(), Explain(task)]
    port.say(*(Received(ALICE, numbered(question, number)) for number, question in enumerate(asked)))
    while port.loop.soon:
        port.loop.turn()
    found: dict[int, Any] = {answer.number: answer for _, answer in cast("list[tuple[bytes, Any]]", port.listener.sent)}
    status = json.loads(found[0].status)
    assert [row["name"] for row in objects(status["workers"])] == ["manager-1"]
    assert objects(status["clients"]) == objects(status["functions"]) == objects(status["waiting"]) == []
    assert "secret" not in str([found[0].status, found[0].events, found[1]])
    port.say(Broken(ALICE))
    assert port.listener.forgotten == [ALICE]

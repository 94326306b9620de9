"""The audit log's records: who they name, what is added up, and that they stay few and harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaler.net.connection import Closed, Opened
from scaler.net.identity import Identity
from scaler.net.transport import Report
from scaler.protocol.codec import encode
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Clear,
    ClientDetails,
    Drain,
    Hello,
    Relay,
    Role,
    ShutdownCluster,
)
from scaler.protocol.monitor_rows import AuditRow
from scaler.scheduler.audit import MAX_AUDIT_TEXT, MAX_COUNTED, Audit, AuditInput
from scaler.scheduler.core.facts import Action
from scaler.security.keys import Entry
from tests.unit.scheduler.driver import Cluster

ALICE = Identity("alice", frozenset({Role.CLIENT}))


def hello(host: str) -> Hello:
    return Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", host, 7, ClientDetails("desk"))


class Log:
    """An audit log, and the time of what happens next."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.at = 100.0

    def add(self, *inputs: AuditInput) -> None:
        self.at += 1.0
        self.audit.add(inputs, self.at)

    def rows(self) -> list[AuditRow]:
        return self.audit.take(is_due=True)

    def opened(self, peer: bytes = b"alice...", identity: Identity = ALICE, host: str = "host") -> None:
        self.add(Opened(peer, hello(host), identity))


def said(rows: Sequence[AuditRow]) -> list[tuple[str, str, int, str]]:
    return [(row.kind, row.key, row.times, row.text) for row in rows]


def test_a_record_has_time_key_role_peer_host_and_name_by_the_connection() -> None:
    log = Log()
    log.opened()
    (row,) = log.rows()
    assert row == AuditRow(101.0, "connected", "alice", "client", b"alice...".hex(), "host|7", "desk")
    assert row.document()["time"] == "1970-01-01T00:01:41.000Z"
    assert list(row.document())[1:] == ["kind", "key", "role", "peer", "host", "name", "times", "text"]


def test_tasks_are_added_up_by_client_and_function_until_they_are_due() -> None:
    log = Log()
    log.opened()
    log.rows()
    for count in (1, 500, 499):
        log.add(Action("submitted", b"alice...", "f", count), Action("submitted", b"alice...", "g", 1))
    assert log.audit.take() == []
    rows = log.rows()
    assert said(rows) == [("submitted", "alice", 1000, "f"), ("submitted", "alice", 3, "g")]
    assert rows[0].at == 102.0, "the time of the first"
    assert log.rows() == []


def test_what_a_client_did_comes_before_its_end_even_when_both_come_at_once() -> None:
    log = Log()
    log.opened()
    log.add(Closed(b"alice...", ""))
    log.add(Action("submitted", b"alice...", "f", 3))  # the core tells it when it takes in the end
    assert said(log.audit.take()) == [
        ("connected", "alice", 0, ""),
        ("submitted", "alice", 3, "f"),
        ("disconnected", "alice", 0, "closed its connection"),
    ]


def test_refusals_name_the_reason_and_a_flood_of_them_is_bounded() -> None:
    log = Log()
    log.add(Report("its key was revoked", True, "bob", "10.0.0.9:1"))
    log.add(*[Report(f"no key, {number}", True, "", f"10.0.0.9:{number}") for number in range(10 * MAX_COUNTED)])
    rows = log.rows()
    assert len(rows) == MAX_COUNTED + 1
    assert (rows[0].key, rows[0].host, rows[0].text) == ("bob", "10.0.0.9:1", "its key was revoked")
    assert {row.kind for row in rows} == {"refused"}
    assert sum(row.times for row in rows) == 10 * MAX_COUNTED + 1


def test_texts_of_peers_are_escaped_and_cut() -> None:
    log = Log()
    log.opened(host="evil\x1b[31m\u202e")
    log.add(Action("submitted", b"alice...", "f\n\x00" + "x" * 10_000_000, 1))
    connected, submitted = log.rows()
    assert connected.host == "evil\\x1b[31m\\u202e|7"
    assert submitted.text.startswith("f\\n\\x00xxx")
    assert len(submitted.text) < 2 * MAX_AUDIT_TEXT


def test_keys_that_are_added_revoked_and_removed_are_recorded_and_those_of_the_start_are_not() -> None:
    log = Log()
    first = {"A": Entry("alice", "client"), "B": Entry("bob", "worker")}
    log.audit.add_keys(first, 1.0)
    log.audit.add_keys({**first, "C": Entry("carol", "admin")}, 2.0)
    log.audit.add_keys({"B": Entry("bob", "worker", "was revoked on Monday"), "C": Entry("carol", "admin")}, 3.0)
    assert said(log.rows()) == [
        ("key added", "carol", 0, "for the role admin"),
        ("key removed", "alice", 0, "for the role client"),
        ("key revoked", "bob", 0, "for the role worker was revoked on Monday"),
    ]


# -- what the core tells


def actions(cluster: Cluster) -> list[tuple[Any, ...]]:
    return [
        (fact.kind, fact.peer, fact.text, fact.count, fact.key)
        for fact in cluster.take_facts()
        if isinstance(fact, Action)
    ]


def test_the_core_tells_of_new_tasks_once_however_often_they_are_sent_and_before_what_follows(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.take_facts()
    tasks = cluster.submit(client, 3)
    assert actions(cluster) == [], "not with every message"
    cluster.cancel(client, tasks[0], b"another client's")
    peer = cluster.peer(client)
    submitted, cancelled = actions(cluster)
    assert (submitted[0], submitted[1], submitted[3]) == ("submitted", peer, 3)
    assert cancelled == ("cancelled", peer, "tasks", 1, "")
    cluster.say(client, Clear())
    assert actions(cluster) == [("cleared", peer, "client with 2 unfinished tasks", 0, "")]
    cluster.submit(client, 1)
    cluster.wait(1.0, alive=[client])
    assert [each[0] for each in actions(cluster)] == ["submitted"]


def test_the_core_tells_of_shutdowns_refused_or_not_and_of_drained_workers() -> None:
    for protected, kind in ((True, "refused"), (False, "shut down")):
        cluster = Cluster(protected=protected)
        client = cluster.client()
        cluster.say(client, ShutdownCluster())
        assert [each[0] for each in actions(cluster)] == [kind]
    cluster = Cluster()
    worker = cluster.worker("w")
    cluster.say(worker, Drain("spot notice"))
    ((kind, peer, text, _, _),) = actions(cluster)
    assert (kind, peer) == ("drained", cluster.peer(worker))
    assert text.endswith(": spot notice")


def test_tasks_of_a_client_inside_a_task_are_those_of_its_workers_connection(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    cluster.take_facts()
    cluster.say(worker, Relay(b"nested..", encode(Clear()), task))
    (cleared,) = actions(cluster)[-1:]
    assert cleared[:2] == ("cleared", cluster.peer(worker))
    assert cleared[2].endswith("(inside a task)")
    assert cleared[4] == "local", "the key of the client whose task it is in"

"""Records of the audit log: their names and sums, and that they are few and harmless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaler.extensions.audit import AuditSettings
from scaler.extensions.audit.core import MAX_AUDIT_TEXT, MAX_COUNTED, Audit, AuditChange
from scaler.extensions.audit.rows import AuditRow
from scaler.net.connection import Closed, Identity, Opened
from scaler.protocol.messages import PROTOCOL_VERSION, ClientDetails, Hello, Role
from scaler.scheduler.core.changes import Action, AdmissionRefused, KeysRead
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Now
from scaler.security.keys import Entry

ALICE = Identity("alice", frozenset({Role.CLIENT}))


def hello(host: str) -> Hello:
    return Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", host, 7, ClientDetails("desk"))


class Log:
    """An audit log, and the time of the next events."""

    def __init__(self) -> None:
        self.audit = Audit(AuditSettings(audit_path="audit.jsonl"))
        self.at = 100.0
        self.known: list[AuditRow] = []

    def add(self, *changes: AuditChange) -> None:
        self.at += 1.0
        self._take(self.audit.on_changes(changes, Now(0.0, self.at)))

    def _take(self, commands: Iterable[Command]) -> None:
        for command in commands:
            assert isinstance(command, Perform)
            self.known += command.work

    def take(self) -> list[AuditRow]:
        """Return the records since the last call."""
        taken, self.known = self.known, []
        return taken

    def rows(self) -> list[AuditRow]:
        """Return these records and the records of sums."""
        self._take(self.audit.on_time(Now(0.0, self.at)))
        return self.take()

    def opened(self, peer: bytes = b"alice...", identity: Identity = ALICE, host: str = "host") -> None:
        self.add(Opened(peer, hello(host), identity))


def said(rows: Sequence[AuditRow]) -> list[tuple[str, str, int, str]]:
    return [(row.kind, row.key, row.times, row.text) for row in rows]


def test_record_has_time_key_role_peer_host_and_name_of_the_connection() -> None:
    log = Log()
    log.opened()
    (row,) = log.rows()
    assert row == AuditRow(101.0, "connected", "alice", "client", b"alice...".hex(), "host|7", "desk")
    assert row.document()["time"] == "1970-01-01T00:01:41.000Z"
    assert list(row.document())[1:] == ["kind", "key", "role", "peer", "host", "name", "times", "text"]


def test_tasks_are_summed_by_client_and_function_until_due() -> None:
    log = Log()
    log.opened()
    log.rows()
    for count in (1, 500, 499):
        log.add(Action("submitted", b"alice...", "f", count), Action("submitted", b"alice...", "g", 1))
    assert log.take() == []
    rows = log.rows()
    assert said(rows) == [("submitted", "alice", 1000, "f"), ("submitted", "alice", 3, "g")]
    assert rows[0].at == 102.0, "the time of the first"
    assert log.rows() == []


def test_client_actions_precede_its_end_even_if_simultaneous() -> None:
    log = Log()
    log.opened()
    log.add(Closed(b"alice...", ""), Action("submitted", b"alice...", "f", 3))
    assert said(log.take()) == [
        ("connected", "alice", 0, ""),
        ("submitted", "alice", 3, "f"),
        ("disconnected", "alice", 0, "closed its connection"),
    ]


def test_refusals_state_the_reason_and_floods_are_bounded() -> None:
    log = Log()
    log.add(AdmissionRefused("its key was revoked", "bob", "10.0.0.9:1"))
    log.add(*[AdmissionRefused(f"no key, {number}", "", f"10.0.0.9:{number}") for number in range(10 * MAX_COUNTED)])
    rows = log.rows()
    assert len(rows) == MAX_COUNTED + 1
    assert (rows[0].key, rows[0].host, rows[0].text) == ("bob", "10.0.0.9:1", "its key was revoked")
    assert {row.kind for row in rows} == {"refused"}
    assert sum(row.times for row in rows) == 10 * MAX_COUNTED + 1


def test_text_from_peers_is_escaped_and_truncated() -> None:
    log = Log()
    log.opened(host="evil\x1b[31m\u202e")
    log.add(Action("submitted", b"alice...", "f\n\x00" + "x" * 10_000_000, 1))
    connected, submitted = log.rows()
    assert connected.host == "evil\\x1b[31m\\u202e|7"
    assert submitted.text.startswith("f\\n\\x00xxx")
    assert len(submitted.text) < 2 * MAX_AUDIT_TEXT


def test_added_revoked_and_removed_keys_are_recorded_but_not_initial_ones() -> None:
    log = Log()
    first = {"A": Entry("alice", "client"), "B": Entry("bob", "worker")}
    log.add(KeysRead(first))
    log.add(KeysRead({**first, "C": Entry("carol", "admin")}))
    log.add(KeysRead({"B": Entry("bob", "worker", "was revoked on Monday"), "C": Entry("carol", "admin")}))
    assert said(log.rows()) == [
        ("key added", "carol", 0, "for the role admin"),
        ("key removed", "alice", 0, "for the role client"),
        ("key revoked", "bob", 0, "for the role worker was revoked on Monday"),
    ]

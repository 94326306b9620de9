"""Converts core changes to audit records and escapes all peer-supplied text. Pure.

Frequent events are counted per peer and text for `COUNT_SECONDS`, so a flood of refusals yields few records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from scaler.extensions.audit import AuditSettings
from scaler.extensions.audit.rows import AuditRow
from scaler.extensions.interface import SchedulerPart
from scaler.net.connection import Closed, Opened
from scaler.protocol.messages import ClientDetails, Hello, Role
from scaler.scheduler.core.changes import Action, AdmissionRefused, Expelled, KeysRead, Noted, Observed
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Now
from scaler.security.keys import Entry
from scaler.texts import escaped

COUNT_SECONDS = 5.0
MAX_COUNTED = 200
"""Maximum number of distinct counters. Beyond this number, events are counted by kind only."""
MAX_AUDIT_TEXT = 200
MAX_KEPT = 2_000


AuditChange = Observed | Expelled | Action
_OTHERS = "too many to list"


class Audit(SchedulerPart):
    changes = (Opened, Closed, AdmissionRefused, Noted, KeysRead, Expelled, Action)
    next_at = 0.0

    def __init__(self, config: AuditSettings) -> None:
        self._has_file = bool(config.audit_path)
        self._peers: dict[bytes, AuditRow] = {}
        """Descriptions of connected peers: rows without an event."""
        self._counts: dict[AuditRow, dict[tuple[str, str], tuple[float, int]]] = {}
        """First event (unix seconds) and number of events, by actor, then by (kind, text)."""
        self._counted = 0
        self._keys: dict[str, Entry] = {}
        self._rows: list[AuditRow] = []
        """Records from the current step."""
        self._kept: deque[AuditRow] = deque(maxlen=MAX_KEPT)
        self._left: dict[bytes, list[tuple[AuditRow, AuditRow]]] = {}
        """Disconnected peers with their final records, emitted after the records of their last actions."""

    def on_changes(self, changes: Sequence[AuditChange], now: Now) -> Iterable[Command]:
        is_over, at = False, now.unix
        for change in changes:
            match change:
                case Opened(peer, hello, identity):
                    self._ended(peer, "opened a new session", at)
                    host = escaped(f"{hello.hostname[:MAX_AUDIT_TEXT]}|{hello.pid}")
                    columns = identity.key, hello.role.value, peer.hex(), host, _name(hello, host)
                    who = self._peers[peer] = AuditRow(0.0, "", *columns)
                    self._rows.append(who._replace(at=at, kind="connected"))
                case Closed(peer, text):
                    self._ended(peer, text or "closed its connection", at)
                case Expelled(peer, text):
                    self._ended(peer, f"the scheduler ended its session: it {text}", at)
                case Action(kind, peer, text, count, key):
                    left = self._left.get(peer)
                    who = self._peers.get(peer) or (left[-1][0] if left else AuditRow(peer=peer.hex()))
                    if key:
                        who = who._replace(key=key)
                    if count:
                        self._count(who, kind, text, count, at)
                    else:
                        self._flush(who)
                        self._rows.append(who._replace(at=at, kind=kind, text=_shown(text)))
                case AdmissionRefused(text, key, origin):
                    self._count(AuditRow(key=_shown(key), host=_shown(origin)), "refused", text, 1, at)
                case KeysRead(entries):
                    self._note_keys(entries, at)
                case Noted(kind, key, text):
                    self._note(kind, key, text, at)
                    is_over = kind == "ended"
        return self._take(is_due=is_over)

    def on_time(self, now: Now) -> Iterable[Command]:
        self.next_at = now.clock + COUNT_SECONDS
        return self._take(is_due=True)

    def _note(self, kind: str, key: str, text: str, at: float) -> None:
        self._rows.append(AuditRow(at, kind, _shown(key), text=_shown(text)))

    def _note_keys(self, entries: Mapping[str, Entry], at: float) -> None:
        before, self._keys = self._keys, dict(entries)
        for public_key in {**before, **entries} if before else ():
            old, new = before.get(public_key), entries.get(public_key)
            if old != new:
                name, role, problem, share = new or old or Entry("", "")
                is_share = old is not None and new == old._replace(share=share)
                kind = "key removed" if new is None else "key revoked" if problem else "key added"
                self._note("share changed" if is_share else kind, name, f"for the role {role} {problem}".rstrip(), at)

    def _take(self, *, is_due: bool) -> list[Command]:
        if not (self._rows or self._left or is_due):
            return []
        for left in self._left.values():
            for who, row in left:
                self._flush(who)
                self._rows.append(row)
        self._left.clear()
        for who in list(self._counts) if is_due else ():
            self._flush(who)
        rows, self._rows = self._rows, []
        self._kept.extend(rows)
        return [Perform("audit", rows)] if rows and self._has_file else []

    def rows(self, _table: str, key: str, most: int, _client: Any, _state: Any) -> Iterable[AuditRow]:
        return islice((row for row in reversed(self._kept) if key in ("", row.key)), most)

    def _ended(self, peer: bytes, text: str, at: float) -> None:
        who = self._peers.pop(peer, None)
        if who is not None:
            row = who._replace(at=at, kind="disconnected", text=_shown(text))
            self._left.setdefault(peer, []).append((who, row))

    def _count(self, who: AuditRow, kind: str, text: str, count: int, at: float) -> None:
        key = kind, _shown(text)
        if self._counted >= MAX_COUNTED and key not in self._counts.get(who, {}):
            who, key = AuditRow(), (kind, _OTHERS)
        counts = self._counts.setdefault(who, {})
        since, before = counts.get(key, (at, 0))
        self._counted += key not in counts
        counts[key] = since, before + count

    def _flush(self, who: AuditRow) -> None:
        counts = self._counts.pop(who, {})
        self._counted -= len(counts)
        for (kind, text), (at, count) in counts.items():
            self._rows.append(who._replace(at=at, kind=kind, times=count, text=text))


def _shown(text: str) -> str:
    return escaped(text, MAX_AUDIT_TEXT)


def _name(hello: Hello, host: str) -> str:
    if hello.role not in (Role.CLIENT, Role.ADMIN):
        return ""
    return _shown(hello.details.name) if isinstance(hello.details, ClientDetails) and hello.details.name else host

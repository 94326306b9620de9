"""Who did what: makes the records of the audit log from what happens on connections and in the core. Pure.

What comes in large numbers (submitted and cancelled tasks, refused peers) is added up for `COUNT_SECONDS`, per peer and
text: the log costs nothing per task, and a flood of refusals is a few records. Every text of a peer is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scaler.net.connection import Closed, ListenerEvent, Opened
from scaler.net.transport import Report
from scaler.protocol.messages import ClientDetails, Hello, Role
from scaler.protocol.monitor_rows import AuditRow
from scaler.scheduler.core.commands import Expel
from scaler.scheduler.core.facts import Action, Fact
from scaler.security.keys import Entry
from scaler.texts import escaped

COUNT_SECONDS = 5.0
MAX_COUNTED = 200
"""Different things that are added up at a time; beyond it, kinds of them only."""
MAX_AUDIT_TEXT = 200


class Noted(NamedTuple):
    """Something that no peer did: started, ended, key added, key revoked. key: which one it is about."""

    kind: str
    key: str = ""
    text: str = ""


class Who(NamedTuple):
    key: str = ""
    role: str = ""
    peer: str = ""
    host: str = ""
    name: str = ""
    """Of a client, as monitors show it."""


AuditInput = ListenerEvent | Expel | Fact | Report | Noted
_OTHERS = "too many to list"


class Audit:
    """Knows the peers that are connected, and makes records of what `add` takes in; `take` returns them."""

    def __init__(self) -> None:
        self._peers: dict[bytes, Who] = {}
        self._counts: dict[Who, dict[tuple[str, str], tuple[float, int]]] = {}
        """By actor, and by kind and text: since when (unix seconds), and how many."""
        self._counted = 0
        self._keys: dict[str, Entry] = {}
        self._rows: list[AuditRow] = []
        self._left: dict[bytes, list[tuple[Who, AuditRow]]] = {}
        """Peers that have left: their records follow those of what they did before."""

    def add(self, inputs: Iterable[AuditInput], at: float) -> None:
        """Take in what has happened at this time (unix seconds), in order."""
        for item in inputs:
            match item:
                case Opened(peer, hello, identity):
                    self._ended(peer, "opened a new session", at)
                    host = escaped(f"{hello.hostname[:MAX_AUDIT_TEXT]}|{hello.pid}")
                    who = self._peers[peer] = Who(identity.key, hello.role.value, peer.hex(), host, _name(hello, host))
                    self._rows.append(AuditRow(at, "connected", *who))
                case Closed(peer, text):
                    self._ended(peer, text or "closed its connection", at)
                case Expel(peer, reason):
                    self._ended(peer, f"the scheduler ended its session: it {getattr(reason, 'text', '')}", at)
                case Action(kind, peer, text, count, key):
                    left = self._left.get(peer)
                    who = self._peers.get(peer) or (left[-1][0] if left else Who(peer=peer.hex()))
                    if key:
                        who = who._replace(key=key)
                    if count:
                        self._count(who, kind, text, count, at)
                    else:
                        self._flush(who)
                        self._rows.append(AuditRow(at, kind, *who, text=_shown(text)))
                case Report(text, _, key, origin):
                    self._count(Who(_shown(key), host=_shown(origin)), "refused", text, 1, at)
                case Noted(kind, key, text):
                    self._rows.append(AuditRow(at, kind, _shown(key), text=_shown(text)))
                case _:
                    pass

    def add_keys(self, entries: Mapping[str, Entry], at: float) -> None:
        """Take in what each public key stands for now; the first time, that is no change."""
        before, self._keys = self._keys, dict(entries)
        for public_key in {**before, **entries} if before else ():
            old, new = before.get(public_key), entries.get(public_key)
            entry = new or old
            if old != new and entry is not None:
                kind = "key removed" if new is None else "key revoked" if new.problem else "key added"
                self.add([Noted(kind, entry.name, f"for the role {entry.role} {entry.problem}".rstrip())], at)

    def take(self, *, is_due: bool = False) -> list[AuditRow]:
        """Return the new records, the oldest first. is_due: also of what is still added up."""
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
        return rows

    def _ended(self, peer: bytes, text: str, at: float) -> None:
        who = self._peers.pop(peer, None)
        if who is not None:
            row = AuditRow(at, "disconnected", *who, text=_shown(text))
            self._left.setdefault(peer, []).append((who, row))

    def _count(self, who: Who, kind: str, text: str, count: int, at: float) -> None:
        key = kind, _shown(text)
        if self._counted >= MAX_COUNTED and key not in self._counts.get(who, {}):
            who, key = Who(), (kind, _OTHERS)
        counts = self._counts.setdefault(who, {})
        since, before = counts.get(key, (at, 0))
        self._counted += key not in counts
        counts[key] = since, before + count

    def _flush(self, who: Who) -> None:
        counts = self._counts.pop(who, {})
        self._counted -= len(counts)
        self._rows += [AuditRow(at, kind, *who, count, text) for (kind, text), (at, count) in counts.items()]


def _shown(text: str) -> str:
    return escaped(text, MAX_AUDIT_TEXT)


def _name(hello: Hello, host: str) -> str:
    """Return the name of a client: its own, or else that of its process; empty for other peers."""
    if hello.role not in (Role.CLIENT, Role.ADMIN):
        return ""
    return _shown(hello.details.name) if isinstance(hello.details, ClientDetails) and hello.details.name else host

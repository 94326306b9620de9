"""The monitors' port: sends status and events to monitors, and receives their questions.

Monitors cost the scheduler bounded memory and time: a report is made once for all of them, and skipped for a monitor
that has not received earlier ones. `scaler explain` connects here with a client's key. Few events are sent soon, many
with the next status.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from scaler.net.connection import Broken, Closed, ListenerEvent, Opened, Received, Resumed
from scaler.net.identity import Identity
from scaler.net.listener import Listener
from scaler.net.versions import check_versions
from scaler.plugins import LogTable
from scaler.protocol.messages import (
    CLIENTS,
    ClientDetails,
    Hello,
    Inquiry,
    MonitorEvents,
    MonitorStatus,
    RefusalReason,
    Refused,
    Role,
    Welcome,
)
from scaler.scheduler.answers import Answers, Asker, follow_clock
from scaler.scheduler.core.changes import AdmissionRefused, Change, Observed
from scaler.scheduler.core.commands import Input, MonitoringChanged
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.events import MAX_TASK_ROWS, VERSION
from scaler.scheduler.status import fitting, status

MAX_MONITORS = 100
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes in a monitor's outbox above which reports to it are skipped."""
EVENTS_SECONDS = 0.25
"""Delay of events between two status reports, if there are few."""
LOG_BYTES = 768 * 1024
"""Newest rows of a table in one message."""
FRESH_SECONDS = 0.25
"""Age up to which a new monitor gets the existing status."""


@dataclass(slots=True)
class _Monitor:
    """missed: ended tasks in skipped reports. lacks: tables with skipped rows."""

    asker: Asker
    missed: int = 0
    lacks: set[str] = field(default_factory=set)
    broken_at: float = math.inf


class Monitors:
    def __init__(
        self,
        answers: Answers,
        step: Callable[[Sequence[Input]], None],
        listen: Callable[..., Listener],
        welcome: Welcome,
        interval_seconds: float,
        observe: Callable[[Sequence[Observed]], None],
        logs: Sequence[LogTable],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """listen: creates the listener. welcome: the answer to monitors. observe: receives events for extensions."""
        self._state, self._events, self._server_status = answers.state, answers.events, answers.server_status
        self._step = step
        self._welcome = welcome
        self._interval_seconds = interval_seconds
        self._observe = observe
        self._logs: dict[str, deque[Any]] = {log.name: deque(maxlen=log.keep) for log in logs}
        answers.logs = self._logs
        self._loop = loop
        self._answers = answers
        self._monitors: dict[bytes, _Monitor] = {}
        self._clients: dict[bytes, Asker] = {}
        """Peers that connected with a client's key to ask, and get no reports. A disconnection ends their session."""
        self._status = MonitorStatus(b"")
        self._status_at = -math.inf
        self._is_storage_awaited = False
        """A new monitor has only old figures of the object storage."""
        self._listener = listen(admit=self._admit, on_events=self._on_events)
        self._listener.on_refused = lambda report: observe([AdmissionRefused(report.text, report.key, report.origin)])
        self._events_timer: asyncio.TimerHandle | None = None
        """Set while events wait that must be sent before the next status."""
        self._pause_seconds = EVENTS_SECONDS
        self._timer = self._loop.call_later(interval_seconds, self._tick)

    @property
    def address(self) -> str:
        return self._listener.addresses[0]

    def add(self, changes: Iterable[Change]) -> None:
        self._events.add(changes, time.time())
        if changes and self._events_timer is None and self._monitors and self._pause_seconds < self._interval_seconds:
            self._events_timer = self._loop.call_later(self._pause_seconds, self._report)

    def add_rows(self, table: str, rows: Sequence[Any]) -> None:
        """Send new rows of a table. A slow monitor gets all rows later."""
        self._logs[table].extend(rows)
        news = log_document(table, rows) if self._monitors else None
        for peer, monitor in self._monitors.items():
            if self._listener.outbox_bytes(peer) > MAX_WAITING_BYTES:
                monitor.lacks.add(table)
            elif news is not None:
                self._listener.send(peer, log_document(table, self._logs[table]) if table in monitor.lacks else news)
                monitor.lacks.discard(table)

    def storage_answered(self) -> None:
        """Send the new figures of the object storage to monitors that just connected."""
        if self._is_storage_awaited:
            self._is_storage_awaited = False
            self._make_status(is_report=False)
            self._report(self._status)

    def close(self) -> None:
        self._timer.cancel()
        if self._events_timer is not None:
            self._events_timer.cancel()
        self._listener.close()

    def _admit(self, peer: bytes, hello: Hello, _identity: Identity) -> Welcome | Refused:
        refused = check_versions(hello)
        if refused is not None:
            return refused
        # A client that submits tasks sends details in its Hello; a peer that only asks with a client's key does not.
        if hello.role not in (Role.MONITOR, *CLIENTS) or isinstance(hello.details, ClientDetails):
            return Refused(RefusalReason.ROLE, f"this is the monitors' address; {hello.role}s do not belong here")
        if len(self._monitors) + len(self._clients) >= MAX_MONITORS and peer not in self._monitors | self._clients:
            return Refused(RefusalReason.LIMIT, f"the scheduler has MAX_MONITORS = {MAX_MONITORS} monitors already")
        return self._welcome

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        self._observe([event for event in arrived if isinstance(event, Opened | Closed)])
        for event in arrived:
            match event:
                case Opened(peer, Hello(role=Role.MONITOR), identity):
                    self._opened(peer, self._asker(peer, identity._replace(is_admin=True)))
                case Opened(peer, _, identity):
                    self._clients[peer] = self._asker(peer, identity)
                case Broken(peer) if peer in self._clients:
                    self._listener.forget(peer)
                    self._forget(peer)
                case Resumed(peer) | Broken(peer):
                    if peer in self._monitors:
                        self._monitors[peer].broken_at = self._loop.time() if isinstance(event, Broken) else math.inf
                case Closed(peer, _):
                    self._forget(peer)
                case Received(peer, Inquiry() as question) if peer in self._monitors or peer in self._clients:
                    asker = self._clients.get(peer) or self._monitors[peer].asker
                    self._answers.add(asker, question)
                case Received(peer, message) if peer in self._clients:
                    # For example, a client in another language that mistook this for the scheduler's address.
                    kind = type(message).__name__
                    text = f"this is the monitors' address, which takes no {kind}: connect to the scheduler's address"
                    self._listener.forget(peer, Refused(RefusalReason.ROLE, text))
                    self._forget(peer)
                case Received():
                    pass
                case _:
                    assert_never(event)

    def _asker(self, peer: bytes, identity: Identity) -> Asker:
        record = ClientRecord(peer, "", 0.0, identity=identity)
        return Asker(record, self._listener, lambda: peer in self._monitors or peer in self._clients)

    def _forget(self, peer: bytes) -> None:
        self._clients.pop(peer, None)
        if self._monitors.pop(peer, None) is not None and not self._monitors:
            self._step([MonitoringChanged(False)])

    def _opened(self, peer: bytes, asker: Asker) -> None:
        """Send a new monitor the status and past events, after the report of the other monitors: later events are new
        to all."""
        self._report()
        at, now = time.time(), self._loop.time()
        self._monitors[peer] = _Monitor(asker)
        self._step([MonitoringChanged(True)])
        if now - self._status_at > FRESH_SECONDS:
            self._make_status(is_report=False)
        self._listener.send(peer, self._status)
        for table, rows in self._logs.items():
            if rows:
                self._listener.send(peer, log_document(table, rows))
        past = self._events.past(self._state, lambda then: at - (now - then), at)
        self._listener.send(peer, MonitorEvents(past.document()))
        self._is_storage_awaited = True
        self._answers.ask_storage()

    def _make_status(self, *, is_report: bool) -> None:
        self._status = MonitorStatus(status(self._state, self._server_status(is_report)))
        self._status_at = self._loop.time()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._tick)
        for peer, monitor in list(self._monitors.items()):
            if self._loop.time() - monitor.broken_at > self._welcome.lease_seconds:
                self._listener.forget(peer)
                self._forget(peer)
                self._observe([Closed(peer, "was out of contact", is_orderly=False)])
        if self._monitors:
            self._make_status(is_report=True)
            self._report(self._status)
            self._answers.ask_storage()

    def _report(self, state: MonitorStatus | None = None) -> None:
        """Send events since the last report. state: the status, if due."""
        if self._events_timer is not None:
            self._events_timer.cancel()
            self._events_timer = None
        follow_clock(self._events)
        report = self._events.report(time.time())
        ended = report.listed + report.dropped if report is not None else 0
        # Lengthen the pause with the size of the report, which limits the rows per second.
        share = max(report.rows, ended) / MAX_TASK_ROWS if report is not None else 0.0
        self._pause_seconds = max(EVENTS_SECONDS, share * self._interval_seconds)
        events = MonitorEvents(report.document()) if report is not None else None
        for peer, monitor in list(self._monitors.items()):
            if self._listener.outbox_bytes(peer) > MAX_WAITING_BYTES:
                monitor.missed += ended
                continue
            if state is not None:
                self._listener.send(peer, state)
            if report is not None and events is not None:
                self._listener.send(peer, MonitorEvents(report.document(monitor.missed)) if monitor.missed else events)
                monitor.missed = 0


def log_document(table: str, rows: Collection[Any]) -> MonitorEvents:
    """Return the newest of these rows (at least one) that fit in a message."""
    newest = ", ".join(reversed(fitting(reversed([*rows]), LOG_BYTES)))
    columns = json.dumps(next(iter(rows))._fields)
    return MonitorEvents(f'{{"version": {VERSION}, "{table}": {{"columns": {columns}, "rows": [{newest}]}}}}'.encode())

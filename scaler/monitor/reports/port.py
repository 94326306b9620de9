"""The monitors' port: sends status and events to monitors, and receives their questions.

Monitors cost the scheduler bounded memory and time: a report is made once for all monitors, and skipped for a monitor
that has not received earlier reports. `scaler explain` connects here with a client's key.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import assert_never

from scaler.monitor.cluster_rows import SchedulerRow, StorageRow
from scaler.monitor.messages import MonitorEvents, MonitorStatus
from scaler.monitor.reports.answers import Answers, Asker
from scaler.monitor.reports.events import Events
from scaler.monitor.reports.status import ServerStatus, status
from scaler.net.address import own_address
from scaler.net.connection import Broken, Closed, Identity, ListenerEvent, Opened, Received, Resumed
from scaler.net.versions import check_versions
from scaler.object_storage.messages import StorageStatus
from scaler.plugins import extensions
from scaler.processes import Load, LoadMeter
from scaler.protocol import messages as m
from scaler.scheduler.core.changes import Change
from scaler.scheduler.core.commands import MonitoringChanged
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.server import SchedulerServer

MAX_MONITORS = 100
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes in a monitor's outbox above which reports to it are skipped."""
STATUS_SECONDS = 1.0
"""Interval between reports, and between queries for the object storage's figures."""


class Monitors:
    """Serves monitors, and answers clients' questions."""

    def __init__(self, frame: SchedulerServer) -> None:
        self._frame = frame
        self._loop = frame.loop
        self._welcome = frame.welcome(m.Role.MONITOR)
        self._events = Events()
        self._answers = Answers(frame, self._events, self._server_status)
        self._askers: dict[bytes, Asker] = {}
        """All peers. A peer with a client's key may only ask questions."""
        self._missed: dict[bytes, int] = {}
        """Number of ended tasks in skipped reports, by monitor."""
        self._meter = LoadMeter()
        self._storage_row = StorageRow(own_address(frame.storage.public_address))
        frame.storage.on_figures = self._storage_answered
        self._listener = frame.listen(frame.config.monitor_address, self._admit, self._on_events)
        self._timer = self._loop.call_later(STATUS_SECONDS, self._tick)

    @property
    def address(self) -> str:
        return self._listener.addresses[0]

    def add(self, changes: Iterable[Change]) -> None:
        self._events.add(changes, time.time())

    def ask(self, client: ClientRecord, question: m.Inquiry) -> None:
        clients = self._frame.state.clients
        self._answers.add(Asker(client, self._frame.listener, lambda: clients.get(client.id) is client), question)

    def close(self) -> None:
        self._timer.cancel()
        self._listener.close()

    def _admit(self, peer: bytes, hello: m.Hello, _identity: Identity) -> m.Welcome | m.Refused:
        refused = check_versions(hello)
        if refused is not None:
            return refused
        # A client that submits tasks sends details in its Hello; a peer that only asks with a client's key does not.
        if hello.role not in (m.Role.MONITOR, *m.CLIENTS) or isinstance(hello.details, m.ClientDetails):
            return m.Refused(m.RefusalReason.ROLE, f"this address is for monitors; {hello.role}s do not connect here")
        if len(self._askers) >= MAX_MONITORS and peer not in self._askers:
            return m.Refused(m.RefusalReason.LIMIT, f"the scheduler already has MAX_MONITORS = {MAX_MONITORS} monitors")
        return self._welcome

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        self._frame.observe([event for event in arrived if isinstance(event, Opened | Closed)])
        for event in arrived:
            match event:
                case Opened(peer, m.Hello(role=m.Role.MONITOR), identity):
                    self._askers[peer] = self._asker(peer, identity._replace(is_admin=True))
                    self._opened(peer)
                case Opened(peer, _, identity):
                    self._askers[peer] = self._asker(peer, identity)
                case Broken(peer):  # the monitor reconnects as a new peer
                    self._listener.forget(peer)
                    self._forget(peer)
                    self._frame.observe([Closed(peer, "lost its connection", is_orderly=False)])
                case Closed(peer, _):
                    self._forget(peer)
                case Received(peer, m.Inquiry() as question) if peer in self._askers:
                    self._answers.add(self._askers[peer], question)
                case Received(peer, message) if peer in self._askers and peer not in self._missed:
                    # For example, a client in another language that connected to this address instead of the
                    # scheduler's.
                    kind = type(message).__name__
                    text = f"this address is for monitors and does not accept {kind}: use the scheduler's address"
                    self._listener.forget(peer, m.Refused(m.RefusalReason.ROLE, text))
                    self._forget(peer)
                case Received() | Resumed():
                    pass
                case _:
                    assert_never(event)

    def _asker(self, peer: bytes, identity: Identity) -> Asker:
        record = ClientRecord(peer, "", 0.0, identity=identity)
        return Asker(record, self._listener, lambda: peer in self._askers)

    def _forget(self, peer: bytes) -> None:
        self._askers.pop(peer, None)
        if self._missed.pop(peer, None) is not None and not self._missed:
            self._frame.step([MonitoringChanged(False)])

    def _opened(self, peer: bytes) -> None:
        """Send a new monitor the status and past events. Reports to the other monitors first, so that later events are
        new to all."""
        self._report()
        self._missed[peer] = 0
        self._frame.step([MonitoringChanged(True)])
        self._listener.send(peer, self._status(is_report=False))
        past = self._events.past(self._frame.state, time.time())
        self._listener.send(peer, MonitorEvents(past.document()))

    def _storage_answered(self, found: StorageStatus, latency_seconds: float) -> None:
        sizes = found.bytes, found.limit_bytes, found.spilled_bytes, found.state_bytes
        counts = *sizes, found.hits, found.misses, found.disk_failure
        address = self._storage_row.address
        self._storage_row = StorageRow(address, found.objects, *counts, round(latency_seconds, 6), time.time())

    def _status(self, *, is_report: bool) -> MonitorStatus:
        return MonitorStatus(status(self._frame.state, self._server_status(is_report)))

    def _server_status(self, is_report: bool) -> ServerStatus:
        """Return the part of a monitor report that the core does not provide."""
        config, vitals = self._frame.config, self._frame.vitals
        own = self._meter.measure().get(os.getpid(), Load())
        scheduler = SchedulerRow(
            own.cpu_percent,
            own.rss_bytes,
            round(self._loop.time() - vitals.began_at, 3),
            round(vitals.longest_step_seconds, 6),
            config.insecure_no_auth,
            *self._frame.journal(),
            round(vitals.longest_lag_seconds, 6),
            socket.gethostname(),
            " ".join(each.name for each in extensions(config.extensions)),
        )
        if is_report:
            vitals.longest_step_seconds = vitals.longest_lag_seconds = 0.0
        at = time.time()
        clock = time.localtime(at)
        today = clock.tm_hour * 3600.0 + clock.tm_min * 60 + clock.tm_sec
        messages = vitals.sent, vitals.received
        parts = scheduler, self._storage_row, *messages, self._frame.listener.figures, today, self._frame.rooms
        return ServerStatus(at, vitals.incarnation, *parts)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(STATUS_SECONDS, self._tick)
        if self._missed:
            self._report(self._status(is_report=True))
        self._frame.storage.ask()

    def _report(self, state: MonitorStatus | None = None) -> None:
        """Send events since the last report. state: the status, if due."""
        self._events.unix_at_zero = self._frame.state.rooms.unix_at_zero
        report = self._events.report(time.time())
        ended = report.listed + report.dropped if report is not None else 0
        events = MonitorEvents(report.document()) if report is not None else None
        for peer, missed in list(self._missed.items()):
            if self._listener.outbox_bytes(peer) > MAX_WAITING_BYTES:
                self._missed[peer] += ended
                continue
            if state is not None:
                self._listener.send(peer, state)
            if report is not None and events is not None:
                self._listener.send(peer, MonitorEvents(report.document(missed)) if missed else events)
                self._missed[peer] = 0

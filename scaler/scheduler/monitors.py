"""The monitors' port: sends status and events to monitors, and answers their questions about single tasks.

Monitors cost the scheduler bounded memory and time, whatever they do: a report is made once for all of them, and left
out for a monitor that has not taken the earlier ones; questions that take long are answered a few per loop iteration.
Events are sent soon while there are few, and with the next status while there are many.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from scaler.net.connection import Broken, Closed, ListenerEvent, Opened, Received, Resumed
from scaler.net.identity import Identity
from scaler.net.listener import Listener
from scaler.net.transport import Report
from scaler.net.versions import check_versions
from scaler.protocol.messages import (
    Explain,
    Explained,
    FindHistory,
    FindObjects,
    FindTasks,
    FindWorkerLogs,
    Hello,
    HistoryFound,
    MonitorEvents,
    MonitorStatus,
    ReadLog,
    ReadProfile,
    RefusalReason,
    Refused,
    Role,
    TasksFound,
    Welcome,
)
from scaler.protocol.monitor_rows import AuditRow
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Input, MonitoringChanged
from scaler.scheduler.core.data import finding
from scaler.scheduler.core.explain import explain
from scaler.scheduler.core.facts import Action, Fact, TasksEnded
from scaler.scheduler.core.profile_answers import profiled
from scaler.scheduler.events import MAX_TASK_ROWS, VERSION, Events
from scaler.scheduler.search import find
from scaler.scheduler.status import ServerStatus, fitting, status

MAX_MONITORS = 100
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""A monitor with more bytes in its outbox misses reports until it has taken them."""
MAX_QUESTIONS = 1_000
"""Waiting questions of all monitors; beyond it, the answer is to ask again."""
ANSWERS_PER_ITERATION = 4
EVENTS_SECONDS = 0.25
"""Delay of events between two status reports, while there are few."""
CLOCK_TOLERANCE_SECONDS = 1e-4
MAX_AUDIT = 2_000
"""Records of the audit log that are kept for monitors."""
AUDIT_BYTES = 768 * 1024
"""Those in one message: the newest of them."""
FRESH_SECONDS = 0.25
"""Age up to which a new monitor gets the status that was made for another."""

_Question = Explain | FindTasks | FindObjects | FindHistory | FindWorkerLogs | ReadProfile


@dataclass(slots=True)
class _Monitor:
    """missed: ended tasks in reports that were left out for it. lacks_audit: records were left out for it."""

    missed: int = 0
    lacks_audit: bool = False
    broken_at: float = math.inf


class Monitors:
    """All monitors of one scheduler."""

    def __init__(
        self,
        state: ClusterState,
        step: Callable[[Sequence[Input]], None],
        listen: Callable[..., Listener],
        welcome: Welcome,
        interval_seconds: float,
        server_status: Callable[[bool], ServerStatus],
        note: Callable[[Sequence[ListenerEvent | Report]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """listen: makes the listener from `admit` and `on_events`. welcome: the answer to monitors.

        server_status: called with True once per report, with False for monitors that connect between two. note: takes
        what the audit log records of monitors.
        """
        self._state = state
        self._step = step
        self._welcome = welcome
        self._interval_seconds = interval_seconds
        self._server_status = server_status
        self.ask_storage: Callable[[], None] = lambda: None
        """Asks the object storage for its figures; `storage_answered` follows."""
        self.find_history: Callable[[float, float, Callable[[bytes], None]], None] = lambda _since, _until, _take: None
        """Has the document of HistoryFound given later, for the time between two unix seconds."""
        self._note = note
        self._audit: deque[AuditRow] = deque(maxlen=MAX_AUDIT)
        self._loop = loop
        self._events = Events()
        self._monitors: dict[bytes, _Monitor] = {}
        self._questions: deque[tuple[bytes, _Question]] = deque()
        self._status = MonitorStatus(b"")
        self._status_at = -math.inf
        self._is_storage_awaited = False
        """A monitor has come, and has only earlier figures of the object storage."""
        self._listener = listen(admit=self._admit, on_events=self._on_events)
        self._listener.on_refused = lambda report: note([report])
        self._events_timer: asyncio.TimerHandle | None = None
        """Set while events wait that are to be sent before the next status."""
        self._pause_seconds = EVENTS_SECONDS
        self._timer = self._loop.call_later(interval_seconds, self._tick)

    @property
    def address(self) -> str:
        return self._listener.addresses[0]

    def add(self, facts: Iterable[Fact]) -> None:
        """Take in facts to report; actions come with `add_audit`."""
        facts = [
            fact for fact in facts if type(fact) is not Action and (self._monitors or type(fact) is not TasksEnded)
        ]
        self._events.add(facts, time.time())
        if facts and self._events_timer is None and self._monitors and self._pause_seconds < self._interval_seconds:
            self._events_timer = self._loop.call_later(self._pause_seconds, self._report)

    def add_audit(self, rows: Sequence[AuditRow]) -> None:
        """Send new records of the audit log; a monitor that is slow gets them all later."""
        self._audit.extend(rows)
        news = _audit_document(rows) if self._monitors else None
        for peer, monitor in self._monitors.items():
            if self._listener.outbox_bytes(peer) > MAX_WAITING_BYTES:
                monitor.lacks_audit = True
            elif news is not None:
                self._listener.send(peer, _audit_document(self._audit) if monitor.lacks_audit else news)
                monitor.lacks_audit = False

    def storage_answered(self) -> None:
        """The status has new figures of the object storage: send it, if monitors that have just come wait for them."""
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
        if hello.role is not Role.MONITOR:
            return Refused(RefusalReason.ROLE, f"this is the monitors' address; {hello.role}s do not belong here")
        if len(self._monitors) >= MAX_MONITORS and peer not in self._monitors:
            return Refused(RefusalReason.LIMIT, f"the scheduler has MAX_MONITORS = {MAX_MONITORS} monitors already")
        return self._welcome

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        self._note([event for event in arrived if not isinstance(event, Received)])
        for event in arrived:
            match event:
                case Opened(peer, _):
                    self._opened(peer)
                case Resumed(peer) | Broken(peer):
                    if peer in self._monitors:
                        self._monitors[peer].broken_at = self._loop.time() if isinstance(event, Broken) else math.inf
                case Closed(peer, _):
                    self._forget(peer)
                case Received(
                    peer,
                    (
                        Explain() | FindTasks() | FindObjects() | FindHistory() | FindWorkerLogs() | ReadProfile()
                    ) as asked,
                ):
                    self._ask(peer, asked)
                case Received(peer, ReadLog(task)):
                    self._listener.send(peer, self._state.read_log(task))
                case Received():
                    pass
                case _:
                    assert_never(event)

    def _forget(self, peer: bytes) -> None:
        if self._monitors.pop(peer, None) is not None and not self._monitors:
            self._step([MonitoringChanged(False)])

    def _opened(self, peer: bytes) -> None:
        """Send a new monitor the status and the past, and the others their report: later events are new to all."""
        self._report()
        at, now = time.time(), self._loop.time()
        self._monitors[peer] = _Monitor()
        self._step([MonitoringChanged(True)])
        if now - self._status_at > FRESH_SECONDS:
            self._make_status(is_report=False)
        self._listener.send(peer, self._status)
        if self._audit:
            self._listener.send(peer, _audit_document(self._audit))
        past = self._events.past(self._state, lambda then: at - (now - then), at)
        self._listener.send(peer, MonitorEvents(past.document()))
        self._is_storage_awaited = True
        self.ask_storage()

    def _set_clock(self) -> None:
        """Follow the wall clock. Smaller changes than the tolerance are ignored, so that shown tasks do not move."""
        zero = time.time() - time.monotonic()
        if abs(zero - self._events.unix_at_zero) > CLOCK_TOLERANCE_SECONDS:
            self._events.unix_at_zero = zero

    def _make_status(self, *, is_report: bool) -> None:
        self._status = MonitorStatus(status(self._state, self._server_status(is_report)))
        self._status_at = self._loop.time()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._tick)
        for peer, monitor in list(self._monitors.items()):
            if self._loop.time() - monitor.broken_at > self._welcome.lease_seconds:
                self._listener.forget(peer)
                self._forget(peer)
                self._note([Closed(peer, "was out of contact", is_orderly=False)])
        if self._monitors:
            self._make_status(is_report=True)
            self._report(self._status)
            self.ask_storage()

    def _report(self, state: MonitorStatus | None = None) -> None:
        """Send what has happened since the last report; state: the status, where it is due."""
        if self._events_timer is not None:
            self._events_timer.cancel()
            self._events_timer = None
        self._set_clock()
        report = self._events.report(time.time())
        ended = report.listed + report.dropped if report is not None else 0
        # The larger the report, the longer the pause: rows per second are no more than with one report per status.
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

    # -- questions

    def _ask(self, peer: bytes, question: _Question) -> None:
        if len(self._questions) >= MAX_QUESTIONS:
            if isinstance(question, Explain):
                text = f"MAX_QUESTIONS = {MAX_QUESTIONS} questions wait for the scheduler already: ask again"
                self._listener.send(peer, Explained(question.task, text))
            return
        if not self._questions:
            self._loop.call_soon(self._answer)
        self._questions.append((peer, question))

    def _answer(self) -> None:
        for _ in range(min(ANSWERS_PER_ITERATION, len(self._questions))):
            peer, question = self._questions.popleft()
            if peer not in self._monitors:
                continue
            now = self._loop.time()
            match question:
                case Explain(task):
                    self._listener.send(peer, Explained(task, explain(self._state, task, now)))
                case FindObjects():
                    self._listener.send(peer, finding.answer(self._state, question))
                case FindWorkerLogs():
                    self._listener.send(peer, self._state.worker_logs.found(question))
                case ReadProfile():
                    self._listener.send(peer, profiled(self._state, question))
                case FindHistory(since, until):
                    self.find_history(since, until, partial(self._found_history, peer, question))
                case FindTasks(search):
                    self._listener.send(peer, TasksFound(search, find(self._state, search, time.time(), now)))
        if self._questions:
            self._loop.call_soon(self._answer)

    def _found_history(self, peer: bytes, question: FindHistory, document: bytes) -> None:
        if peer in self._monitors:
            self._listener.send(peer, HistoryFound(question.since, question.until, document))


def _audit_document(rows: Collection[AuditRow]) -> MonitorEvents:
    newest = ", ".join(reversed(fitting(reversed([*rows]), AUDIT_BYTES)))
    table = f'{{"columns": {json.dumps(AuditRow._fields)}, "rows": [{newest}]}}'
    return MonitorEvents(f'{{"version": {VERSION}, "audit": {table}}}'.encode())

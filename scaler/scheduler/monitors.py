"""The monitors' port: tells them how things are and what happens, and answers what they ask about single tasks.

Monitors cost the scheduler bounded memory and time, whatever they do: a report is made once for all of them, and left
out for one that has not taken the earlier ones; questions that take long are answered a few per turn of the loop.
What happens between reports is told soon, as long as there is little of it; when there is much, with the next report.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, assert_never

from scaler.net.connection import Admit, Broken, Closed, Listener, ListenerEvent, Opened, Received, Resumed
from scaler.net.versions import check_versions
from scaler.protocol.messages import (
    Explain,
    Explained,
    Hello,
    MonitorEvents,
    MonitorStatus,
    ReadLog,
    RefusalReason,
    Refused,
    Role,
    Welcome,
)
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.explain import explain
from scaler.scheduler.core.facts import Fact
from scaler.scheduler.events import MAX_TASK_ROWS, Events, Report
from scaler.scheduler.status import Surroundings, status

MAX_MONITORS = 100
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""A monitor that has not taken so much misses reports until it has."""
MAX_QUESTIONS = 1_000
"""Questions of all monitors that wait; beyond it, they are told to ask again."""
ANSWERS_PER_TURN = 4
NEWS_SECONDS = 0.25
"""What happens is told so soon, between the reports, while there is little of it."""
FRESH_SECONDS = 0.25
"""A status may be so old when it is given to a monitor that has just come."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Loop(Protocol):
    """What is needed of an event loop; times are of its clock."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], object], /) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


Listen = Callable[[Admit, Callable[[Sequence[ListenerEvent]], None]], Listener]


class _Monitor:
    __slots__ = ("broken_at", "missed")

    def __init__(self) -> None:
        self.missed = 0
        """Tasks in reports that were left out for it."""
        self.broken_at: float | None = None


class Monitors:
    """All monitors of one scheduler."""

    def __init__(
        self,
        core: SchedulerCore,
        listen: Listen,
        welcome: Welcome,
        interval_seconds: float,
        surroundings: Callable[[bool], Surroundings],
        loop: Loop,
    ) -> None:
        """listen: makes the listener. welcome: what monitors are answered. interval_seconds: between reports.

        surroundings: how the process is; called with True once per report, with False for monitors that come between.
        """
        self._core = core
        self._welcome = welcome
        self._interval_seconds = interval_seconds
        self._surroundings = surroundings
        self._loop = loop
        self._events = Events()
        self._monitors: dict[bytes, _Monitor] = {}
        self._questions: deque[tuple[bytes, bytes]] = deque()
        self._answering = False
        self._status: tuple[float, MonitorStatus] | None = None
        self._listener = listen(self._admit, self._on_events)
        self._news: Timer | None = None
        """Due when something has happened and there is time for it before the next report."""
        self._pause_seconds = NEWS_SECONDS
        self._timer = self._loop.call_later(interval_seconds, self._tick)

    @property
    def address(self) -> str:
        """Where monitors connect."""
        return self._listener.addresses[0]

    def add(self, facts: Iterable[Fact]) -> None:
        """Take in what happened in a step."""
        self._events.add(facts, time.time())
        if self._news is None and self._monitors and self._pause_seconds < self._interval_seconds:
            self._news = self._loop.call_later(self._pause_seconds, self._tell_news)

    def close(self) -> None:
        """Say goodbye and free the address."""
        self._timer.cancel()
        self._cancel_news()
        self._listener.close()

    def _admit(self, peer: bytes, hello: Hello) -> Welcome | Refused:
        refused = check_versions(hello)
        if refused is not None:
            return refused
        if hello.role is not Role.MONITOR:
            return Refused(RefusalReason.ROLE, f"this is the monitors' address; a {hello.role} does not belong here")
        if len(self._monitors) >= MAX_MONITORS and peer not in self._monitors:
            return Refused(RefusalReason.LIMIT, f"the scheduler has MAX_MONITORS = {MAX_MONITORS} monitors already")
        return self._welcome

    def _on_events(self, arrived: Sequence[ListenerEvent]) -> None:
        for event in arrived:
            match event:
                case Opened(peer, _):
                    self._opened(peer)
                case Resumed(peer):
                    if peer in self._monitors:
                        self._monitors[peer].broken_at = None
                case Broken(peer):
                    if peer in self._monitors:
                        self._monitors[peer].broken_at = self._loop.time()
                case Closed(peer, _):
                    self._gone(peer)
                case Received(peer, message):
                    if isinstance(message, Explain):
                        self._ask(peer, message.task)
                    elif isinstance(message, ReadLog):
                        self._listener.send(peer, self._core.logs.read(message.task))
                case _:
                    assert_never(event)

    def _gone(self, peer: bytes) -> None:
        self._monitors.pop(peer, None)
        self._core.facts.watched = bool(self._monitors)

    # -- reports

    def _opened(self, peer: bytes) -> None:
        """Tell a monitor that has just come how things are and what is remembered.

        The others get their report now: what comes after is new to all of them.
        """
        self._tell_news()
        at = time.time()
        self._monitors[peer] = _Monitor()
        self._core.facts.watched = True
        now = self._loop.time()
        if self._status is None or now - self._status[0] > FRESH_SECONDS:
            self._status = (now, MonitorStatus(status(self._core, self._surroundings(False))))
        self._listener.send(peer, self._status[1])
        past = self._events.past(self._core, lambda then: at - (now - then), at)
        self._listener.send(peer, MonitorEvents(past.document()))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._tick)
        now = self._loop.time()
        for peer, monitor in list(self._monitors.items()):
            if monitor.broken_at is not None and now - monitor.broken_at > self._welcome.lease_seconds:
                self._listener.forget(peer)
                self._gone(peer)
        if not self._monitors:
            return
        around = self._surroundings(True)
        self._status = (now, MonitorStatus(status(self._core, around)))
        self._tell(self._events.report(around.at), self._status[1])

    def _tell_news(self) -> None:
        """Tell what has happened, between two reports."""
        self._tell(self._events.report(time.time()), None)

    def _cancel_news(self) -> None:
        if self._news is not None:
            self._news.cancel()
            self._news = None

    def _tell(self, report: Report | None, state: MonitorStatus | None) -> None:
        self._cancel_news()
        # The more there was to tell, the longer the pause: rows per second are no more than if all came with reports.
        share = max(report.rows, report.told + report.dropped) / MAX_TASK_ROWS if report is not None else 0.0
        self._pause_seconds = max(NEWS_SECONDS, share * self._interval_seconds)
        events = MonitorEvents(report.document()) if report is not None else None
        for peer, monitor in list(self._monitors.items()):
            if self._listener.outbox_bytes(peer) > MAX_WAITING_BYTES:
                monitor.missed += report.told + report.dropped if report is not None else 0
                continue
            if state is not None:
                self._listener.send(peer, state)
            if report is not None and events is not None:
                self._listener.send(peer, MonitorEvents(report.document(monitor.missed)) if monitor.missed else events)
                monitor.missed = 0

    # -- questions

    def _ask(self, peer: bytes, task: bytes) -> None:
        if len(self._questions) >= MAX_QUESTIONS:
            text = f"the scheduler is asked more than MAX_QUESTIONS = {MAX_QUESTIONS} questions at once: ask again"
            self._listener.send(peer, Explained(task, text))
            return
        self._questions.append((peer, task))
        if not self._answering:
            self._answering = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        for _ in range(min(ANSWERS_PER_TURN, len(self._questions))):
            peer, task = self._questions.popleft()
            if peer in self._monitors:
                self._listener.send(peer, Explained(task, explain(self._core, task, self._loop.time())))
        self._answering = bool(self._questions)
        if self._answering:
            self._loop.call_soon(self._answer)

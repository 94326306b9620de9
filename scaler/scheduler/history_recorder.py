"""Records the history of a scheduler, and answers what happened: the last hour from memory, the rest from files."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from scaler.grammar import counted
from scaler.processes import Load, LoadMeter
from scaler.protocol.history_rows import EventRow, FunctionTimesRow
from scaler.protocol.messages import Outcome
from scaler.scheduler import history_file
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.facts import Fact, Incident, TasksEnded
from scaler.scheduler.core.state import ScalingDecided, Worker
from scaler.scheduler.function_times import Before, FunctionTimes
from scaler.scheduler.history import ENDED, SCALING, SCHEDULER, STARTED, Figures, MinuteRow, Minutes, Row, within
from scaler.scheduler.history_answer import answer
from scaler.scheduler.history_file import HistoryFiles

SAMPLE_SECONDS = 1.0
MEMORY_SECONDS = 3_600.0
MEMORY_EVENTS = 2_000
MAX_READERS = 16
"""Questions that wait for the files; further ones get no answer."""
BEFORE_SECONDS = 8 * 86_400.0
"""How far back an earlier run is looked for, to compare functions with."""
_FAILED = frozenset(Outcome) - {Outcome.SUCCESS, Outcome.CANCELLED, Outcome.EXCEPTION_TO_RETRY}
_log = logging.getLogger(__name__)


class HistoryRecorder:
    """The history of one scheduler, on the running loop."""

    def __init__(
        self,
        files: HistoryFiles | None,
        state: ClusterState,
        loop: asyncio.AbstractEventLoop,
        lag_seconds: Callable[[], float],
    ) -> None:
        """files: where it outlives the scheduler; None: nowhere.

        lag_seconds: returns the longest lag of the loop since it was called last.
        """
        self._files = files
        self._directory = files.directory if files is not None else None
        self._state = state
        self._loop = loop
        self._lag_seconds = lag_seconds
        self._meter = LoadMeter()
        self._reader = ThreadPoolExecutor(1, "history-reader")
        self._reading = 0
        state.is_recorded = True
        self._began_at = round(time.time(), 3)
        self._rows: deque[MinuteRow | FunctionTimesRow] = deque()
        self._events: deque[EventRow] = deque(maxlen=MEMORY_EVENTS)
        self._before = Before()
        self.p50_before: Mapping[str, float] = {}
        """Median durations by function, about a day before or in the last run: in seconds."""
        self._minutes = Minutes(self._began_at, self._figures())
        self._functions = FunctionTimes(self._began_at, state)
        self._minutes.event(self._began_at, STARTED, SCHEDULER, "")
        self._timer = loop.call_later(SAMPLE_SECONDS, self._tick)
        if (directory := self._directory) is not None:
            self._in_thread(lambda: self._earlier(directory), self._load)

    def add(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            match fact:
                case Incident(kind, subject, text):
                    self._minutes.event(time.time(), kind, subject, text)
                case ScalingDecided(manager_id, units, draining, reason):
                    text = f"{counted(units, 'unit')}, and {draining} draining: {reason}"
                    self._minutes.event(time.time(), SCALING, manager_id, text)
                case TasksEnded():
                    for index in fact.failure_records:
                        if fact.outcomes[index] in _FAILED:
                            line = fact.failure(index).text.partition("\n")[0]
                            self._minutes.failure(fact.run_of(index)[0].function.name, line)
                case _:
                    pass

    def find(self, since: float, until: float, take: Callable[[bytes], None]) -> None:
        """Have `take` called with the answer of this time, later on this loop. since, until: unix seconds."""
        if self._reading >= MAX_READERS:
            return
        now, figures = time.time(), self._figures(is_sample=False)
        first = self._memory_from(now)
        known = chain(self._events, self._rows, self._minutes.present(now, figures), self._functions.present(now))
        recent = [row for row in within(known, since, until) if row.at >= first]
        directory = self._directory

        def found() -> bytes:
            if directory is None:
                return answer(recent, since, until, first)
            try:
                earlier = history_file.read(directory, since, min(until, first)) if since < first else ()
                oldest = history_file.oldest(directory)
                rows = chain((row for row in earlier if row.at < first), recent)
                return answer(rows, since, until, self._began_at if oldest is None else min(oldest, self._began_at))
            except OSError as error:
                _log.warning("cannot read the history in %s: %s", directory, error)
                return answer(recent, since, until, first)

        self._in_thread(found, take)

    def close(self) -> None:
        self._timer.cancel()
        self._minutes.event(time.time(), ENDED, SCHEDULER, "")
        now = time.time()
        rows = [*self._minutes.sample(now, self._figures(), is_last=True), *self._functions.take(now, is_last=True)]
        if self._files is not None:
            self._files.write(rows)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, work: Callable[[], object], take: Callable[..., None]) -> None:
        def done(future: asyncio.Future[object]) -> None:
            self._reading -= 1
            if not future.cancelled():
                take(future.result())

        self._reading += 1
        self._loop.run_in_executor(self._reader, work).add_done_callback(done)

    def _earlier(self, directory: Path) -> list[Row]:
        kinds = {FunctionTimesRow.__name__, EventRow.__name__}
        try:
            rows = history_file.read(directory, self._began_at - BEFORE_SECONDS, self._began_at, kinds)
            return [row for row in rows if isinstance(row, FunctionTimesRow) or getattr(row, "kind", "") == STARTED]
        except OSError as error:
            _log.warning("cannot read the history in %s: %s", directory, error)
            return []

    def _load(self, rows: list[Row]) -> None:
        self._before.load(rows)
        self.p50_before = self._before.p50(time.time())

    def _memory_from(self, now: float) -> float:
        """Return from when on the memory has everything."""
        first = max(self._began_at, now - MEMORY_SECONDS)
        return max(first, self._events[0].at) if len(self._events) == MEMORY_EVENTS else first

    def _tick(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._tick)
        now = time.time()
        rows = self._minutes.sample(now, self._figures())
        times = self._functions.take(now)
        if times:
            self._before.add(times)
            self.p50_before = self._before.p50(now)
            rows += times
        if not rows:
            return
        for row in rows:
            if isinstance(row, EventRow):
                self._events.append(row)
            else:
                self._rows.append(row)
        while self._rows and self._rows[0].at + self._rows[0].seconds < now - MEMORY_SECONDS:
            self._rows.popleft()
        if self._files is not None:
            self._files.write(rows)

    def _figures(self, *, is_sample: bool = True) -> Figures:
        state = self._state
        ended = state.ended
        workers = state.workers.values()
        own = self._meter.measure().get(os.getpid(), Load())
        running = sum(min(worker.slots, worker.busy) for worker in workers)
        suspended = sum(len(worker.blocked) for worker in workers)
        return Figures(
            done=ended[Outcome.SUCCESS],
            failed=sum(ended[outcome] for outcome in _FAILED),
            cancelled=ended[Outcome.CANCELLED],
            living=state.living_tasks + state.more,
            workers=len(state.workers),
            managers=len(state.managers),
            cost=float(state.ledger.run),
            lag_seconds=self._lag_seconds() if is_sample else 0.0,
            slots=sum(worker.slots for worker in workers),
            running=running,
            queued=max(0, state.living_tasks + state.more - running - suspended),
            memory_bytes=own.rss_bytes + sum(map(_memory_of, workers)),
        )


def _memory_of(worker: Worker) -> int:
    heartbeat = worker.heartbeat
    if heartbeat is None:
        return 0
    return heartbeat.agent_rss_bytes + sum(processor.rss_bytes for processor in heartbeat.processors)

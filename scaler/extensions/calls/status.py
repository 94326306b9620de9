"""Calls, and their rows for monitors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from scaler.protocol.call_rows import CallRow
from scaler.protocol.messages import CallReport
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durations import Timing, spread
from scaler.scheduler.core.rooms import Reader
from scaler.scheduler.core.state import Group

MAX_TIMINGS_OF_CALL = 4
"""Functions of a graph whose durations are shown together."""
MAX_TEXT_OF_CALL = 200
Reason = Callable[[list[Group]], tuple[str, str]]
"""Returns why the oldest task of groups with queued ones waits, and its id."""


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call of a client. submitted, failed, cancelled: items, or tasks, of groups without living tasks."""

    key: tuple[bytes, int | str]
    client: str
    name: str
    began_at: float
    """Unix seconds."""
    groups: dict[Group, None] = field(default_factory=dict)
    """With living tasks."""
    submitted: int = 0
    failed: int = 0
    cancelled: int = 0
    timings: dict[Timing, None] = field(default_factory=dict)
    report: CallReport | None = None
    """What the client told last; None for single submits and tags."""
    is_tag: bool = False

    @property
    def id(self) -> str:
        client, which = self.key
        return f"{client.hex()}{'/' if self.is_tag else ' '}{which}"

    def runs(self, timing: Timing) -> None:
        """Note a function of the call."""
        self.timings.setdefault(timing)
        if len(self.timings) > MAX_TIMINGS_OF_CALL:
            del self.timings[next(iter(self.timings))]

    def ended(self, group: Group) -> None:
        """Take over what a group has counted."""
        del self.groups[group]
        self.submitted += group.submitted
        self.failed += group.failed
        self.cancelled += group.cancelled

    def counts(self) -> tuple[int, int, int]:
        """Return how many were submitted, failed, and were cancelled."""
        groups = self.groups
        return (
            self.submitted + sum(group.submitted for group in groups),
            self.failed + sum(group.failed for group in groups),
            self.cancelled + sum(group.cancelled for group in groups),
        )


class Known(Protocol):
    """live, kept: calls with living tasks, and without."""

    live: dict[tuple[bytes, int | str], CallRecord]
    kept: dict[tuple[bytes, int | str], CallRecord]


def call_rows(
    state: ClusterState, calls: Known, tags: Known, reader: Reader, reason: Reason, most: int
) -> Iterator[CallRow]:
    """Return the tags and calls with living tasks, the last ones first, then the ones that ended last. O(groups)."""
    ended_tags = islice(reversed(tags.kept.values()), most // 4)  # of calls there are many more
    known = [*reversed(tags.live.values()), *reversed(calls.live.values()), *ended_tags, *reversed(calls.kept.values())]
    # A graph that could not be submitted has a report and no tasks.
    owners = state.accounts.owners
    shown = (
        call
        for call in known
        if call.counts()[0] or (call.report is not None and call.report.has_chunks)
        if reader.sees(owners.get(call.key[0], ""))
    )
    for call in islice(shown, most):
        live = sum(group.live + group.more for group in call.groups)
        running = sum(reader.running.get(group, 0) for group in call.groups)
        queued = [group for group in call.groups if group.live > group.assigned]
        row = counted_row(call, live, running, call.key[0] in state.clients)
        why, oldest = reason(queued) if queued else ("", "")
        yield row._replace(began_at=call.began_at, reason=why, oldest=oldest)


def counted_row(call: CallRecord, live: int, running: int, has_client: bool) -> CallRow:
    """Return the row of a call with its counts.

    live: items, or tasks. running: tasks, each of which runs an item. has_client: its client may submit more.
    """
    has_chunks = any(timing.has_chunks for timing in call.timings)
    p50, p95, longest = (round(seconds, 6) for seconds in spread(() if has_chunks else call.timings))
    report = call.report
    submitted, failed, cancelled = call.counts()
    ended, queued = submitted - live, live - running
    if report is not None and report.has_chunks:
        # The client knows of items that it could not send, and the scheduler of items that ended since the report.
        ended, failed = max(ended, report.ended), max(failed, report.failed - cancelled)
        unsent = max(0, report.items - ended - live)
        if has_client and not report.is_over:
            queued += unsent
        else:
            ended, cancelled = ended + unsent, cancelled + unsent
    return CallRow(
        id=call.id,
        call="tag" if call.is_tag else report.verb if report is not None else "submit",
        name=(report.name if report is not None else call.name)[:MAX_TEXT_OF_CALL],
        client=call.client[:MAX_TEXT_OF_CALL],
        queued=queued,
        running=running,
        ended=ended,
        failed=failed,
        cancelled=cancelled,
        has_chunks=has_chunks,
        p50_seconds=p50,
        p95_seconds=p95,
        max_seconds=longest,
    )

"""Counts the tasks of each `map`, graph, and tag, and all single submits of each function. Pure.

Groups count their own tasks, so a call costs nothing per task. For the chunks of a `map`, groups count items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from scaler.extensions.interface import SchedulerPart
from scaler.monitor.data_rows import CallRow
from scaler.monitor.reports.status import duration_columns, reasons
from scaler.protocol.messages import MAX_LABEL_CHARACTERS, MAX_TAGS, CallReport, CallsReported
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.changes import GroupBegan, GroupEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Group, PeerRecord, Timing
from scaler.scheduler.tables import table

MAX_CALLS_KEPT = 200
"""Maximum number of ended calls to keep."""
MAX_TAGS_KEPT = 256
CALLS_BYTES = 32 * 1024
MAX_CALLS = 100
"""Maximum number of calls in a status: live calls first, then the most recently ended."""

CallKey = tuple[bytes, int | str]
"""Client id, then the call number, the tag, or the function name of single submits."""
MAX_TIMINGS_OF_CALL = 4
"""Maximum number of functions of a graph whose durations are listed."""
MAX_TEXT_OF_CALL = 200
Reason = Callable[[list[Group]], tuple[str, str]]
"""Returns the reason why the oldest queued task of the groups waits, and the task's id."""


@dataclass(slots=True, eq=False)
class CallRecord:
    """A client's call. submitted, failed, cancelled: items or tasks in groups without live tasks."""

    key: tuple[bytes, int | str]
    client: str
    name: str
    began_at: float
    groups: dict[Group, None] = field(default_factory=dict)
    """Groups with live tasks."""
    submitted: int = 0
    failed: int = 0
    cancelled: int = 0
    timings: dict[Timing, None] = field(default_factory=dict)
    report: CallReport | None = None
    """The client's last report, or None for single submits and tags."""
    is_tag: bool = False

    @property
    def id(self) -> str:
        client, which = self.key
        return f"{client.hex()}{'/' if self.is_tag else ' '}{which}"

    @property
    def verb(self) -> str:
        """Display name of the method: `submit`, or `call` until the client reports the method."""
        return "submit" if isinstance(self.key[1], str) else "call"

    def counts(self) -> tuple[int, int, int]:
        groups = self.groups
        return (
            self.submitted + sum(group.submitted for group in groups),
            self.failed + sum(group.failed for group in groups),
            self.cancelled + sum(group.cancelled for group in groups),
        )


class _Known:
    """Calls with live tasks (`live`) and recently ended calls (`kept`). Invariant: calls in `live` have `groups`."""

    def __init__(self, most_kept: int) -> None:
        self._most_kept = most_kept
        self.live: dict[CallKey, CallRecord] = {}
        self.kept: dict[CallKey, CallRecord] = {}
        """Ordered by end."""

    def begin(self, key: CallKey, name: str, group: Group, at: float, *, is_tag: bool = False) -> None:
        call = self.live.get(key) or self.kept.pop(key, None)
        if call is None:
            call = CallRecord(key, group.client.name, name, at, is_tag=is_tag)
        self.live[key] = call
        call.groups[group] = None
        call.timings.setdefault(group.timing)
        if len(call.timings) > MAX_TIMINGS_OF_CALL:
            del call.timings[next(iter(call.timings))]

    def end(self, key: CallKey, group: Group) -> None:
        call = self.live[key]
        del call.groups[group]
        call.submitted += group.submitted
        call.failed += group.failed
        call.cancelled += group.cancelled
        if not call.groups:
            self.keep(self.live.pop(key))

    def keep(self, call: CallRecord) -> None:
        self.kept[call.key] = call
        if len(self.kept) > self._most_kept:
            del self.kept[next(iter(self.kept))]


class Calls(SchedulerPart):
    changes = (GroupBegan, GroupEnded)
    messages = (CallsReported,)

    def __init__(self, _config: object = None) -> None:
        self._calls = _Known(MAX_CALLS_KEPT)
        self._tags = _Known(MAX_TAGS_KEPT)

    def on_changes(self, changes: Sequence[GroupBegan | GroupEnded], now: Now) -> Iterable[Command]:
        for change in changes:
            group, client, spec = change.group, change.group.client.id, change.group.spec
            key, tags = (client, spec.call or spec.name), [tag[:MAX_LABEL_CHARACTERS] for tag in spec.tags[:MAX_TAGS]]
            if type(change) is GroupBegan:
                self._calls.begin(key, spec.name, group, now.unix)
                for tag in dict.fromkeys(tags):
                    self._tags.begin((client, tag), tag, group, now.unix, is_tag=True)
            else:
                self._calls.end(key, group)
                for tag in dict.fromkeys(tags):
                    self._tags.end((client, tag), group)
        return ()

    def on_message(self, peer: PeerRecord, message: CallsReported, state: ClusterState) -> Iterable[Command]:
        """Store a client's progress reports. The first report of a call may precede or follow its first task."""
        known = self._calls
        for report in message.calls:
            key = (peer.id, report.number)
            call = known.live.get(key) or known.kept.pop(key, None)
            call = call or CallRecord(key, peer.title, report.name, state.rooms.unix_at_zero + state.now)
            call.report = report
            if not call.groups:
                known.keep(call)
        return ()

    def add_to_status(self, reader: Reader) -> Additions:
        calls, tags, owners = self._calls, self._tags, self.cluster.accounts.owners
        ended_tags = islice(reversed(tags.kept.values()), MAX_CALLS // 4)  # ended calls far outnumber live calls
        live = [*reversed(tags.live.values()), *reversed(calls.live.values())]
        # A graph whose submission failed has a report but no tasks.
        shown = (
            call
            for call in (*live, *ended_tags, *reversed(calls.kept.values()))
            if call.counts()[0] or (call.report is not None and call.report.has_chunks)
            if reader.sees(owners.get(call.key[0], ""))
        )
        why_waiting = reasons(self.cluster)
        rows = (self._row(call, reader.running, why_waiting) for call in islice(shown, MAX_CALLS))
        keys = chain(calls.live, calls.kept, tags.live, tags.kept)
        count = sum(reader.sees(owners.get(client, "")) for client, _ in keys)
        return Additions(tables={"calls": table(CallRow._fields, rows, CALLS_BYTES)}, totals={"calls": count})

    def _row(self, call: CallRecord, running_of: Mapping[Group, int], why_waiting: Reason) -> CallRow:
        live = sum(group.live + group.more for group in call.groups)
        running = sum(running_of.get(group, 0) for group in call.groups)
        waiting = [group for group in call.groups if group.live > group.assigned]
        why, oldest = why_waiting(waiting) if waiting else ("", "")
        report = call.report
        submitted, failed, cancelled = call.counts()
        ended, queued = submitted - live, live - running
        if report is not None and report.has_chunks:
            # The client counts items that it failed to send. The scheduler counts items that ended since the report.
            ended, failed = max(ended, report.ended), max(failed, report.failed - cancelled)
            unsent = max(0, report.items - ended - live)
            if call.key[0] in self.cluster.clients and not report.is_over:
                queued += unsent
            else:
                ended, cancelled = ended + unsent, cancelled + unsent
        return CallRow(
            id=call.id,
            call="tag" if call.is_tag else report.verb if report is not None else call.verb,
            name=(report.name if report is not None else call.name)[:MAX_TEXT_OF_CALL],
            client=call.client[:MAX_TEXT_OF_CALL],
            queued=queued,
            running=running,
            ended=ended,
            failed=failed,
            cancelled=cancelled,
            began_at=call.began_at,
            **duration_columns(call.timings),
            reason=why,
            oldest=oldest,
        )

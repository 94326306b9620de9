"""Counts the tasks of each call of a client: of a `map`, a graph, a tag, and all single submits of one function. Pure.

A group of tasks belongs to one call, and counts its tasks itself: counting calls costs something per group only. Of a
`map`, whose tasks are chunks, items are counted, and the client reports how many the whole call has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaler.config.setting import SettingsModel
from scaler.extensions.calls.status import CallRecord, call_rows
from scaler.extensions.interface import SchedulerPart
from scaler.protocol.call_rows import CALL_COLUMNS
from scaler.protocol.messages import MAX_LABEL_CHARACTERS, MAX_TAGS, CallsReported
from scaler.scheduler.core.changes import GroupBegan, GroupEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.rooms import Additions, Now, Reader
from scaler.scheduler.core.state import Group, PeerRecord
from scaler.scheduler.status import reasons, table

MAX_CALLS_KEPT = 200
"""Calls without living tasks that are remembered: the last ones."""
MAX_TAGS_KEPT = 256
"""Tags without living tasks that are remembered: the last ones."""
CALLS_BYTES = 32 * 1024
MAX_CALLS = 100
"""In a status: calls with living tasks, then those that ended last."""

CallKey = tuple[bytes, int | str]
"""The client, and the number of the call; of single submits the name of their function, of a tag the tag."""


class _Known:
    """The calls with living tasks, and the last ones without. Law: a call is in one of both, by its `groups`."""

    def __init__(self, most_kept: int) -> None:
        self._most_kept = most_kept
        self.live: dict[CallKey, CallRecord] = {}
        self.kept: dict[CallKey, CallRecord] = {}
        """In the order of their ends."""

    def begin(self, key: CallKey, name: str, group: Group, at: float, *, is_tag: bool = False) -> None:
        """Note the first task of a group."""
        call = self.live.get(key) or self.kept.pop(key, None)
        if call is None:
            call = CallRecord(key, group.client.name, name, at, is_tag=is_tag)
        self.live[key] = call
        call.groups[group] = None
        call.runs(group.timing)

    def end(self, key: CallKey, group: Group) -> None:
        """Note that a group has no more living tasks."""
        call = self.live[key]
        call.ended(group)
        if not call.groups:
            self.keep(self.live.pop(key))

    def keep(self, call: CallRecord) -> None:
        self.kept[call.key] = call
        if len(self.kept) > self._most_kept:
            del self.kept[next(iter(self.kept))]


class Calls(SchedulerPart):
    changes = (GroupBegan, GroupEnded)
    messages = (CallsReported,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
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
        """Take in what a client tells of its calls, the first report of a call before its first task or after it."""
        known = self._calls
        for report in message.calls:
            key = (peer.id, report.number)
            call = known.live.get(key) or known.kept.pop(key, None)
            call = call or CallRecord(key, peer.title, report.name, state.moment.unix)
            call.report = report
            if not call.groups:
                known.keep(call)
        return ()

    def add_to_status(self, reader: Reader) -> Additions:
        state, known = self.cluster, (self._calls, self._tags)
        rows = call_rows(state, *known, reader, reasons(state), MAX_CALLS)
        count = sum(reader.sees(state.accounts.owners.get(client, "")) for client, _ in self._keys())
        shown = (row[: len(CALL_COLUMNS)] for row in rows)
        return Additions(tables={"calls": table(CALL_COLUMNS, shown, CALLS_BYTES)}, totals={"calls": count})

    def _keys(self) -> Iterator[CallKey]:
        for known in (self._calls, self._tags):
            yield from known.live
            yield from known.kept

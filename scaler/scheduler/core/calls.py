"""Counts the tasks of each call of a client: of a `map`, a graph, a tag, and all single submits of one function. Pure.

A group of tasks belongs to one call, so counting costs something per group, and per task only for those that fail.
Of a `map`, whose tasks are chunks, items are counted, and the client reports how many the whole call has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler.protocol.messages import MAX_LABEL_CHARACTERS, MAX_TAGS, CallReport, Spec
from scaler.scheduler.core.durations import Timing

MAX_CALLS_KEPT = 200
"""Calls without living tasks that are remembered: the last ones."""
MAX_TAGS_KEPT = 256
"""Tags without living tasks that are remembered: the last ones."""
MAX_TIMINGS_OF_CALL = 4
"""Functions of a graph whose durations are shown together."""

CallKey = tuple[bytes, int | str]
"""The client, and the number of the call; of single submits the name of their function, of a tag the tag."""


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call of a client. submitted, failed, cancelled: items, or tasks. groups: how many groups are alive."""

    key: CallKey
    client: str
    name: str
    began_at: float
    """By the clock of the scheduler."""
    groups: int = 0
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
        self.timings[timing] = None
        if len(self.timings) > MAX_TIMINGS_OF_CALL:
            del self.timings[next(iter(self.timings))]


class Calls:
    """All calls with living tasks, and the last ones without. Law: a call is in one of both, by its `groups`."""

    def __init__(self, most_kept: int = MAX_CALLS_KEPT) -> None:
        self._most_kept = most_kept
        self.live: dict[CallKey, CallRecord] = {}
        self.kept: dict[CallKey, CallRecord] = {}
        """In the order of their ends."""

    def __len__(self) -> int:
        return len(self.live) + len(self.kept)

    def of(self, client: bytes, title: str, spec: Spec, now: float) -> CallRecord:
        """Return the call of a group that is made. It is forgotten again unless the group begins."""
        key = (client, spec.call or spec.name)
        return self.live.get(key) or self.kept.get(key) or CallRecord(key, title, spec.name, now)

    def of_tags(self, client: bytes, title: str, spec: Spec, now: float) -> tuple[CallRecord, ...]:
        """Return the records of the tags of a group that is made, as `of` does."""
        keys = [(client, tag[:MAX_LABEL_CHARACTERS]) for tag in spec.tags[:MAX_TAGS]]
        return tuple(
            self.live.get(key) or self.kept.get(key) or CallRecord(key, title, key[1], now, is_tag=True) for key in keys
        )

    def begin(self, call: CallRecord, timing: Timing) -> None:
        """Note the first task of a group."""
        if not call.groups:
            self.kept.pop(call.key, None)
            self.live[call.key] = call
        call.groups += 1
        if timing not in call.timings:
            call.runs(timing)

    def end(self, call: CallRecord) -> None:
        """Note that a group has no more living tasks."""
        call.groups -= 1
        if not call.groups:
            del self.live[call.key]
            self.kept[call.key] = call
            if len(self.kept) > self._most_kept:
                del self.kept[next(iter(self.kept))]

    def reported(self, client: bytes, title: str, reports: list[CallReport], now: float) -> None:
        """Take in what a client tells of its calls, the first report of a call before its first task or after it."""
        for report in reports:
            key = (client, report.number)
            call = self.live.get(key) or self.kept.pop(key, None) or CallRecord(key, title, report.name, now)
            call.report = report
            if not call.groups:
                self.kept[key] = call
                if len(self.kept) > self._most_kept:
                    del self.kept[next(iter(self.kept))]

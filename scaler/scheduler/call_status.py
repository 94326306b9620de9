"""The rows of calls, for monitors. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from scaler.protocol.call_rows import CallRow
from scaler.scheduler.core.calls import CallRecord
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durations import spread
from scaler.scheduler.core.state import Group

MAX_TEXT_OF_CALL = 200
Reason = Callable[[list[Group]], tuple[str, str]]
"""Returns why the oldest task of groups with queued ones waits, and its id."""


def call_rows(
    state: ClusterState,
    running: Mapping[Group, int],
    reason: Reason,
    unix_at_zero: float,
    most: int,
    sees: Callable[[str], bool],
) -> Iterator[CallRow]:
    """Return the tags and calls with living tasks, the last ones first, then the ones that ended last. O(groups).

    running: how many tasks of each group run. unix_at_zero: unix seconds when the clock of the scheduler showed 0.
    sees: whether the reader may know of the clients with a key.
    """
    groups: defaultdict[CallRecord, list[Group]] = defaultdict(list)
    live: Counter[CallRecord] = Counter()
    for client in state.all_clients():
        for group in client.groups.values():
            for call in (group.call, *group.tags):
                groups[call].append(group)
                live[call] += group.live + group.more
    calls, tags = state.calls, state.tags
    ended_tags = islice(reversed(tags.kept.values()), most // 4)  # of calls there are many more
    known = [*reversed(tags.live.values()), *reversed(calls.live.values()), *ended_tags, *reversed(calls.kept.values())]
    # A graph that could not be submitted has a report and no tasks.
    owners = state.accounts.owners
    shown = (
        call
        for call in known
        if call.submitted or (call.report is not None and call.report.has_chunks)
        if sees(owners.get(call.key[0], ""))
    )
    for call in islice(shown, most):
        its_own = groups[call]
        queued = [group for group in its_own if group.live > group.assigned]
        row = counted_row(
            call, live[call], sum(running.get(group, 0) for group in its_own), call.key[0] in state.clients
        )
        why, oldest = reason(queued) if queued else ("", "")
        yield row._replace(began_at=unix_at_zero + call.began_at, reason=why, oldest=oldest)


def counted_row(call: CallRecord, live: int, running: int, has_client: bool) -> CallRow:
    """Return the row of a call with its counts.

    live: items, or tasks. running: tasks, each of which runs an item. has_client: its client may submit more.
    """
    has_chunks = any(timing.has_chunks for timing in call.timings)
    p50, p95, longest = (round(seconds, 6) for seconds in spread(() if has_chunks else call.timings))
    report = call.report
    ended, failed, cancelled, queued = call.submitted - live, call.failed, call.cancelled, live - running
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

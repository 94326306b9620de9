"""Decides from the last state whether the network or the cluster itself makes tasks wait. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from scaler.grammar import counted
from scaler.median import median
from scaler.protocol.link_rows import LinkRow, NetworkRow
from scaler.protocol.monitor_rows import Status

LATE_SECONDS = 0.05
"""Lag at which the scheduler delays everything."""
SLOW_STORAGE_SECONDS = 0.1
SLOW_SECONDS = 0.02
"""Round trip above that of a network within one building."""
MUCH_SLOWER = 5.0
"""A host is slow if its round trip is this many times the other hosts' round trip."""
MANY_BYTES = 8 * 1024 * 1024
"""Bytes that a peer has not taken. A healthy connection has fewer in flight."""
MAX_NAMED = 3


def network(status: Status) -> NetworkRow:
    return (
        _scheduler(status)
        or _full_links(status)
        or _storage(status)
        or _hosts(status)
        or NetworkRow("none", _none(status))
    )


def _scheduler(status: Status) -> NetworkRow | None:
    own = status.scheduler
    if max(own.lag_seconds_max, own.step_seconds_max) < LATE_SECONDS:
        return None
    return NetworkRow(
        "scheduler",
        f"The scheduler is busy: its loop was {_time(own.lag_seconds_max)} late and its longest step took "
        f"{_time(own.step_seconds_max)}, at {own.cpu_percent:.0f} % of a CPU. Every answer waits for it.",
    )


def _full_links(status: Status) -> NetworkRow | None:
    full = [link for link in status.links if link.outbox_bytes >= MANY_BYTES]
    if not full:
        return None
    worst = max(full, key=lambda link: link.outbox_bytes)
    more = f", and so for {counted(len(full) - 1, 'other peer')}" if len(full) > 1 else ""
    return NetworkRow(
        "network",
        f"The connection to {_title(worst)} is full: {worst.outbox_bytes / 1e6:,.0f} MB wait to be taken, and it takes "
        f"{worst.sent_per_second / 1e6:,.1f} MB/s{more}.",
    )


def _storage(status: Status) -> NetworkRow | None:
    seconds = status.storage.latency_seconds
    if seconds < SLOW_STORAGE_SECONDS:
        return None
    text = f"The object storage answers the scheduler after {_time(seconds)}: it is busy, or the way to it is slow."
    return NetworkRow("storage", text)


def _hosts(status: Status) -> NetworkRow | None:
    rounds, own = _rounds(status), status.scheduler.host
    slow = sorted((host for host, seconds in rounds.items() if seconds >= SLOW_SECONDS), key=lambda host: -rounds[host])
    if not slow:
        return None
    if own in slow:
        return NetworkRow(
            "machine",
            f"The machine of the scheduler has too little CPU: agents on {own}, which need no network, have a "
            f"round trip of {_time(rounds[own])}.",
        )
    others = [seconds for host, seconds in rounds.items() if host not in slow]
    if others and median(others) * MUCH_SLOWER <= rounds[slow[-1]]:
        names = ", ".join(slow[:MAX_NAMED])
        more = f" and {counted(len(slow) - MAX_NAMED, 'other host')}" if len(slow) > MAX_NAMED else ""
        return NetworkRow(
            "network",
            f"The network to {names}{more}: a round trip takes up to {_time(rounds[slow[0]])}, where other hosts take "
            f"{_time(median(others))}.",
        )
    return NetworkRow(
        "distance",
        f"The workers are far away: a round trip takes {_time(median(rounds.values()))} in the median "
        f"of {counted(len(rounds), 'host')}. Workers are given work for 1.5 round trips in advance, so slots stay "
        "busy; a single task waits for it.",
    )


def _none(status: Status) -> str:
    rounds = _rounds(status)
    parts = [f"the scheduler's loop was at most {_time(status.scheduler.lag_seconds_max)} late"]
    if status.storage.latency_seconds:
        parts.append(f"the object storage answers after {_time(status.storage.latency_seconds)}")
    if rounds:
        host, longest = max(rounds.items(), key=lambda item: item[1])
        parts.insert(0, f"round trips take {_time(median(rounds.values()))}, at most {_time(longest)} to {host}")
    return f"Neither is slow: {', '.join(parts)}."


def _rounds(status: Status) -> Mapping[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for worker in status.workers:
        if worker.connected and worker.latency_seconds:
            found[worker.host].append(worker.latency_seconds)
    return {host: min(seconds) for host, seconds in found.items()}


def _title(link: LinkRow) -> str:
    return f"{link.kind} {link.name}" + (f" on {link.host}" if link.host else "")


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"

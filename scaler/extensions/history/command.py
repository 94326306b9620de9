"""`scaler history`: prints the history of a running scheduler or of a state_directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from scaler.config.commands import Environment, asking_sources, whom_to_ask
from scaler.config.flags import flags_parser
from scaler.config.monitors import TopConfig
from scaler.errors import UsageError
from scaler.extensions.history.files import FOLDER, read
from scaler.extensions.history.minutes import DAY_SECONDS, FAILED, Row, thinned
from scaler.grammar import counted
from scaler.monitor.commands import ask, printed
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.history_rows import ClusterHistory, EventRow, FunctionTimesRow, PointRow
from scaler.paths import local_path
from scaler.texts import escaped

Shown = PointRow | EventRow | FunctionTimesRow


def history(program: str, arguments: Sequence[str], environment: Environment) -> int:
    purpose = "Print the history: figures per minute, decisions, incidents, failures, and function times."
    parser = flags_parser(program, TopConfig, purpose)
    parser.usage = f"{program} [-c FILE] [settings] [ADDRESS | STATE_DIRECTORY]"
    form = "a local time such as 2026-03-29T03:00"
    parser.add_argument("--since", metavar="TIME", help=f"{form} [default: 24 hours ago]")
    parser.add_argument("--until", metavar="TIME", help=f"{form} [default: now]")
    parser.add_argument("--json", action="store_true", help="print one JSON object per record")
    sources, own = asking_sources(parser, arguments, environment)
    folder = local_path(str(sources.flags.get("monitor_address", "")))
    now = time.time()
    since = _local_time("--since", own["since"], now - DAY_SECONDS)
    until = _local_time("--until", own["until"], now + 1)
    if since >= until:
        raise UsageError("--since must be before --until")
    if "monitor_address" in sources.flags and folder.is_dir():
        return printed(lambda: _print_history(_read(folder / FOLDER, since, until), own["json"]))

    async def work(connection: MonitorConnection) -> None:
        _print_history(shown_of(await connection.history(since, until)), own["json"])

    return ask(whom_to_ask(sources), work)


def _local_time(flag: str, text: str | None, default: float) -> float:
    try:
        return default if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"{flag} {text}: give a time such as 2026-03-29T03:00") from None


def _read(directory: Path, since: float, until: float) -> Iterable[Shown]:
    if not directory.is_dir():
        raise UsageError(f"no such directory: {str(directory)!r}: give the state_directory of a scheduler")
    try:
        yield from shown(read(directory, since, until))
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _print_history(rows: Iterable[Shown], as_json: bool) -> None:
    for row in rows:
        sys.stdout.write(line(row, as_json=as_json) + "\n")


def shown(rows: Iterable[Row]) -> Iterator[Shown]:
    return (row if isinstance(row, EventRow | FunctionTimesRow) else thinned([row])[0] for row in rows)


def shown_of(history: ClusterHistory) -> list[Shown]:
    """Return a scheduler's answer ordered by time. Failures are sorted by their last occurrence."""
    failures = [EventRow(row.last_at, FAILED, row.function, row.text, row.times) for row in history.failures]
    return sorted([*history.points, *history.events, *failures, *history.functions], key=attrgetter("at"))


def line(row: Shown, *, as_json: bool) -> str:
    if as_json:
        kind = {} if isinstance(row, EventRow) else {"kind": "minute" if isinstance(row, PointRow) else "function"}
        return json.dumps({**kind, **row._asdict()})
    at = datetime.fromtimestamp(row.at).astimezone().isoformat(" ", "seconds")
    match row:
        case PointRow():
            ended = f"{row.done:,} done, {row.failed:,} failed, {row.cancelled:,} cancelled in {row.seconds:.0f} s"
            slots = f"{row.running:,} of {counted(row.slots, 'slot')} busy; {row.queued:,} queued"
            peers = f"{counted(row.workers, 'worker')}, {counted(row.managers, 'manager')}"
            most = f"up to {row.living:,} at once; {slots}; {peers}; {row.memory_bytes / 2**20:,.0f} MiB"
            return f"{at} {ended}; {most}; cost {row.cost:g}; lag {row.lag_seconds:.3f} s"
        case FunctionTimesRow():
            ended = f"{row.ended:,} ended, {row.failed:,} failed in {row.seconds:.0f} s"
            times = f"p50 {row.p50_seconds:g} s; p95 {row.p95_seconds:g} s"
            return f"{at} function {escaped(row.function)}: {ended}; {times}"
        case EventRow():
            times = f" ({row.times:,} x)" if row.times > 1 else ""
            subject = f" {escaped(row.subject)}" if row.subject else ""
            texts = "; ".join(map(escaped, row.text.splitlines()))
            return f"{at} {row.kind}{subject}{': ' if texts else ''}{texts}{times}"

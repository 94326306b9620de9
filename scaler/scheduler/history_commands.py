"""`scaler history`: prints what a scheduler has kept on disk, whether it runs or not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scaler.config.flags import bare_parser, parse_flags
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.protocol.history_rows import FunctionTimesRow
from scaler.scheduler.history import MinuteRow, Row
from scaler.scheduler.history_file import FOLDER, read
from scaler.texts import escaped

DEFAULT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The request of `scaler history`. since, until: unix seconds."""

    directory: Path
    since: float
    until: float
    as_json: bool


def parse_history(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> HistoryRequest:
    """Return the request. Raises UsageError."""
    parser = bare_parser(program, "Print what happened earlier: figures of each minute, decisions and failures.")
    parser.add_argument("directory", metavar="DIRECTORY", help="the state_directory of the scheduler")
    text = "a local time such as 2026-03-29T03:00"
    parser.add_argument("--since", metavar="TIME", help=f"{text} [default: 24 hours ago]")
    parser.add_argument("--until", metavar="TIME", help=f"{text} [default: now]")
    parser.add_argument("--json", action="store_true", help="print one JSON object per record")
    found = parse_flags(parser, arguments)
    now = time.time()
    since = _time("--since", found.get("since"), now - DEFAULT_SECONDS)
    until = _time("--until", found.get("until"), now + 1)
    if since >= until:
        raise UsageError("--since must be before --until")
    return HistoryRequest(Path(str(found["directory"])).expanduser() / FOLDER, since, until, bool(found.get("json")))


def run(request: HistoryRequest) -> int:
    """Print the records, and return the exit code. Raises UsageError when there is no history."""
    if not request.directory.is_dir():
        raise UsageError(f"{request.directory} is no folder: give the state_directory of a scheduler")
    try:
        for row in read(request.directory, request.since, request.until):
            sys.stdout.write((json.dumps(_record(row)) if request.as_json else line(row)) + "\n")
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    return 0


def _record(row: Row) -> dict[str, object]:
    match row:
        case MinuteRow():
            return {"kind": "minute", **row._asdict()}
        case FunctionTimesRow():
            return {"kind": "function", **row._asdict()}
        case _:
            return row._asdict()


def line(row: Row) -> str:
    at = datetime.fromtimestamp(row.at).astimezone().isoformat(" ", "seconds")
    if isinstance(row, MinuteRow):
        ended = f"{row.done:,} done, {row.failed:,} failed, {row.cancelled:,} cancelled in {row.seconds:.0f} s"
        peers = f"{counted(row.workers, 'worker')}, {counted(row.managers, 'manager')}"
        slots = f"{row.running:,} of {counted(row.slots, 'slot')} busy; {row.queued:,} queued"
        memory = f"{row.memory_bytes / 2**20:,.0f} MiB"
        most = f"up to {row.living:,} at once; {slots}; {peers}; {memory}"
        return f"{at} {ended}; {most}; cost {row.cost:g}; lag {row.lag_seconds:.3f} s"
    if isinstance(row, FunctionTimesRow):
        ended = f"{row.ended:,} ended, {row.failed:,} failed in {row.seconds:.0f} s"
        return f"{at} function {escaped(row.function)}: {ended}; p50 {row.p50_seconds:g} s; p95 {row.p95_seconds:g} s"
    times = f" ({row.times:,} x)" if row.times > 1 else ""
    subject = f" {escaped(row.subject)}" if row.subject else ""
    texts = "; ".join(map(escaped, row.text.splitlines()))
    return f"{at} {row.kind}{subject}{': ' if texts else ''}{texts}{times}"


def _time(flag: str, text: object, default: float) -> float:
    if text is None:
        return default
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        raise UsageError(f"{flag} {text}: give a time such as 2026-03-29T03:00") from None

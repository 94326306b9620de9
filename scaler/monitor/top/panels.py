"""Text around the worker table (panels, totals, counts, one worker), and reports without a screen. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scaler.grammar import counted
from scaler.monitor.cluster_rows import CANCELLED, DONE, RUNNING, Status, TaskRow, WaitingRow, WorkerRow
from scaler.monitor.findings import findings
from scaler.monitor.messages import TaskLog
from scaler.monitor.model import Model
from scaler.monitor.rows import FOUND, KEYS, view
from scaler.monitor.top import formats
from scaler.monitor.top.formats import COUNTS, Pairs, Panel, counts
from scaler.monitor.top.table import (
    BY_KEY,
    COLUMNS,
    Sorting,
    data_lines,
    function_lines,
    sort,
    table,
    table_of,
    units_lines,
)
from scaler.stack_profile import read_document

BAR = " | "
KEY_HINTS = " ".join(f"{column.title}[{key}]" for key, column in BY_KEY.items())
ASKED = {found.key: found for found in FOUND.values() if found.key}
"""The extensions' tables, by key."""
_ASKED_HINTS = " ".join(f"{found.name}[{key}]" for key, found in ASKED.items())
MORE_KEY_HINTS = f"tasks[t] data[b] units[u] filter[/] freeze[space] detail[enter] help[?] quit[q] {_ASKED_HINTS}"
VERSION = 1
MAX_PANEL_LINES = 40
WAITS_SECONDS = 2.0
"""Minimum age of a waiting task before the last line of the screen mentions it."""
PANELS_WIDTH = 120
"""Width without a limit."""
TASKS_HEAD = f"{'task':32} {'state':12} {'for':>7} {'pid':>8} function"

_STATES = {"away": "out of contact", "held": "held: too many failures", "ends": "ends: takes no new tasks"}


def panels(status: Status, per_second: float | None = None) -> list[Panel]:
    """Return the four panels. per_second: rate of ended tasks, None while unknown."""
    return [
        Panel("scheduler", _scheduler(status), 10, 18),
        Panel("tasks", _tasks(status, per_second), 17, 24),
        Panel("sent", _by_count(status.sent), 18, 34),
        Panel("received", _by_count(status.received), 18, 34),
    ]


def sides(model: Model, status: Status) -> list[Panel]:
    functions = [(row.name or "(no name)", counts(row)) for row in status.functions]
    clients = [(row.name or row.id[:8], counts(row)) for row in status.clients]
    managers = [
        (row.id, f"{row.running}{'' if row.desired is None else f' of {row.desired}'}{' (!)' if row.trouble else ''}")
        for row in status.managers
    ]
    return [
        Panel("functions", functions, 38, 44, COUNTS),
        Panel("clients", clients, 38, 44, COUNTS),
        Panel("managers", managers, 26, 44, "units"),
        *(panel for part in model.parts for panel in part.panels(status)),
    ]


def beside(found: Sequence[Panel], width: int, height: int) -> list[str]:
    """Lay out panels side by side within the width. Drops the last panels if they do not fit."""
    chosen = list(found)
    while (space := width - sum(panel.least + len(BAR) for panel in chosen) + len(BAR)) < 0 and len(chosen) > 1:
        chosen.pop()
    least = (min(panel.least, width) for panel in chosen)
    widths = formats.spread(least, (min(panel.natural, panel.most) for panel in chosen), space)
    columns = [panel.lines(wide, height) for panel, wide in zip(chosen, widths, strict=True)]
    return [BAR.join(parts).rstrip() for parts in zip(*columns, strict=True)]


def height_of(found: Sequence[Panel], most: int) -> int:
    return min(most, 1 + max((len(panel.pairs) for panel in found), default=0))


def totals(status: Status, listed: int, matching: int, wanted: str) -> str:
    """Return one line about the totals and the table's contents. listed: rows that the scheduler sent."""
    total = status.totals
    workers = max(total.workers, listed)
    parts = [
        "NO AUTHENTICATION: any process can run code here" if status.scheduler.insecure_no_auth else "",
        formats.safe(status.without_workers) or f"Total {counted(workers, 'worker')}, {counted(total.slots, 'slot')}",
        f"{total.draining:,} ending" if total.draining else "",
        f"{total.disconnected:,} out of contact" if total.disconnected else "",
        f"showing {listed:,}, troubled workers first, then the busiest" if listed < workers else "",
        f"{matching:,} with {formats.safe(wanted)!r}" if wanted else "",
    ]
    return "; ".join(filter(None, parts))


def disk_failures(status: Status) -> list[str]:
    failures = status.scheduler.disk_failure, status.storage.disk_failure
    lines = [f"DISK: {formats.safe(failure)}" for failure in failures if failure]
    return [*lines, formats.safe(status.spending.reached)] if status.spending.reached else lines


def first_waiting(status: Status) -> str:
    oldest = max(status.waiting, key=lambda row: row.age_seconds, default=None)
    if oldest is None or oldest.age_seconds < WAITS_SECONDS:
        return ""
    verb = "waits" if oldest.tasks == 1 else "wait"
    return formats.safe(f"{counted(oldest.tasks, 'task')} of {oldest.function} {verb}: {oldest.reason}")


def first_finding(model: Model) -> str:
    """Return the most important finding as one line that starts with the advice. Empty without findings."""
    return next((formats.safe(f"{row.advice} {row.text}") for row in findings(model)), "")


def _scheduler(status: Status) -> Pairs:
    scheduler, storage = status.scheduler, status.storage
    pairs = [("cpu", formats.percent(scheduler.cpu_percent)), ("rss", formats.size(scheduler.rss_bytes))]
    times = {"up": scheduler.uptime_seconds, "step": scheduler.step_seconds_max}
    pairs += [(name, formats.duration(seconds)) for name, seconds in times.items() if seconds]
    if storage.address:
        pairs += [("objs", formats.short_count(storage.objects)), ("mem", formats.size(storage.bytes))]
    disk = {"spill": storage.spilled_bytes, "state": storage.state_bytes, "journal": scheduler.journal_bytes}
    pairs += [(name, formats.size(size)) for name, size in disk.items() if size]
    return pairs


def _tasks(status: Status, per_second: float | None) -> Pairs:
    tasks = status.tasks
    # Most important first: a low terminal shows only these.
    names = ("ready", "running", DONE, "failed", CANCELLED, "waiting", "assigned", "suspended")
    counts: dict[str, int] = {**tasks._asdict(), **tasks.ended, "failed": tasks.failed_total}
    rate = [("per second", formats.short_count(round(per_second)))] if per_second is not None else []
    kinds = {kind: number for kind, number in tasks.ended.items() if number and kind not in (DONE, CANCELLED)}
    return [*((name, f"{counts.get(name, 0):,}") for name in names), *rate, *_by_count(kinds)]


def _by_count(counts: Mapping[str, int]) -> Pairs:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, f"{number:,}") for name, number in ordered]


# -- one worker


def worker_lines(worker: WorkerRow, width: int, most_processors: int) -> list[str]:
    agent = f"{formats.percent(worker.agent_cpu_percent)} {formats.size(worker.agent_rss_bytes)}"
    tasks = f"sent {worker.sent:,}  queued {worker.queued}  suspended {worker.suspended}"
    lag = formats.duration(worker.latency_seconds)
    sizes = map(formats.size, (worker.rss_bytes, worker.memory_peak_bytes, worker.memory_mean_bytes))
    memory = "{}  at most {}  on average {}".format(*sizes)
    lines = [
        f"worker {worker.name} on {worker.host} (pid {worker.pid}): {_STATES.get(worker.state, 'takes tasks')}",
        f"manager {worker.manager or 'none'}  unit {worker.unit or 'none'}  id {worker.id}",
        f"capabilities {worker.capabilities or 'none'}",
        f"slots {worker.slots}  free {worker.free}  {tasks}  lag {lag}  agent {agent}",
        f"memory {memory}",
        f"{'pid':>8} {'cpu':>7} {'rss':>8} ITL",
    ]
    for each in worker.processors[:most_processors]:
        figures = f"{each.pid:>8} {formats.percent(each.cpu_percent):>7} {formats.size(each.rss_bytes):>8}"
        lines.append(f"{figures} {each.itl}{' suspended' if each.suspended else ''}")
    if len(worker.processors) > most_processors:
        lines.append(f"{len(worker.processors) - most_processors} more".rjust(8))
    return [formats.cut(line, width) for line in lines]


def task_lines(worker: WorkerRow, recent: Sequence[TaskRow]) -> dict[str, str]:
    """Return lines by task id: running tasks, longest first, then recent tasks."""
    lines: dict[str, str] = {}
    for each in worker.busy:
        state = "suspended" if each.suspended else RUNNING
        lines[each.running] = _task_line(each.running, state, each.running_seconds, str(each.pid), each.function)
    for task in recent:
        if task.id not in lines:
            text = f"{task.function} {task.text}"
            lines[task.id] = _task_line(task.id, task.state, task.duration_us / 1e6, "", text)
    return lines


def found_lines(found: Sequence[TaskRow]) -> dict[str, str]:
    rows = ((row, f"{row.function} {row.worker} {row.text}") for row in found)
    return {row.id: _task_line(row.id, row.state, row.duration_us / 1e6, "", text) for row, text in rows}


def _task_line(task: str, state: str, seconds: float, pid: str, function: str) -> str:
    name, duration = f"{formats.left(task, 32)} {formats.left(state, 12)}", formats.duration(seconds) if seconds else ""
    return f"{name} {duration:>7} {pid:>8} {formats.safe(function.strip())}"


def log_text(log: TaskLog) -> str:
    parts = []
    for name, data in (("stdout", log.stdout), ("stderr", log.stderr), ("traceback", log.traceback)):
        if data:
            lines = data.decode("utf-8", errors="backslashreplace").splitlines()
            parts.append("\n".join([f"--- {name}", *(formats.safe(line.expandtabs()) for line in lines)]))
    if log.truncated_bytes:
        parts.append(f"--- {log.truncated_bytes:,} B omitted")
    return "\n".join(parts) or "this task has no output"


def profile_text(document: Mapping[str, Any]) -> str:
    if not document["of"]:
        return "no samples of this task: it was too short, or profile_interval_seconds is 0"
    table = read_document(document).table(str(document["name"]))
    return table if document["of"] == "task" else f"no samples of this task; showing all tasks of its function\n{table}"


# -- reports without a screen


def as_text(model: Model, width: int | None) -> str:
    """Return panels, totals, all listed workers, and counts. width: width of the terminal, None for no limit."""
    status = model.status
    found = panels(status)
    rows = sort(status.workers, Sorting())
    across = PANELS_WIDTH if width is None else width
    lines = beside(found, across, height_of(found, MAX_PANEL_LINES))
    lines += ["", *disk_failures(status), totals(status, len(rows), len(rows), ""), *table(rows, Sorting(), width)]
    for side in sides(model, status):
        if side.pairs:
            lines += ["", *side.lines(min(max(side.natural, side.least), across), 1 + len(side.pairs))]
    if status.waiting:
        lines += ["", *table_of(WaitingRow, status.waiting, width)]
    if status.managers:
        lines += ["", *units_lines(status, width)]
    if len(status.stores) > 1:
        lines += ["", *data_lines(status, width)]
    elif functions := function_lines(status, width):
        lines += ["", *functions]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def as_json(model: Model, address: str) -> str:
    """Return one JSON document: the scheduler's last state as rows, with the computed columns."""
    status = model.status
    document: dict[str, Any] = {"version": VERSION, "address": address, **view(status)}
    document["incarnation"] = status.incarnation
    document["messages"] = {"sent": document.pop("sent"), "received": document.pop("received")}
    for name in KEYS:
        document[name] = [view(row, whole=True) for row in getattr(status, name)]
    for part in model.parts:
        document |= part.document()
    return json.dumps(document) + "\n"


# -- the page of keys and columns

_SORTS = "\n".join(f"  {key}       sort by {column.title}; again: in reverse" for key, column in BY_KEY.items())
_ASKED = "\n".join(f"  {key}       {found.title}" for key, found in ASKED.items())
_COLUMNS = "\n".join(f"  {column.title:13} {column.schema.help}" for column in COLUMNS)
HELP = f"""\
Keys                                            escape or ? closes this page
{_SORTS}
  < >     sort by the column to the left or right of the sorted one
  /       only workers with a text in their name, manager, capabilities, function
  t       waiting tasks, and why they wait; there / searches all tasks
  u       units of the worker managers: state, reason, and cost
  b       data on hosts, and transfers between them
{_ASKED}
  space   freeze the screen; again: resume
  enter   a worker's processors and tasks; there e explains a task,
          o shows its output, p shows which code is slow
  arrows, page up and down, home, end     move
  q       quit

Columns
{_COLUMNS}
Columns that do not fit are hidden; the sorted one is always shown.
"""

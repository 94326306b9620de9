"""What is known of one worker, as lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaler.monitor.top import formats
from scaler.protocol.messages import TaskLog
from scaler.protocol.monitor_rows import RUNNING, ProcessorRow, TaskRow, WorkerRow

TASKS_HEAD = f"{'task':32} {'state':12} {'for':>7} {'pid':>8} function"
_STATES = {"away": "out of contact", "held": "held: too many failures", "ends": "ends: takes no new tasks"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A task in the list of a worker's tasks. id: in hex."""

    id: str
    text: str


def facts(worker: WorkerRow, width: int, most_processors: int) -> list[str]:
    """Return the worker's own lines and one for each of so many processors, each of at most this width."""
    state = _STATES.get(worker.state, "takes tasks")
    agent = f"{formats.percent(worker.agent_cpu_percent)} {formats.size(worker.agent_rss_bytes)}"
    tasks = f"sent {formats.count(worker.sent)}  queued {worker.queued}  suspended {worker.suspended}"
    lag = formats.duration(worker.latency_seconds)
    lines = [
        f"worker {worker.name} ({worker.id}): {state}",
        f"manager {worker.manager or 'none'}  unit {worker.unit or 'none'}",
        f"capabilities {worker.capabilities or 'none'}",
        f"slots {worker.slots}  free {worker.free}  {tasks}  lag {lag}  agent {agent}",
        f"{'pid':>8} {'cpu':>7} {'rss':>8} ITL",
        *map(_processor, worker.processors[:most_processors]),
    ]
    left_out = len(worker.processors) - most_processors
    if left_out > 0:
        lines.append(f"{left_out} more".rjust(8))
    return [formats.cut(line, width) for line in lines]


def tasks_of(worker: WorkerRow, recent: Sequence[TaskRow]) -> list[Listed]:
    """Return the worker's tasks: those that run, the longest first, and then those that were heard of last."""
    running = sorted(
        (each for each in worker.processors if each.running), key=lambda each: each.running_seconds, reverse=True
    )
    listed = [
        Listed(
            each.running,
            _line(each.running, "suspended" if each.suspended else RUNNING, each.running_seconds, each.pid,
                  each.function),
        )
        for each in running
    ]  # fmt: skip
    ids = {each.id for each in listed}
    listed += [
        Listed(task.id, _line(task.id, task.state, task.duration_us / 1e6, None, f"{task.function} {task.text}"))
        for task in recent
        if task.id not in ids
    ]
    return listed


def log_text(log: TaskLog) -> str:
    """Return what a task printed, safe for a terminal, what went to stderr apart from the rest."""
    parts = []
    for name, data in (("stdout", log.stdout), ("stderr", log.stderr)):
        if data:
            lines = data.decode("utf-8", errors="backslashreplace").splitlines()
            parts.append("\n".join([f"--- {name}", *(formats.safe(line.expandtabs()) for line in lines)]))
    if log.truncated_bytes:
        parts.append(f"--- {formats.count(log.truncated_bytes)} bytes were left out")
    return "\n".join(parts) or "it has printed nothing that is kept"


def _processor(processor: ProcessorRow) -> str:
    figures = f"{processor.pid:>8} {formats.percent(processor.cpu_percent):>7} {formats.size(processor.rss_bytes):>8}"
    return f"{figures} {processor.itl}{' suspended' if processor.suspended else ''}"


def _line(task: str, state: str, seconds: float, pid: int | None, function: str) -> str:
    return (
        f"{formats.left(task, 32)} {formats.left(state, 12)} {formats.duration(seconds):>7} "
        f"{'' if pid is None else pid:>8} {formats.safe(function.strip())}"
    )

"""The timeline as a trace that Chrome's and Perfetto's viewers open. Pure.

The format is the Trace Event Format's JSON object: a process per worker manager, a thread per worker, a complete event
(`"ph": "X"`, times in microseconds) per task.
"""

from __future__ import annotations

from typing import Any

from scaler.monitor.model import Model

_COLOURS = {"done": "good", "running": "thread_state_running", "cancelled": "grey"}
_FAILED = "terrible"


def trace(model: Model, since: float = 0.0) -> dict[str, Any]:
    """Return the tasks that ended or ran since a time (unix seconds), as a JSON-able document."""
    managers = {worker.name: worker.manager for worker in model.status.workers}
    processes: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for thread, (worker, bars) in enumerate(sorted(model.lanes(since).items()), 1):
        manager = managers.get(worker, "workers that are gone")
        process = processes.get(manager)
        if process is None:
            process = processes[manager] = len(processes) + 1
            events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": manager}})
        events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": worker}})
        for bar in bars:
            task = model.task(bar.task)
            arguments: dict[str, Any] = {"task": bar.task, "state": bar.state}
            if task is not None:
                arguments |= {"client": task.client, "attempt": task.attempt}
                arguments |= {"cpu_us": task.cpu_us, "peak_bytes": task.peak_bytes} if task.peak_bytes else {}
                arguments |= {"failure": task.text} if task.text else {}
            events.append(
                {
                    "ph": "X",
                    "name": bar.function or "task",
                    "cat": bar.state,
                    "cname": _COLOURS.get(bar.state, _FAILED),
                    "pid": process,
                    "tid": thread,
                    "ts": round(bar.start * 1e6),
                    "dur": max(1, round((bar.end - bar.start) * 1e6)),
                    "args": arguments,
                }
            )
    return {"displayTimeUnit": "ms", "traceEvents": events}

"""A cluster that consists only of its scheduler's documents, of any size, deterministic in every run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scaler.monitor.cluster_rows import DecisionRow, IncidentRow
from scaler.plugins import extensions

Document = dict[str, Any]

COLUMNS = [
    "id",
    "state",
    "function",
    "client",
    "worker",
    "attempt",
    "ended_at",
    "duration_us",
    "cpu_us",
    "peak_bytes",
    "text",
    "traceback",
    "lane",
    "started_at",
]
FUNCTIONS = ("price_swaption", "simulate_paths", "load_market", "calibrate", "aggregate", "risk_report")
TRACEBACK = """Traceback (most recent call last):
  File "book.py", line 41, in price_swaption
    return model.price(trade)
  File "model.py", line 87, in price
    raise ValueError(f"no curve for {trade.currency}")
ValueError: no curve for XYZ
"""
GIB = 1024**3
PROFILE: Document = {
    "samples": 40,
    "frames": ["price_swaption (book.py:41)", "price (model.py:87)", "step (model.py:120)", "curve (market.py:12)"],
    "stacks": [[2_000_000, 0, 1, 2], [1_000_000, 0, 1], [600_000, 0, 1, 2, 2], [400_000, 0, 3]],
}
"""A stack: its microseconds and the numbers of its frames."""
HOSTS = 6
"""Hosts with a store."""
MAX_LISTED_TASKS = 2000


@dataclass
class FakeCluster:
    """Busy workers of one slot each, generated from one seed. Times are unix seconds."""

    workers: int = 12
    tasks_per_second: float = 20.0
    at: float = 1_790_000_000.0
    incarnation: int = 1_790_000_000
    functions: tuple[str, ...] = FUNCTIONS
    worker_name: str = "node-{:03d}"
    host_name: str = "rack-{}"
    client_names: tuple[str, ...] = ("risk-desk", "notebook-anna")
    seed: int = 7
    ended: Counter[str] = field(default_factory=Counter)
    dead: set[int] = field(default_factory=set)
    started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.at
        self._random = random.Random(self.seed)
        self._queued = 400.0
        self._free_at = [self.at] * self.workers
        self._running = [self._new_task(worker, self.at) for worker in range(self.workers)]
        self._by_function: dict[str, Counter[str]] = {name: Counter() for name in self.functions}

    def events(self, seconds: float) -> Document:
        """Let time pass, and return the events."""
        self.at += seconds
        wanted = round(self.tasks_per_second * seconds)
        alive = [worker for worker in range(self.workers) if worker not in self.dead]
        rows = [self._end(alive[self._random.randrange(len(alive))]) for _ in range(wanted if alive else 0)]
        self._queued = max(0.0, self._queued + self._random.uniform(-40, 40))
        listed = rows[:MAX_LISTED_TASKS]
        return {
            "version": 1,
            "at": self.at,
            "dropped": len(rows) - len(listed),
            "tasks": {"columns": COLUMNS, "rows": listed},
        }

    def decision(self, units: int, reason: str, manager: str = "grid") -> DecisionRow:
        return DecisionRow(self.at, manager, units, 0, reason)

    def incident(self, kind: str, subject: str, text: str) -> IncidentRow:
        return IncidentRow(self.at, kind, subject, text)

    def status(self) -> Document:
        """Return the whole state."""
        alive = [worker for worker in range(self.workers) if worker not in self.dead]
        queued, waiting = int(self._queued), int(self._queued / 5)
        return {
            "version": 1,
            "at": self.at,
            "incarnation": self.incarnation,
            "scheduler": {
                "cpu_percent": 12.5,
                "rss_bytes": 81 * 1024**2,
                "uptime_seconds": self.at - self.started_at,
                "step_seconds_max": 0.0031,
                "lag_seconds_max": 0.0007,
                "host": self.host_name.format(0),
                "extensions": " ".join(each.name for each in extensions()),
            },
            "storage": {
                "address": "tcp://127.0.0.1:8517",
                "objects": 421,
                "bytes": 3 * GIB,
                "limit_bytes": 16 * GIB,
                "latency_seconds": 0.0006,
            },
            "tasks": {
                "waiting": waiting,
                "ready": queued,
                "assigned": len(alive) + 2,
                "running": len(alive),
                "suspended": 0,
                "ended": dict(self.ended),
            },
            "messages": {
                "sent": {"Run": sum(self.ended.values()), "Heartbeat": 411, "Results": 220},
                "received": {"Ended": sum(self.ended.values()), "Heartbeat": 410, "Submit": 96},
            },
            "totals": {
                "workers": len(alive),
                "slots": len(alive),
                "draining": 0,
                "disconnected": 0,
                "clients": len(self.client_names),
                "managers": 1,
                "functions": len(self.functions),
                "calls": len(self.client_names),
                "stores": HOSTS + 1,
                "links": len(alive),
                "unreachable": 1,
                "moved_bytes": int(self.at - self.started_at) * GIB // 4,
            },
            "stores": [self._store(host) for host in range(HOSTS + 1)],
            "objects": [
                {
                    "id": f"{number:032x}",
                    "size_bytes": (60 - number) * 16 * 1024**2,
                    "function": self.functions[number % len(self.functions)] if number % 4 else "",
                    "task": f"{number:032x}" if number % 4 else "",
                    "client": self.client_names[number % len(self.client_names)],
                    "holders": ", ".join(self.host_name.format(each) for each in range(number % 7 + 1)),
                }
                for number in range(30 if self.client_names else 0)
            ],
            "pairs": [self._pair(source, target) for source in range(HOSTS + 1) for target in range(HOSTS + 1)],
            "workers": [self._worker(worker) for worker in alive],
            "links": [self._link(worker) for worker in alive[:100]],
            "clients": [
                {"id": f"{place:032x}", "name": name, "tasks": 200, "queued": 180, "running": 20, "ended": 4000}
                for place, name in enumerate(self.client_names)
            ],
            "calls": [
                {
                    "id": f"{place:032x} {place + 1}",
                    "call": ("map", "get")[place % 2],
                    "name": (self.functions[0], "240 keys")[place % 2],
                    "client": name,
                    "queued": 180,
                    "running": 20,
                    "ended": 4000,
                    "failed": 3 * place,
                    "cancelled": 0,
                    "began_at": self.started_at + place,
                    "p50_seconds": 0.31,
                    "p95_seconds": 1.2,
                    "max_seconds": 14.0,
                    "reason": "all workers that fit are busy",
                    "oldest": f"{place:032x}",
                }
                for place, name in enumerate(self.client_names)
            ],
            "managers": [self._manager(len(alive))],
            "spending": {
                "hour": 9.4,
                "day": 31.08,
                "run": 31.08,
                "day_limit": 40.0,
                "per_hour": 12.6,
                "forecast": 2.1,
                "today": 20.5,
                "next_limit": "day",
                "limit_seconds": 2548.0,
            },
            "functions": [
                {
                    "name": name,
                    "queued": 40,
                    "running": 2,
                    "ended": counts["ended"],
                    "failed": counts["failed"],
                    "seconds_total": counts["ended"] * 0.4,
                    "p50_seconds": 0.31,
                    "p95_seconds": 1.2,
                    "max_seconds": 14.0,
                    "p50_before_seconds": (0.24, 0.62, None)[place % 3],
                }
                for place, (name, counts) in enumerate(self._by_function.items())
            ],
        }

    def _new_task(self, worker: int, at: float) -> tuple[str, str, float]:
        function = self.functions[min(int(self._random.expovariate(0.6)), len(self.functions) - 1)]
        return self._random.randbytes(16).hex(), function, at

    def _end(self, worker: int) -> list[Any]:
        """End the task that a worker runs, and start the next."""
        task, function, _ = self._running[worker]
        draw = self._random.random()
        state = "failed" if draw < 0.02 else "cancelled" if draw < 0.035 else "done"
        free_at = self._free_at[worker]
        ended_at = max(free_at + 0.001, self.at - self._random.uniform(0, 0.2))
        start = max(free_at, ended_at - self._random.uniform(0.2, 14.0))
        self._free_at[worker] = ended_at
        self._running[worker] = self._new_task(worker, ended_at)
        self.ended[state] += 1
        counts = self._by_function[function]
        counts["ended"] += 1
        counts["failed"] += state == "failed"
        failure = state == "failed"
        micros = max(1, int((ended_at - start) * 1e6))
        client = self.client_names[counts["ended"] % len(self.client_names)]
        text, traceback = ("ValueError: no curve for XYZ", TRACEBACK) if failure else ("", "")
        name = self.worker_name.format(worker)
        return [
            task,
            state,
            function,
            client,
            name,
            1,
            ended_at,
            micros,
            int(micros * 0.93),
            190 * 1024**2,
            text,
            traceback,
            1,
            start,
        ]

    def _worker(self, worker: int) -> Document:
        task, function, _ = self._running[worker]
        return {
            "id": f"{worker:032x}",
            "name": self.worker_name.format(worker),
            "host": f"rack-{worker // 4}",
            "pid": 3000 + worker,
            "manager": "grid",
            "unit": f"unit-{worker // 4}",
            "capabilities": "gpu=1" if worker % 5 == 0 else "",
            "slots": 1,
            "assigned": 2,
            "suspended": 0,
            "free": 0,
            "sent": sum(self.ended.values()) // self.workers,
            "queued": 1,
            "draining": False,
            "quarantined": False,
            "connected": True,
            "agent_cpu_percent": 0.8,
            "agent_rss_bytes": 44 * 1024**2,
            "latency_seconds": 0.0009,
            **self._heats(worker),
            "processors": [
                {
                    "pid": 4000 + worker,
                    "cpu_percent": round(self._random.uniform(88, 100), 1),
                    "rss_bytes": 210 * 1024**2 + worker * 1024**2,
                    "initialized": True,
                    "suspended": False,
                    "running": task,
                    "running_seconds": max(0.0, self.at - self._free_at[worker]),
                    "function": function,
                }
            ],
        }

    def _heats(self, worker: int) -> Document:
        """Every tenth worker is slow, disks on one rack fill up, and one worker is the only one for its function.

        With fewer than four workers, their tasks are not compared.
        """
        slow, full = worker % 10 == 9, worker // 4 == 2
        heats = {
            "failures": 0,
            "slowness": 84 if slow else 0,
            "lag": 0,
            "memory": 12 if full else 0,
            "cpu": None,
            "disk": 43 if full else 0,
        }
        if worker == 5 or self.workers < 4:
            heats |= {"failures": None, "slowness": None}
        fault = "0.6 GiB of 10 GiB are free on the disk with its temporary files" if full else ""
        if slow:
            fault = f"tasks of {self.functions[0]}() take 130% longer than on {self.workers - 1} other workers"
        return {**{f"{name}_heat": heat for name, heat in heats.items()}, "fault": fault}

    def _store(self, host: int) -> Document:
        return {
            "id": str(host),
            "host": self.host_name.format(host) if host else "object storage",
            "address": f"tcp://10.0.0.{host}:34217",
            "objects": 1200 + 7 * host,
            "bytes": (host + 1) * 2 * GIB,
            "limit_bytes": 16 * GIB,
            "spilled_bytes": GIB if host == HOSTS else 0,
            "hits": 90_000,
            "misses": 1000 * host,
            "received_bytes": int(self.at - self.started_at) * (host + 1) * 1024**2,
            "sent_bytes": 40 * GIB,
        }

    def _pair(self, source: int, target: int) -> Document:
        return {
            "id": f"{source}-{target}",
            "source": self.host_name.format(source) if source else "object storage",
            "target": self.host_name.format(target) if target else "object storage",
            "bytes": 0 if source == target else (source * 7 + target * 3) % 11 * GIB // 3,
            "unreachable": (source, target) == (2, 5),
        }

    def _link(self, worker: int) -> Document:
        return {
            "id": f"{worker:032x}",
            "name": self.worker_name.format(worker),
            "kind": "worker",
            "host": f"rack-{worker // 4}",
            "latency_seconds": 0.0009 + worker * 1e-5,
            "received_bytes": int(self.at - self.started_at) * 9_000,
            "sent_bytes": int(self.at - self.started_at) * 21_000,
        }

    def _manager(self, running: int) -> Document:
        return {
            "id": "grid",
            "kind": "baremetal_native",
            "desired": self.workers,
            "running": running,
            "pending": self.workers - running,
            "failed": 0,
            "units": running,
            "unit_slots": 1,
            "max_slots": 64,
            "capabilities": "gpu=1",
            "trouble": "",
            "reason": f"400 tasks wait for {running} slots: {self.workers} units",
        }

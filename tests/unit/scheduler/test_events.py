"""Event reports to monitors: their rows, their number, and their bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.messages import MonitorEvents
from scaler.monitor.reports import events
from scaler.monitor.reports.events import MAX_TRACEBACK, Events
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_CONTROL_BYTES, Done, Outcome, ProcessorStatus, Started, WorkerHeartbeat
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.commands import MonitoringChanged
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import Cluster

AT = 1.7e9
MAX_TASK_ROWS, FLOOD_ROWS, MAX_PAST_TASKS = 200, 100, 20


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit reports to the values above, which tests fill quickly."""
    for name in ("MAX_TASK_ROWS", "FLOOD_ROWS", "MAX_PAST_TASKS"):
        monkeypatch.setattr(events, name, globals()[name])


class Watched:
    """A cluster, and a monitor's view of it. Unix time is the cluster's clock plus AT."""

    def __init__(self, cluster: Cluster | None = None, slots: int = 1) -> None:
        self.cluster = cluster or Cluster()
        self.cluster.state.rooms.unix_at_zero = AT
        self.cluster.step(MonitoringChanged(True))
        self.events = Events()
        self.client = self.cluster.client()
        self.worker = self.cluster.worker("w", slots=slots)
        self.report()

    def report(self) -> Any:
        """Return the next report; None if nothing happened."""
        self.events.add(self.cluster.take_facts(), self.now)
        report = self.events.report(self.now)
        return json.loads(report.document()) if report is not None else None

    def past(self) -> Any:
        self.events.add(self.cluster.take_facts(), self.now)
        return json.loads(self.events.past(self.cluster.state, self.now).document())

    @property
    def now(self) -> float:
        return AT + self.cluster.now

    def finish(self, count: int, outcome: Outcome = Outcome.SUCCESS, payload: bytes = b"\x80", **options: Any) -> None:
        """Submit tasks that end at once, in batches as large as the worker's credit."""
        waiting = set(self.cluster.submit(self.client, count, **options))
        while waiting:
            ready = [task for task in self.cluster.on(self.worker) if task in waiting]
            waiting.difference_update(ready)
            self.cluster.finish(self.worker, *ready, outcome=outcome, payload=payload)


def rows(document: Any) -> Iterator[dict[str, Any]]:
    assert document["tasks"]["columns"] == list(TaskRow._fields)
    for row in document["tasks"]["rows"]:
        yield dict(zip(TaskRow._fields, row, strict=True))


def states(document: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows(document):
        found[row["state"]] = found.get(row["state"], 0) + 1
    return found


def test_ended_task_has_a_complete_row() -> None:
    watched = Watched()
    (task,) = watched.cluster.submit(watched.client, profiling=True, name="work")
    watched.cluster.say(watched.worker, Done([task], [1], [Outcome.SUCCESS], [b"\x80"], [1500], [1200], [1 << 20]))
    document = watched.report()
    assert (document["version"], document["at"], document["dropped"]) == (1, watched.now, 0)
    assert list(rows(document)) == [
        {
            "id": task.hex(),
            "state": "done",
            "function": "work",
            "client": "client",
            "worker": "manager-1",
            "attempt": 1,
            "max_attempts": 4,
            "ended_at": watched.now,
            "duration_us": 1500,
            "cpu_us": 1200,
            "peak_bytes": 1 << 20,
            "inputs_us": 0,
            "inputs_bytes": 0,
            "failed_input": "",
            "text": "",
            "traceback": "",
            "lane": 0,
            "failures": 0,
            "losses": 0,
            "tags": "",
            "calls": 0,
            "failed_calls": 0,
            "started_at": watched.now - 0.0015,
        }
    ]


def ran_on_lanes(watched: Watched, count: int, duration_us: int, clock: float) -> None:
    """Let tasks end one by one on two alternating lanes, with this time on the worker's clock at their end."""
    waiting = set(watched.cluster.submit(watched.client, count))
    began_us = round(clock * 1e6) - (count // 2 + 1) * duration_us
    while waiting:
        ready = [task for task in watched.cluster.on(watched.worker) if task in waiting]
        waiting.difference_update(ready)
        begun = [began_us + place // 2 * duration_us for place in range(len(ready))]
        began_us += (len(ready) + 1) // 2 * duration_us
        lanes = [1 + place % 2 for place in range(len(ready))]
        ones, values, costs = [1] * len(ready), [b"\x80"] * len(ready), [duration_us] * len(ready)
        done = Done(ready, ones, [0] * len(ready), values, costs, began_us=begun, lanes=lanes)
        watched.cluster.say(watched.worker, done)


def test_task_has_its_lane_and_start_time_by_the_workers_clock() -> None:
    watched = Watched(slots=2)
    beat = WorkerHeartbeat(7.0, 0.0, 0, 0, 0.0, clock_offset_seconds=93.5, clock_error_seconds=0.001)
    watched.cluster.say(watched.worker, beat)
    watched.events.unix_at_zero = AT
    ran_on_lanes(watched, 4, 1000, clock=watched.cluster.now - 93.5)
    found = list(rows(watched.report()))
    assert [row["lane"] for row in found] == [1, 2, 1, 2]
    assert [row["started_at"] - found[0]["started_at"] for row in found] == pytest.approx(
        [0.0, 0.0, 0.001, 0.001], abs=1e-6
    )
    assert [row["ended_at"] - row["started_at"] for row in found] == pytest.approx([0.001] * 4, abs=1e-6)
    assert found[-1]["ended_at"] == pytest.approx(AT + watched.cluster.now - 0.001, abs=0.0011)


def test_task_never_ends_after_its_result_arrived_despite_clock_errors() -> None:
    watched = Watched(slots=2)
    beat = WorkerHeartbeat(7.0, 0.0, 0, 0, 0.0, clock_offset_seconds=1e6, clock_error_seconds=0.001)
    watched.cluster.say(watched.worker, beat)
    ran_on_lanes(watched, 4, 1000, clock=7.0)
    for row in rows(watched.report()):
        assert round(row["ended_at"], 6) <= watched.cluster.now


def test_failed_task_has_its_text_and_traceback() -> None:
    watched = Watched()
    watched.finish(1, Outcome.EXCEPTION, dump_exception(ValueError("no"), "Traceback: here" + "x" * 100_000))
    (row,) = rows(watched.report())
    assert (row["state"], row["text"]) == ("exception", "ValueError: no")
    assert row["traceback"].startswith("Traceback: here")
    assert len(row["traceback"]) <= MAX_TRACEBACK


def test_retried_task_is_reported_with_its_final_outcome_and_evidence() -> None:
    watched = Watched()
    (task,) = watched.cluster.submit(watched.client)
    watched.cluster.finish(watched.worker, task, outcome=Outcome.PROCESSOR_DIED, payload=b"killed by signal 9")
    document = watched.report()
    evidence = "attempt 1 on manager-1 (host, pid 1): killed by signal 9"
    (row,) = rows(document)
    assert (row["state"], row["attempt"], row["text"]) == ("retrying", 1, evidence)
    assert [(incident.kind, incident.text) for incident in watched.events.notes["incidents"]] == [("retried", evidence)]
    watched.cluster.wait(0.1)
    watched.cluster.finish(watched.worker, task)
    (row,) = rows(watched.report())
    assert (row["state"], row["attempt"], row["text"]) == ("done", 2, evidence)


def test_longer_task_has_a_row_until_it_ends() -> None:
    watched = Watched()
    first, second = watched.cluster.submit(watched.client, 2)
    watched.cluster.say(watched.worker, Started([first]))
    watched.cluster.wait(2.0, alive=[watched.client, watched.worker])
    (row,) = rows(watched.report())
    assert (row["id"], row["state"], row["ended_at"]) == (first.hex(), "running", None)
    watched.cluster.say(watched.worker, Started([second]))
    watched.cluster.finish(watched.worker, second)
    assert states(watched.report()) == {"done": 1}


@pytest.mark.usefixtures("small_bounds")
def test_reports_failures_then_cancelled_then_latest_among_too_many_tasks() -> None:
    watched = Watched(slots=MAX_TASK_ROWS)
    watched.finish(30, Outcome.EXCEPTION, dump_exception(ValueError("no"), ""))
    watched.cluster.cancel(watched.client, *watched.cluster.submit(watched.client, 40, needs=(("gpu", 1.0),)))
    watched.finish(3 * MAX_TASK_ROWS)
    ended = [fact for fact in watched.cluster.facts if isinstance(fact, TasksEnded)]
    document = watched.report()
    assert states(document) == {"exception": 30, "cancelled": 40, "done": FLOOD_ROWS - 70}
    assert document["dropped"] == 3 * MAX_TASK_ROWS - FLOOD_ROWS + 70
    last = [row["id"] for row in rows(document)][-1]
    assert last == ended[-1].ids[-1].hex()


def test_report_fits_a_control_message_with_any_names_and_tracebacks() -> None:
    letter = "\N{GRINNING FACE}"
    watched = Watched(slots=300)
    watched.finish(40, name=letter * 2_000)
    raised = dump_exception(ValueError(letter * 2_000), letter * 5_000)
    watched.finish(160, Outcome.EXCEPTION, raised, name=letter * 2_000)
    watched.events.add(watched.cluster.take_facts(), watched.now)
    report = watched.events.report(watched.now)
    assert report is not None
    assert len(encode(MonitorEvents(report.document(10**9)))) < MAX_CONTROL_BYTES
    document = json.loads(report.document())
    assert document["dropped"] + len(document["tasks"]["rows"]) == 200
    assert any(row["traceback"] for row in rows(document))
    past = watched.events.past(watched.cluster.state, watched.now).document()
    assert len(encode(MonitorEvents(past))) < MAX_CONTROL_BYTES


@pytest.mark.usefixtures("small_bounds")
def test_late_monitor_gets_recent_tasks_and_running_work() -> None:
    watched = Watched()
    watched.cluster.step(MonitoringChanged(False))
    for _ in range(3):
        watched.finish(15)
        watched.cluster.wait(1.0, alive=[watched.client, watched.worker])
    (running,) = watched.cluster.submit(watched.client)
    processor = ProcessorStatus(7, 0.0, 0, True, False, running, 1.5)
    watched.cluster.say(watched.worker, WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, [processor]))
    document = watched.past()
    assert states(document) == {"done": MAX_PAST_TASKS, "running": 1}
    ended_at = [row["ended_at"] for row in rows(document) if row["ended_at"] is not None]
    assert ended_at == sorted(ended_at)
    assert ended_at[-1] == pytest.approx(watched.now - 1.0)
    (row,) = [row for row in rows(document) if row["state"] == "running"]
    assert (row["id"], row["duration_us"]) == (running.hex(), 1_500_000)

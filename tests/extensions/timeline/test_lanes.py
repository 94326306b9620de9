"""The lanes of the timeline, and its trace."""

from __future__ import annotations

from scaler.extensions.timeline.lanes import Bar, lanes, trace
from scaler.monitor.model import Model
from tests.unit.monitor.test_model import COLUMNS, done, events, running, status


def test_lanes_show_ended_and_running_tasks_of_every_slot() -> None:
    model = Model()
    model.apply_status(status(100.0, workers=[{"name": "w", "slots": 2}, {"name": "idle", "slots": 1}]))
    model.apply_events(events(100.0, done("a", 99.0), done("old", 60.0), done("g", 98.0, worker="gone"), running("r")))
    assert lanes(model, since=80.0) == {
        ("w", 1): [Bar(98.5, 99.0, "a", "work", "done")],
        ("w", 2): [Bar(98.0, 100.0, "r", "work", "running")],
        ("idle", 1): [],
        ("gone", 1): [Bar(97.5, 98.0, "g", "work", "done")],
    }
    assert lanes(model, until=70.0)["w", 1] == [Bar(59.5, 60.0, "old", "work", "done")]


def test_bar_and_trace_show_fetch_time_of_stored_inputs() -> None:
    model = Model()
    columns = [*COLUMNS, "inputs_us", "inputs_bytes"]
    rows = [[*done("a", 99.0), 200_000, 5000], [*done("b", 100.0), 900_000, 7]]
    model.apply_status(status(100.0))
    model.apply_events({"version": 1, "at": 100.0, "tasks": {"columns": columns, "rows": rows}})
    first, second = lanes(model)["w", 1]
    assert (first.inputs, first.inputs_bytes) == (0.2, 5000)
    assert (second.inputs, second.end - second.start) == (0.5, 0.5), "no longer than the task itself"
    shown = [each for each in trace(model)["traceEvents"] if each["name"] == "inputs"]
    assert [(each["dur"], each["args"]["bytes"]) for each in shown] == [(200_000, 5000), (500_000, 7)]


def test_trace_has_a_thread_per_lane_and_an_event_per_task() -> None:
    model = Model()
    worker = {"name": "w", "manager": "m", "host": "box", "pid": 41, "slots": 2}
    model.apply_status(status(100.0, workers=[worker]))
    model.apply_events(events(100.0, done("a", 99.0), done("b", 99.5, "exception", text="ValueError: odd")))
    document = trace(model)
    tasks = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"], event["cat"]) for event in tasks] == [
        ("work", 98_500_000, 500_000, "done"),
        ("work", 99_000_000, 500_000, "exception"),
    ]
    assert tasks[1]["args"]["failure"] == "ValueError: odd"
    names = [event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"]
    assert names == ["m", "w (box, pid 41), lane 1", "w (box, pid 41), lane 2"]

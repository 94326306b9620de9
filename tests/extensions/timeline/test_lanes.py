"""The lanes of the timeline, and its trace."""

from __future__ import annotations

from scaler.extensions.timeline.lanes import Bar, Block, Lane
from scaler.extensions.timeline.monitor import TaskLanes
from scaler.extensions.timeline.trace import trace
from scaler.monitor.model import Model
from tests.unit.monitor.test_model import COLUMNS, ZERO, done, events, running, status


def test_lanes_show_what_ended_and_what_runs_on_every_slot() -> None:
    model = Model()
    model.apply_status(status(100.0, workers=[{"name": "w", "slots": 2}, {"name": "idle", "slots": 1}]))
    model.apply_events(events(100.0, done("a", 99.0), done("old", 60.0), done("g", 98.0, worker="gone"), running("r")))
    assert model.part(TaskLanes).lanes(since=80.0) == {
        ("w", 1): Lane([Bar(98.5, 99.0, "a", "work", "done")]),
        ("w", 2): Lane([Bar(98.0, 100.0, "r", "work", "running")]),
        ("idle", 1): Lane(),
        ("gone", 1): Lane([Bar(97.5, 98.0, "g", "work", "done")]),
    }
    assert model.part(TaskLanes).lanes(until=70.0)["w", 1] == Lane([Bar(59.5, 60.0, "old", "work", "done")])


def test_a_bar_says_how_long_its_task_got_stored_inputs_and_the_trace_shows_it() -> None:
    model = Model()
    columns = [*COLUMNS, "inputs_us", "inputs_bytes"]
    rows = [[*done("a", 99.0), 200_000, 5000], [*done("b", 100.0), 900_000, 7]]
    model.apply_status(status(100.0))
    model.apply_events({"version": 1, "at": 100.0, "tasks": {"columns": columns, "rows": rows}})
    first, second = model.part(TaskLanes).lanes()["w", 1].bars
    assert (first.inputs, first.inputs_bytes) == (0.2, 5000)
    assert (second.inputs, second.end - second.start) == (0.5, 0.5), "no longer than the task itself"
    shown = [each for each in trace(model)["traceEvents"] if each["name"] == "inputs"]
    assert [(each["dur"], each["args"]["bytes"]) for each in shown] == [(200_000, 5000), (500_000, 7)]


def test_tasks_that_the_scheduler_did_not_list_are_counted_on_their_lanes() -> None:
    model = Model()
    block = {"worker": "w", "lane": 1, "began_us": 1_000_000, "until_us": 1_250_000, "tasks": 900, "busy_us": 200_000}
    model.apply_events({**events(100.0, dropped=900), "blocks": [{**block, "clock_zero": ZERO}]})
    assert model.part(TaskLanes).lanes()["w", 1].blocks == [Block(51.0, 51.25, 900, 0.2)]
    counters = [event for event in trace(model)["traceEvents"] if event["ph"] == "C"]
    assert [(event["ts"], event["args"]) for event in counters] == [
        (51_000_000, {"tasks": 900}),
        (51_250_000, {"tasks": 0}),
    ]


def test_a_trace_has_a_thread_for_every_lane_and_an_event_for_every_task() -> None:
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


def test_a_lane_is_red_by_the_share_that_failed() -> None:
    model = Model()
    ends = [ZERO + 0.001 * number for number in range(1, 1001)]
    states = ["exception" if number % 500 == 7 else "done" for number in range(1000)]
    rows = [done(f"{place:032x}", end, state) for place, (end, state) in enumerate(zip(ends, states, strict=True))]
    model.apply_events(events(1e6, *rows))
    lane = model.part(TaskLanes).lanes(resolution=60.0)["w", 1]
    assert not lane.bars
    assert sum(block.failed for block in lane.blocks) == 2
    assert sum(block.tasks for block in lane.blocks) == 1000

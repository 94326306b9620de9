"""What views read of the model."""

from __future__ import annotations

from typing import Any

from scaler.monitor.model import SERIES_SECONDS, Model

COLUMNS = ["id", "state", "function", "client", "worker", "attempt", "ended_at", "duration_us", "text"]
COLUMNS += ["lane", "started_at"]


def status(at: float, *, ended: dict[str, int] | None = None, incarnation: int = 1, **more: Any) -> dict[str, Any]:
    return {"version": 1, "at": at, "incarnation": incarnation, "tasks": {"ended": ended or {}}, **more}


def events(at: float, *tasks: list[Any], dropped: int = 0) -> dict[str, Any]:
    return {"version": 1, "at": at, "dropped": dropped, "tasks": {"columns": COLUMNS, "rows": list(tasks)}}


def points(model: Model, name: str, since: float = 0.0) -> list[tuple[float, float]]:
    columns = model.series.columns(since)
    return list(zip(columns["at"], columns[name], strict=True))


def done(name: str, ended_at: float, state: str = "done", worker: str = "w", text: str = "") -> list[Any]:
    return [name, state, "work", "alice", worker, 1, ended_at, 500_000, text, 1, ended_at - 0.5]


def running(name: str, duration_us: int = 0, attempt: int = 1, began_at: float = 98.0) -> list[Any]:
    return [name, "running", "work", "alice", "w", attempt, None, duration_us, "", 2, began_at]


def test_rates_are_differences_between_two_states() -> None:
    model = Model()
    model.apply_status(status(100.0, ended={"done": 50}))
    model.apply_status(status(102.0, ended={"done": 250, "exception": 10}))
    assert points(model, "tasks_per_second", 0) == [(100.0, 0.0), (102.0, 105.0)]
    assert points(model, "failed_per_second", 101.0) == [(102.0, 5.0)]


def test_finds_a_task_by_part_of_any_known_field() -> None:
    model = Model()
    model.apply_events(events(10.0, done("aa11", 9.0), done("bb22", 9.5, "exception", text="ValueError: odd")))
    assert [task.id for task in model.tasks()] == ["bb22", "aa11"]
    assert [task.id for task in model.tasks(search="valueERROR")] == ["bb22"]
    assert [task.id for task in model.tasks(search="aa1")] == ["aa11"]
    assert [task.id for task in model.tasks(search=" aa1 ")] == ["aa11"], "pasted with spaces"
    assert [task.id for task in model.tasks(state="failed")] == ["bb22"]
    assert model.tasks(function="other") == []
    assert len(model.tasks(worker="w", limit=1)) == 1


def test_points_older_than_the_series_are_dropped() -> None:
    model = Model()
    for second in (1.0, 2.0, 2.0, SERIES_SECONDS + 1.0, SERIES_SECONDS + 2.0):
        model.apply_status(status(second, totals={"workers": int(second)}))
    assert [at for at, _ in points(model, "workers")] == [2.0, SERIES_SECONDS + 1.0, SERIES_SECONDS + 2.0]


def test_documents_of_another_version_are_read_as_far_as_possible() -> None:
    model = Model()
    model.apply_status({"at": 1.0, "tasks": {"ready": "many", "waiting": 3, "new": 1}, "workers": [7, {"slots": True}]})
    assert (model.status.tasks.ready, model.status.tasks.waiting) == (0, 3)
    assert [worker.slots for worker in model.status.workers] == [0, 0]
    model.apply_events({"tasks": {"columns": ["id"], "rows": [["a"], ["b", 1], 5, [None]]}, "new": 4})
    assert [task.id for task in model.tasks()] == ["a"]

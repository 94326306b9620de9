"""A snapshot with deltas applied equals a new snapshot, for any events at any time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.model import Model
from scaler.monitor.rows import KEYS
from scaler.monitor.web.delta import DeltaEncoder
from tests.unit.monitor.web_rig import Browser, events, status, task, worker

names = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 5)
rows = st.lists(st.builds(lambda name, number: {"id": name, "name": name, "ended": number}, names, numbers), max_size=3)
workers = st.lists(st.builds(lambda name, number: worker(name, free=number), names, numbers), max_size=3)
states = st.sampled_from(["running", "done", "exception"])
statuses = st.builds(
    lambda step, incarnation, workers, clients, functions: (
        "status",
        step,
        {"incarnation": incarnation, "workers": workers, "clients": clients, "functions": functions},
    ),
    st.integers(0, 3),
    st.integers(1, 2),
    workers,
    rows,
    rows,
)
happened = st.builds(lambda tasks: ("events", tasks), st.lists(st.tuples(names, states), max_size=130))
steps = st.lists(statuses | happened | st.just(("update",)), max_size=15)


def apply(model: Model, step: tuple[Any, ...], at: float) -> None:
    match step:
        case ("status", _, more):
            model.apply_status(status(at, **more))
        case ("events", tasks):
            rows = [task(name, state, ended_at=None if state == "running" else at) for name, state in tasks]
            model.apply_events(events(at, *rows))


@given(steps)
def test_snapshot_plus_deltas_equals_a_new_snapshot(steps: list[tuple[Any, ...]]) -> None:
    model, browser, at = Model(), Browser(), 1.0
    encoder = DeltaEncoder(model, ConnectionRow, 100)
    browser.take("snapshot", encoder.snapshot())
    heard = 0
    for step in [*steps, ("update",)]:
        at += step[1] if step[0] == "status" else 0
        if step[0] != "update":
            apply(model, step, at)
            continue
        kind, document = encoder.update()
        json.dumps(document, allow_nan=False)
        browser.take(kind, document)
        if kind == "delta":
            tasks: Any = document.get("tasks", {"rows": [], "left_out": 0})
            assert len(tasks["rows"]) + tasks["left_out"] == model.updates - heard
        heard = model.updates
    fresh = DeltaEncoder(model, ConnectionRow, 100).snapshot()
    for name, key in KEYS.items():
        assert browser.tables[name] == {row[key]: row for row in fresh[name]}
    assert browser.status == fresh["status"]
    assert [*encoder.update()[1]] == ["connection"]

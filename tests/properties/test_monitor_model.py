"""Whatever a monitor is told and wherever it is cut: a snapshot and the rest make the same model as everything."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.monitor.model import MAX_INCIDENTS, Model

names = st.sampled_from(["a", "b", "c", "d"])
numbers = st.integers(0, 10_000)
times = st.floats(0, 1e6, allow_nan=False)
states = st.sampled_from(["running", "done", "exception", "cancelled"])

task_rows = st.tuples(names, states, names, names, numbers, st.none() | times, numbers, names).map(list)
columns = ["id", "state", "function", "worker", "attempt", "ended_at", "duration_us", "text"]
events = st.fixed_dictionaries(
    {
        "at": times,
        "dropped": numbers,
        "tasks": st.fixed_dictionaries({"columns": st.just(columns), "rows": st.lists(task_rows, max_size=4)}),
        "decisions": st.lists(st.fixed_dictionaries({"at": times, "manager": names, "units": numbers}), max_size=2),
        "incidents": st.lists(st.fixed_dictionaries({"at": times, "kind": names}), max_size=MAX_INCIDENTS // 250),
    }
)
workers = st.fixed_dictionaries(
    {
        "name": names,
        "processors": st.lists(
            st.fixed_dictionaries({"pid": numbers, "running": names, "rss_bytes": numbers}), max_size=2
        ),
    }
)
statuses = st.fixed_dictionaries(
    {
        "at": times,
        "incarnation": st.integers(1, 2),
        "tasks": st.fixed_dictionaries({"ready": numbers, "ended": st.dictionaries(states, numbers, max_size=3)}),
        "workers": st.lists(workers, max_size=3),
        "odd": st.none() | numbers | st.text(max_size=3),
    }
)
messages = st.lists(st.tuples(st.just("status"), statuses) | st.tuples(st.just("events"), events), max_size=12)


def fold(model: Model, told: list[tuple[str, dict[str, Any]]]) -> Model:
    for kind, document in told:
        if kind == "status":
            model.apply_status(document)
        else:
            model.apply_events(document)
    return model


@settings(max_examples=200, deadline=None)
@given(messages, st.integers(0, 12))
def test_a_snapshot_and_the_rest_make_the_same_model_as_everything(
    told: list[tuple[str, dict[str, Any]]], cut: int
) -> None:
    whole = fold(Model(), told)
    snapshot = json.loads(json.dumps(fold(Model(), told[:cut]).snapshot()))
    rest = fold(Model.from_snapshot(snapshot), told[cut:])
    assert rest.snapshot() == whole.snapshot()
    assert rest.status == whole.status
    assert rest.tasks(limit=100) == whole.tasks(limit=100)
    assert rest.lanes(0.0) == whole.lanes(0.0)

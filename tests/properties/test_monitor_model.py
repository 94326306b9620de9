"""For any messages that a monitor receives, its model is bounded, and its views match their schemas."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.timeline.lanes import lanes
from scaler.monitor.model import Model
from scaler.monitor.rows import json_schema, view

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


@given(messages)
def test_every_row_has_a_view_that_fits_its_schema(received: list[tuple[str, dict[str, Any]]]) -> None:
    model = Model()
    for kind, document in received:
        if kind == "status":
            model.apply_status(document)
        else:
            model.apply_events(document)
    for row in chain[Any]([model.status], model.status.workers, model.tasks(limit=100)):
        shown = json.loads(json.dumps(view(row, whole=True), allow_nan=False))
        jsonschema.validate(shown, json_schema(type(row), whole=True), jsonschema.Draft202012Validator)
    for bars in lanes(model).values():
        assert [bar.start for bar in bars] == sorted(bar.start for bar in bars)

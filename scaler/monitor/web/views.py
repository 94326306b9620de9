"""The JSON documents that the web server answers, as docs/web-api.md describes them, and errors. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from scaler.monitor.lanes import Bar, Block
from scaler.monitor.model import Model
from scaler.monitor.rows import View, view


def status_view(model: Model) -> View:
    rates = {name: model.series.last(name) for name in ("tasks_per_second", "failed_per_second")}
    return {**view(model.status), **rates, "tasks_left_out": model.dropped}


def timeline_view(model: Model, seconds: float, since: float, until: float, resolution: float) -> View:
    """Return what ran on each lane between these times, or in the last seconds."""
    at = model.now
    since, until = since or at - seconds, until or at
    managers = {worker.name: worker.manager for worker in model.status.workers}
    functions: dict[str, int] = {}
    states: dict[str, int] = {}

    def place(function: str) -> int:
        return functions.setdefault(function, len(functions))

    def bar(of: Bar) -> list[object]:
        start, end, task, function, state, inputs, size, failed = of
        names = task, place(function), states.setdefault(state, len(states))
        return [round(start, 6), round(end, 6), *names, round(inputs, 6), size, round(failed, 6)]

    def block(of: Block) -> list[object]:
        start, end, tasks, busy, function, failed = of
        return [round(start, 6), round(end, 6), tasks, round(busy, 6), place(function), round(failed, 6)]

    lanes = [
        {
            "worker": worker,
            "lane": number,
            "manager": managers.get(worker, ""),
            "gone": worker not in managers,
            "bars": list(map(bar, lane.bars)),
            "blocks": list(map(block, lane.blocks)),
        }
        for (worker, number), lane in model.lanes(since, until, resolution).items()
    ]
    return {
        "at": at,
        "since": since,
        "until": until,
        "oldest": model.oldest_end(),
        "functions": list(functions),
        "states": list(states),
        "lanes": lanes,
    }


# -- responses


def dump(document: object) -> bytes:
    """Return a document as JSON in ASCII: texts of a cluster may hold unpaired surrogates, which UTF-8 cannot encode.

    Raises ValueError for a number that JSON cannot express.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def answer(document: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(dump(document), status, headers, "application/json")


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error. text: what is wrong and what to do about it."""
    return answer({"error": text}, headers, status)

"""The API routes of the timeline."""

from __future__ import annotations

from scaler.extensions.timeline.lanes import Bar, lanes, oldest_end, trace
from scaler.monitor.model import Model
from scaler.monitor.rows import View
from scaler.monitor.tables import number
from scaler.monitor.web.routes import MAX_TIMELINE_SECONDS, ApiRoute, seconds

_TIMES = (
    seconds(300),
    number("since", "Start time (Unix seconds), instead of `seconds`.", "number", 0, 1e15, 0.0),
    number("until", "End time (Unix seconds); 0: now.", "number", 0, 1e15, 0.0),
)
_LANE = {
    "worker": str,
    "lane": int,
    "manager": str,
    "gone": bool,
    "bars": [(float, float, str, int, int, float, int, float)],
}
_TIMELINE = {
    "at": float,
    "since": float,
    "until": float,
    "oldest": float | None,
    "functions": [str],
    "states": [str],
    "lanes": [_LANE],
}
_DOWNLOAD = {"Content-Disposition": 'attachment; filename="scaler-trace.json"'}


def timeline_view(model: Model, seconds: float, since: float, until: float) -> View:
    at = model.now
    since, until = since or at - seconds, until or at
    managers = {worker.name: worker.manager for worker in model.status.workers}
    functions: dict[str, int] = {}
    states: dict[str, int] = {}

    def shown(bar: Bar) -> list[object]:
        """Return the values, with places in the lists instead of names."""
        function = functions.setdefault(bar.function, len(functions))
        values = (*bar[:3], function, states.setdefault(bar.state, len(states)), *bar[5:])
        return [round(value, 6) if isinstance(value, float) else value for value in values]

    found = [
        {
            "worker": worker,
            "lane": number,
            "manager": managers.get(worker, ""),
            "gone": worker not in managers,
            "bars": list(map(shown, bars)),
        }
        for (worker, number), bars in lanes(model, since, until).items()
    ]
    return {
        "at": at,
        "since": since,
        "until": until,
        "oldest": oldest_end(model),
        "functions": list(functions),
        "states": list(states),
        "lanes": found,
    }


ROUTES = (
    ApiRoute(
        "/api/timeline",
        "timeline",
        "Tasks on each lane of each worker",
        _TIMELINE,
        lambda source, query: timeline_view(source.monitor.model, **query),
        _TIMES,
    ),
    ApiRoute(
        "/api/trace",
        "trace",
        "The timeline for the Chrome and Perfetto viewers",
        {"displayTimeUnit": str, "traceEvents": [{}]},
        lambda source, query: trace(source.monitor.model, query["seconds"]),
        (seconds(MAX_TIMELINE_SECONDS),),
        _DOWNLOAD,
    ),
)

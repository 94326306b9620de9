"""Answers of `/api`, which match its OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from scaler.monitor.model import Model
from scaler.monitor.web.api import ROUTES
from tests.unit.monitor.web_rig import NASTY, TASK, PreparedMonitor, ask, events, filled_model, status, task


def asked(path: str, monitor: PreparedMonitor | None = None) -> Any:
    reply = ask(path, monitor)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    return reply.json()


@pytest.mark.parametrize("model", [Model(), filled_model()], ids=["before the first state", "with everything"])
def test_every_route_answers_as_its_openapi_document_specifies(model: Model) -> None:
    document = asked("/api/openapi.json")
    for route in ROUTES:
        reply = ask(route.path.replace("{id}", TASK), PreparedMonitor(model))
        unknown = route.path == "/api/tasks/{id}" and not model.task_count
        assert reply.status_code == (404 if unknown else 200), route.path
        schema = document["paths"][route.path]["get"]["responses"]["default" if unknown else "200"]
        schema = {**schema["content"]["application/json"]["schema"], "components": document["components"]}
        assert jsonschema.Draft202012Validator(schema).is_valid(reply.json()), route.path


def test_status_has_totals_and_task_counts() -> None:
    found = asked("/api/status")
    assert found["connection"]["connected"] is True
    assert found["connection"]["incarnation"] == "1"
    tasks = found["status"]["tasks"]
    assert (tasks["queued"], tasks["ended_total"], tasks["failed_total"]) == (5, 9, 2)


def test_cluster_text_with_any_content_arrives_unchanged() -> None:
    found = asked("/api/tasks?state=failed")["tasks"]
    assert [row["text"] for row in found] == [NASTY]
    assert asked("/api/decisions")["decisions"][0]["reason"] == NASTY
    assert asked("/api/incidents")["incidents"][0]["text"] == NASTY


def test_tasks_are_found_by_every_column() -> None:
    model = filled_model()
    model.apply_events(events(11.0, task("e" * 32, worker="other", client="bob", function="play")))
    monitor = PreparedMonitor(model)

    def ids(query: str) -> list[str]:
        return [row["id"][0] for row in asked(f"/api/tasks?{query}", monitor)["tasks"]]

    assert ids("") == ["e", "f", "0"]
    assert ids("limit=1") == ["e"]
    assert ids("worker=other") == ids("client=bob") == ids("function=play") == ids("search=BOB") == ["e"]
    assert ids("state=failed") == ids("state=exception") == ["f"]


def test_task_output_is_shown_without_control_characters() -> None:
    found = asked(f"/api/tasks/{TASK}/log")
    assert found == {"id": TASK, "stdout": "a\tb\n\\x1b[31mred\\xff\n", "stderr": "", "cut": 5}


def test_unresponsive_scheduler_is_a_descriptive_503() -> None:
    for question in ("explain", "log"):
        reply = ask(f"/api/tasks/{'1' * 32}/{question}")
        assert reply.status_code == 503
        assert "did not answer within 5 s" in reply.json()["error"]


def test_timeline_has_a_lane_per_slot_and_names_each_function_once() -> None:
    found = asked("/api/timeline?seconds=600")
    assert (found["since"], found["until"], found["at"], found["oldest"]) == (10.5 - 600, 10.5, 10.5, 9.5)
    used, idle = found["lanes"]
    assert (used["worker"], used["lane"], used["manager"], used["gone"]) == ("w", 1, "here", False)
    assert sorted(found["states"][bar[4]] for bar in used["bars"]) == ["done", "exception"]
    assert found["functions"] == ["work"]
    assert (idle["worker"], idle["lane"], idle["bars"]) == ("w", 2, [])


def test_timeline_range_contains_the_tasks_that_ran_in_it() -> None:
    model = Model()
    model.apply_status(status(10.0))
    model.apply_events(events(10.0, *(task(f"{n:032x}", ended_at=n, duration_us=500_000) for n in range(1, 10))))
    monitor = PreparedMonitor(model)

    def bars(query: str) -> list[float]:
        return [bar[1] for bar in asked(f"/api/timeline?{query}", monitor)["lanes"][0]["bars"]]

    assert bars("since=3.2&until=5.7") == [4.0, 5.0, 6.0]


def test_history_time_defaults_to_a_day_ago() -> None:
    found = asked("/api/history?from=100&to=500")
    assert (found["since"], found["until"], found["oldest"]) == (100.0, 500.0, 1.0)
    assert (found["points"]["at"], found["points"]["done"]) == ([100.0, 440.0], [5, 7])
    assert (found["events"][0]["text"], found["failures"][0]["function"]) == (NASTY, "work")
    found = asked("/api/history")
    assert (found["since"], found["until"]) == (10.5 - 86_400, 10.5)


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/api/tasks?limit=0", 400, "limit = 0: must be a whole number from 1 to 1000"),
        ("/api/tasks?limit=1.5", 400, "limit = '1.5': must be a whole number"),
        ("/api/tasks?limit=1&limit=2", 400, "limit is given more than once"),
        ("/api/tasks?serach=x", 400, "unknown parameter 'serach'; did you mean 'search'?"),
        ("/api/status?x=1", 400, "unknown parameter 'x'; there are none here"),
        (f"/api/tasks?search={'x' * 1001}", 400, "search is longer than 1000 characters"),
        ("/api/history?from=9&to=8", 400, "from = 9: must be before to = 8"),
        ("/api/history?from=-1", 400, "from = -1: must be a number from 0"),
        ("/api/timeline?seconds=1e9", 400, "seconds = 1e9: must be a number from 1 to 86400"),
        ("/api/timeline?seconds=nan", 400, "seconds = nan: must be a number from 1 to 86400"),
        ("/api/series?name=cpu", 400, "name = 'cpu': must be one of tasks_per_second"),
        ("/api/tasks/12", 400, "'12' is not a task id: give the 32 hexadecimal digits"),
        (f"/api/tasks/{'1' * 32}", 404, "no task 1111"),
        ("/api/nothing", 404, "there is no /api/nothing here"),
        ("/nothing.html", 404, "there is no /nothing.html here"),
    ],
)
def test_invalid_question_error_suggests_valid_ones(path: str, code: int, text: str) -> None:
    reply = ask(path)
    assert reply.status_code == code
    assert reply.json()["error"].startswith(text)

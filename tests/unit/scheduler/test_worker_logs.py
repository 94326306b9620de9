"""The scheduler keeps the last records of workers' own logs: bounded, of one worker no more than its share."""

from __future__ import annotations

import json

from scaler.protocol.log_rows import LogRow
from scaler.protocol.messages import FindWorkerLogs, LogLine, WorkerLogged
from scaler.scheduler.core.worker_logs import (
    MAX_ANSWER_BYTES,
    MAX_LINES,
    MAX_LINES_OF_MESSAGE,
    MAX_TEXT,
    WorkerLogs,
)
from tests.unit.scheduler.driver import Cluster


def logged(*texts: str, dropped: int = 0) -> WorkerLogged:
    return WorkerLogged([LogLine(9.5, "WARNING", "agent", text) for text in texts], dropped)


def rows(logs: WorkerLogs, worker: str = "", most: int = MAX_LINES) -> list[LogRow]:
    return [LogRow._make(each) for each in json.loads(logs.found(FindWorkerLogs(worker, most)).json)]


def test_records_are_found_by_name_or_id_of_the_worker_the_newest_first(cluster: Cluster) -> None:
    one, two = cluster.worker("one"), cluster.worker("two")
    cluster.say("one", logged("first", "second"))
    cluster.say("two", logged("third", dropped=3))
    logs = cluster.state.worker_logs
    assert [row.text for row in rows(logs)] == ["third", "second", "first"]
    name, owner = rows(logs)[0].worker, rows(logs)[0].worker_id
    assert [row.text for row in rows(logs, name)] == ["third"] == [row.text for row in rows(logs, owner)]
    assert [row.text for row in rows(logs, most=2)] == ["third", "second"]
    assert rows(logs, "stranger") == []
    assert logs.dropped == 3
    assert one is not two


def test_all_of_it_is_bounded() -> None:
    logs = WorkerLogs()
    for number in range(20):
        logs.add(bytes([number]) * 8, f"w{number}", logged(*["\x1b" * 2 * MAX_TEXT] * 2 * MAX_LINES_OF_MESSAGE))
    assert len(logs) == MAX_LINES
    assert len(logs.found(FindWorkerLogs("", MAX_LINES)).json) <= MAX_ANSWER_BYTES
    assert all(len(row.text) == MAX_TEXT for row in rows(logs))

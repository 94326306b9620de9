"""The scheduler retains the latest records of workers' logs within limits, also per worker."""

from __future__ import annotations

import pytest

from scaler.extensions.logs.core import MAX_LINES, MAX_LINES_OF_MESSAGE, MAX_TEXT, Logs
from scaler.extensions.logs.rows import LogRow
from scaler.net.connection import Identity
from scaler.protocol.messages import LogLine, WorkerLogged
from scaler.scheduler.tables import ANSWER_BYTES, rows_document
from tests.unit.scheduler.driver import Cluster


def logged(*texts: str, dropped: int = 0) -> WorkerLogged:
    return WorkerLogged([LogLine(9.5, "WARNING", "agent", text) for text in texts], dropped)


class ClusterWithLogs(Cluster):
    def __init__(self) -> None:
        self.logs = Logs()
        self.parts = (lambda: self.logs,)
        super().__init__()


@pytest.fixture
def cluster() -> ClusterWithLogs:
    cluster = ClusterWithLogs()
    cluster.client("alice", identity=Identity("alice"))
    cluster.client("bob", identity=Identity("bob"))
    for name in ("one", "two"):
        cluster.worker(name)
    return cluster


def rows(cluster: ClusterWithLogs, worker: str = "", most: int = MAX_LINES, client: str = "alice") -> list[LogRow]:
    record = cluster.state.clients[cluster.peer(client)]
    return [*cluster.logs.rows("logs", worker, most, record, cluster.state)]


def test_finds_log_records_by_worker_name_or_id_newest_first(cluster: ClusterWithLogs) -> None:
    cluster.say("one", logged("first", "second"))
    cluster.say("two", logged("third", dropped=3))
    assert [row.text for row in rows(cluster)] == ["third", "second", "first"]
    name, owner = rows(cluster)[0].worker, rows(cluster)[0].worker_id
    assert [row.text for row in rows(cluster, name)] == ["third"] == [row.text for row in rows(cluster, owner)]
    assert [row.text for row in rows(cluster, most=2)] == ["third", "second"]
    assert rows(cluster, "stranger") == []


def test_kept_logs_and_answers_have_bounded_sizes(cluster: ClusterWithLogs) -> None:
    for number in range(20):
        cluster.worker(f"w{number}")
        cluster.say(f"w{number}", logged(*["\x1b" * 2 * MAX_TEXT] * 2 * MAX_LINES_OF_MESSAGE))
    assert len(rows_document(rows(cluster))) <= ANSWER_BYTES + 1000
    assert all(len(row.text) == MAX_TEXT for row in rows(cluster))


def test_record_about_a_task_is_visible_only_with_access_to_the_task(cluster: ClusterWithLogs) -> None:
    [task] = cluster.submit("alice")
    cluster.say("one", WorkerLogged([LogLine(9.5, "WARNING", "agent", "of a task", task)]))
    assert [row.text for row in rows(cluster)] == ["of a task"]
    assert rows(cluster, client="bob") == []

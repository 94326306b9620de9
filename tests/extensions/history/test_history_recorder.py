"""The history of a scheduler: its retention, writing, and answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scaler.extensions.history import HistorySettings
from scaler.extensions.history.files import HistoryFiles
from scaler.journal.files import FileWriter
from scaler.monitor.history_rows import ClusterHistory
from scaler.monitor.messages import FindHistory, HistoryFound
from scaler.monitor.rows import decode
from scaler.net.connection import Identity
from scaler.protocol.messages import Outcome, Reply, Role, Unanswered
from scaler.scheduler.core.changes import Incident, Noted, ProcessMeasured
from scaler.scheduler.core.commands import Perform, ShellObserved
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.rooms import Surroundings
from tests.extensions.history.recorded import UNIX, Recorded

HOUR = 3_600.0
MONITOR = ClientRecord(b"monitor.", "", 0.0, identity=Identity("eve", frozenset({Role.MONITOR})))


def ask(cluster: Recorded, since: float, until: float, client: ClientRecord = MONITOR) -> Reply | Perform:
    return cluster.history.on_question(FindHistory(since, until), client, cluster.state)


def read(reply: object) -> ClusterHistory:
    assert isinstance(reply, HistoryFound)
    return decode(ClusterHistory, json.loads(reply.json))


def test_current_minute_is_reported_with_slots_queue_and_failures() -> None:
    cluster = Recorded()
    client = cluster.client()
    cluster.worker("w", slots=2)
    tasks = cluster.submit(client, 9)
    cluster.finish("w", tasks[0], outcome=Outcome.EXCEPTION, payload=b"no exception")
    cluster.observe(ShellObserved([ProcessMeasured(0.25, 1_000_000)]))
    cluster.wait(10)
    history = read(ask(cluster, cluster.unix - 60, cluster.unix + 1))
    [point] = history.points
    assert (point.slots, point.running, point.queued, point.workers, point.failed) == (2, 2, 6, 1, 1)
    assert (point.memory_bytes, point.lag_seconds) == (1_000_000, 0.25)
    assert [each.times for each in history.failures] == [1]
    assert history.functions[0].ended == 1
    assert history.oldest == UNIX


def test_client_key_cannot_see_actions_of_others() -> None:
    client = ClientRecord(b"client..", "", 0.0, identity=Identity("alice", frozenset({Role.CLIENT})))
    answer = ask(Recorded(), 0.0, UNIX, client)
    assert isinstance(answer, Unanswered)
    assert "role monitor or admin, but alice has role client" in answer.text


def test_client_inside_a_task_cannot_read_history_from_files(tmp_path: Path) -> None:
    cluster = Recorded(tmp_path)
    client, worker = cluster.client(identity=Identity("root", is_admin=True)), cluster.worker("w")
    [task] = cluster.submit(client)
    cluster.say(cluster.nested("inner", worker, task), FindHistory(0.0, 1.0))
    assert any(name == "inner" and isinstance(each, Unanswered) for name, each in cluster.said)


def test_earlier_runs_are_read_from_files_and_the_current_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(unix: float, story: Callable[[Recorded, HistoryFiles], Awaitable[None]]) -> None:
        """Run a scheduler that starts at this time, and stop it."""

        async def main() -> None:
            cluster, writer = Recorded(tmp_path, unix), FileWriter()
            told = asyncio.get_running_loop().create_future()
            shell = Surroundings(asyncio.get_running_loop(), writer, told.set_result, tmp_path)
            files = HistoryFiles(tmp_path, HistorySettings(), shell)
            await asyncio.wait_for(told, 10)
            await story(cluster, files)
            cluster.observe(ShellObserved([Noted("ended")]))
            files.perform(cluster.written)
            files.close()
            writer.close()

        monkeypatch.setattr(time, "time", lambda: unix)
        monkeypatch.setattr(time, "time_ns", lambda: int(unix * 1e9))
        asyncio.run(main())

    async def first(cluster: Recorded, _files: HistoryFiles) -> None:
        now = Now(cluster.now, cluster.state.rooms.unix_at_zero + cluster.now)
        cluster.history.on_changes([Incident("lost", "worker 1", "gone", {})], now)

    run(UNIX, first)

    async def second(cluster: Recorded, files: HistoryFiles) -> None:
        cluster.wait(5)
        question, answered = ask(cluster, UNIX - HOUR, cluster.unix + 1), asyncio.get_running_loop().create_future()
        assert isinstance(question, Perform)
        files.answer(question.work, answered.set_result)
        history = read(await asyncio.wait_for(answered, 10))
        assert sorted(event.kind for event in history.events) == ["ended", "lost", "started", "started"]
        assert [point.at for point in history.points] == [UNIX, UNIX + 2 * HOUR]

    run(UNIX + 2 * HOUR, second)


def test_client_inside_a_task_gets_an_error_for_answers_in_files(tmp_path: Path) -> None:
    cluster = Recorded(tmp_path)
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    cluster.relay("nested", worker, FindHistory(0.0, UNIX), task)
    assert isinstance(cluster.said[-1][1], Unanswered)

"""The recorder of a scheduler's history: what it remembers, writes and answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scaler.monitor.rows import decode
from scaler.protocol.history_rows import ClusterHistory
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.facts import Incident
from scaler.scheduler.files import FileWriter
from scaler.scheduler.history_file import HistoryFiles
from scaler.scheduler.history_recorder import HistoryRecorder
from tests.unit.scheduler.driver import Cluster

HOUR = 3_600.0


class Clock:
    """The wall clock of the recorder."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(time, "time_ns", lambda: int(clock.now * 1e9))
    return clock


async def ask(recorder: HistoryRecorder, since: float, until: float) -> ClusterHistory:
    answered = asyncio.get_running_loop().create_future()
    recorder.find(since, until, answered.set_result)
    return decode(ClusterHistory, json.loads(await asyncio.wait_for(answered, 10)))


def recorded(story: Callable[[HistoryRecorder], Awaitable[None]], cluster: Cluster, directory: Path | None) -> None:
    """Let a story happen with a recorder."""

    async def main() -> None:
        writer = FileWriter()
        files = None if directory is None else HistoryFiles(directory, HOUR, -1, writer)
        recorder = HistoryRecorder(files, cluster.state, asyncio.get_running_loop(), lambda: 0.25)
        await story(recorder)
        recorder.close()
        writer.close()

    asyncio.run(main())


def test_a_minute_that_is_not_over_is_in_the_answer_with_slots_queue_and_failures(clock: Clock) -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.worker("w", slots=2)

    async def story(recorder: HistoryRecorder) -> None:
        tasks = cluster.submit(client, 9)
        cluster.finish("w", tasks[0], outcome=Outcome.EXCEPTION, payload=b"no exception")
        recorder.add(cluster.facts)
        clock.now += 10
        history = await ask(recorder, clock.now - 60, clock.now + 1)
        [point] = history.points
        assert (point.slots, point.running, point.queued, point.workers, point.failed) == (2, 2, 6, 1, 1)
        assert point.memory_bytes > 1_000_000
        assert [each.times for each in history.failures] == [1]
        assert history.functions[0].ended == 1
        assert history.oldest == clock.now - 10

    recorded(story, cluster, None)


def test_earlier_runs_come_from_the_files_and_this_one_once(clock: Clock, tmp_path: Path) -> None:
    async def first(recorder: HistoryRecorder) -> None:
        recorder.add([Incident("lost", "worker 1", "gone", {})])

    recorded(first, Cluster(), tmp_path)
    clock.now += 7_200

    async def second(recorder: HistoryRecorder) -> None:
        clock.now += 5
        history = await ask(recorder, clock.now - 3 * HOUR, clock.now + 1)
        assert sorted(event.kind for event in history.events) == ["ended", "lost", "started", "started"]
        assert [point.at for point in history.points] == [1_700_000_000.0, 1_700_007_200.0]

    recorded(second, Cluster(), tmp_path)

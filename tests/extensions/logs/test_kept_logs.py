"""The scheduler keeps the last records of workers' own logs: bounded, of one worker no more than its share."""

from __future__ import annotations

import json
from collections.abc import Container

from scaler.extensions.logs.core import (
    MAX_ANSWER_BYTES,
    MAX_LINES,
    MAX_LINES_OF_MESSAGE,
    MAX_TEXT,
    WorkerLogs,
)
from scaler.extensions.logs.rows import LogRow
from scaler.protocol.messages import FindWorkerLogs, LogLine, WorkerLogged
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import PeerRecord


def logged(*texts: str, dropped: int = 0) -> WorkerLogged:
    return WorkerLogged([LogLine(9.5, "WARNING", "agent", text) for text in texts], dropped)


class Kept:
    """What a scheduler keeps of the logs of its workers."""

    def __init__(self) -> None:
        self.logs = WorkerLogs()

    def say(self, name: str, message: WorkerLogged) -> None:
        assert self.logs.on_message(PeerRecord(name.encode(), f"pool-{name}", 0.0), message, Now(0.0, 0.0)) == ()

    def json(self, worker: str = "", most: int = MAX_LINES, sees: Container[bytes] = frozenset()) -> bytes:
        return self.logs.on_question(FindWorkerLogs(worker, most), sees.__contains__).json

    def rows(self, worker: str = "", most: int = MAX_LINES, sees: Container[bytes] = frozenset()) -> list[LogRow]:
        return [LogRow._make(each) for each in json.loads(self.json(worker, most, sees))]


def test_records_are_found_by_name_or_id_of_the_worker_the_newest_first() -> None:
    kept = Kept()
    kept.say("one", logged("first", "second"))
    kept.say("two", logged("third", dropped=3))
    assert [row.text for row in kept.rows()] == ["third", "second", "first"]
    assert [row.text for row in kept.rows("pool-two")] == ["third"] == [row.text for row in kept.rows(b"two".hex())]
    assert [row.text for row in kept.rows(most=2)] == ["third", "second"]
    assert kept.rows("stranger") == []
    assert kept.logs.dropped == 3


def test_all_of_it_is_bounded() -> None:
    kept = Kept()
    for number in range(20):
        kept.say(f"w{number}", logged(*["\x1b" * 2 * MAX_TEXT] * 2 * MAX_LINES_OF_MESSAGE))
    assert len(kept.logs) == MAX_LINES
    assert len(kept.json()) <= MAX_ANSWER_BYTES
    assert all(len(row.text) == MAX_TEXT for row in kept.rows())


def test_a_record_about_a_task_is_for_those_who_may_see_the_task() -> None:
    kept, task = Kept(), b"t" * 16
    kept.say("one", WorkerLogged([LogLine(9.5, "WARNING", "agent", "of a task", task)]))
    assert kept.rows() == []
    assert [row.text for row in kept.rows(sees={task})] == ["of a task"]

"""Retention of task output, within limits per task and in total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.logs import core as module
from scaler.extensions.logs.core import HEAD_BYTES, TAIL_BYTES, KeptOutput, Logs
from scaler.monitor.messages import ReadLog, TaskLog
from scaler.protocol.messages import Outcome, Output, Printed
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import Cluster, Remembering

TASK = bytes(16)


@given(st.lists(st.integers(0, 3 * TAIL_BYTES), max_size=8))
def test_keeps_head_and_tail_of_long_text_and_counts_the_rest(sizes: list[int]) -> None:
    logs = KeptOutput()
    whole = b""
    for number, size in enumerate(sizes):
        text = bytes([ord("a") + number]) * size
        whole += text
        logs.add(TASK, False, text)
    log = logs.read(TASK)
    if len(whole) <= HEAD_BYTES + TAIL_BYTES:
        assert (log.stdout, log.truncated_bytes) == (whole, 0)
    else:
        cut = len(whole) - HEAD_BYTES - TAIL_BYTES
        marker = b"\n... %d bytes left out ...\n" % cut
        assert (log.stdout, log.truncated_bytes) == (whole[:HEAD_BYTES] + marker + whole[-TAIL_BYTES:], cut)


def test_tasks_without_recent_output_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 11_000)
    logs = KeptOutput()
    first, second, third = (bytes([number]) * 16 for number in range(3))
    for task in (first, second, first, third):
        logs.add(task, True, b"x" * 3_000)
    assert logs.size_bytes <= 11_000
    assert [bool(logs.read(task).stderr) for task in (first, second, third)] == [True, False, True]


class KeepsOutput(Cluster):
    parts = (Remembering, Logs)


def test_output_is_kept_and_streamed_to_a_client_only_on_request() -> None:
    cluster = KeepsOutput()
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    cluster.say(worker, Printed([task, task], [False, False], [0, 0], [b"ke", b"pt"]))
    cluster.say(worker, Output(task, False, b" and shown"))
    assert [said.text for _, said in cluster.said if isinstance(said, Output)] == [b" and shown"]
    cluster.say(client, ReadLog(task))
    assert (client, TaskLog(task, b"kept and shown", b"", 0)) in cluster.said


def test_failure_keeps_its_output_despite_other_tasks_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 100_000)
    cluster = KeepsOutput()
    client, worker = cluster.client(), cluster.worker("w")
    failed, *printing = cluster.submit(client, 7)
    cluster.say(worker, Printed([failed], [True], [0], [b"no smile\n"]))
    cluster.finish(worker, failed, outcome=Outcome.EXCEPTION, payload=dump_exception(ValueError(), "Traceback: in f"))
    cluster.say(worker, Printed([failed], [False], [0], [b"late\n"]))
    for task in printing:
        cluster.say(worker, Printed([task], [False], [0], [b"x" * 30_000]))
    cluster.say(client, ReadLog(failed))
    assert (client, TaskLog(failed, b"late\n", b"no smile\n", 0, b"Traceback: in f")) in cluster.said

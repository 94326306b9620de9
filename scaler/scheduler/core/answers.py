"""Answers to clients' questions about tasks, limited to tasks that the client may see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaler.protocol.messages import (
    Explain,
    Explained,
    FailedTask,
    FindObjects,
    Inquiry,
    ReadFailure,
    ReadLog,
    Reply,
    TaskLog,
)
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.data import finding
from scaler.scheduler.core.explain import UNKNOWN, explain
from scaler.scheduler.core.state import ClientRecord


def _read_failure(question: ReadFailure, client: ClientRecord, state: ClusterState) -> FailedTask:
    task = question.task
    is_known = state.may_see(client, task)
    if is_known and task in state.failures:
        return state.failures.what_ran(task)
    why = explain(state, task, state.now) if is_known else UNKNOWN
    return FailedTask(task, [], [], f"{why}; only a task that ran and failed can")


def _read_log(question: ReadLog, client: ClientRecord, state: ClusterState) -> TaskLog:
    task = question.task
    if not state.may_see(client, task):
        return TaskLog(task, b"", b"", 0)
    return state.failures.log(task) if task in state.failures else state.logs.read(task)


def _explain(question: Explain, client: ClientRecord, state: ClusterState) -> Explained:
    task = question.task
    return Explained(task, explain(state, task, state.now) if state.may_see(client, task) else UNKNOWN)


ANSWERERS: Mapping[type[Inquiry], Callable[[Any, ClientRecord, ClusterState], Reply]] = {
    ReadFailure: _read_failure,
    ReadLog: _read_log,
    Explain: _explain,
    FindObjects: lambda question, client, state: finding.answer(state, question, client),
}

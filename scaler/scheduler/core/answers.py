"""Answers to the questions about tasks and what belongs to them, within what the asking client may see. Pure."""

from __future__ import annotations

from scaler.protocol.messages import (
    Explain,
    Explained,
    FailedTask,
    FindCosts,
    FindObjects,
    ReadFailure,
    ReadLog,
    Reply,
    TaskLog,
)
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.cost_answer import answer_costs
from scaler.scheduler.core.data import finding
from scaler.scheduler.core.explain import UNKNOWN, explain
from scaler.scheduler.core.state import ClientRecord

TaskQuestion = Explain | ReadLog | ReadFailure | FindObjects | FindCosts


def answer(state: ClusterState, question: TaskQuestion, client: ClientRecord, now: float) -> Reply:
    """Return the answer. client: who asks."""
    found = _found(state, question, client, now)
    found.number = question.number
    return found


def _found(state: ClusterState, question: TaskQuestion, client: ClientRecord, now: float) -> Reply:
    match question:
        case FindObjects():
            return finding.answer(state, question, client)
        case FindCosts():
            return answer_costs(state.ledger.shares, question, client)
    task = question.task
    is_known = state.may_see(client, task)
    match question:
        case ReadFailure():
            if is_known and task in state.failures:
                return state.failures.what_ran(task)
            why = explain(state, task, now) if is_known else UNKNOWN
            return FailedTask(task, [], [], f"{why}; only a task that ran and failed can")
        case ReadLog():
            return state.read_log(task) if is_known else TaskLog(task, b"", b"", 0)
        case Explain():
            return Explained(task, explain(state, task, now) if is_known else UNKNOWN)

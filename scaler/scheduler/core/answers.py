"""Answers to clients' questions about tasks, limited to tasks that the client may see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaler.protocol.messages import Explain, Explained, FindObjects, Inquiry, Reply
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.explain import UNKNOWN, explain
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.data import finding


def _explain(question: Explain, client: ClientRecord, state: ClusterState) -> Explained:
    task = question.task
    return Explained(task, explain(state, task, state.now) if state.may_see(client, task) else UNKNOWN)


ANSWERERS: Mapping[type[Inquiry], Callable[[Any, ClientRecord, ClusterState], Reply]] = {
    Explain: _explain,
    FindObjects: lambda question, client, state: finding.answer(state, question, client),
}

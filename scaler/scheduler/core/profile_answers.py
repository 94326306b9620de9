"""Answers questions about profiles, within what a client may see. Pure."""

from __future__ import annotations

import json

from scaler.ids import ID_BYTES, owner_of
from scaler.protocol.messages import Profiled, ReadProfile, TasksProfiled
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import ClientRecord


def take_profile(state: ClusterState, message: TasksProfiled) -> None:
    """Take in what a worker has sampled, if the client whose task it was is known."""
    key = state.accounts.owners.get(owner_of(message.task))
    if key is not None:
        state.profiles.add(message.task, key, message.document, state.now)


def profiled(state: ClusterState, question: ReadProfile, client: ClientRecord) -> Profiled:
    """Return the profile of a task or function, or else the list of functions. client: who asks.

    A task without one of its own, because it was short, has that of its function.
    """
    profiles, may_see = state.profiles, client.identity.may_see
    task, name, of, profile = question.task, question.search, "", None
    if len(task) == ID_BYTES and state.may_see(client, task):
        found = profiles.of_task(task)
        if found is not None:
            of, (name, profile) = "task", found
        elif not name:
            name = _function_of(state, task)
    if profile is None and name:
        profile = profiles.of_function(name, may_see)
        of = "function" if profile is not None else ""
    document: dict[str, object] = {"of": of, "name": name}
    if profile is not None:
        document |= profile.document()
    elif not task and not name:
        document["functions"] = profiles.listed(may_see)
    return Profiled(task, question.search, json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))


def _function_of(state: ClusterState, task: bytes) -> str:
    living = state.living_task(task)
    if living is not None:
        return living.group.spec.name
    found = state.history.find(task) or state.failures.find(task)
    if found is None:
        return ""
    batch, index = found
    return batch.run_of(index)[0].spec.name

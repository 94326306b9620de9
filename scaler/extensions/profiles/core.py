"""Keeps a profile per function and per long task, and the memory use of functions. Pure.

Keeps only the most recently sampled functions and tasks, and limits the rate of accepted reports."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.profiles.usage import MemorySamples
from scaler.ids import ID_BYTES, owner_of
from scaler.monitor.messages import Profiled, ReadProfile
from scaler.protocol.messages import TasksProfiled, WorkerHeartbeat
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.state import ClientRecord, PeerRecord
from scaler.stack_profile import StackProfile, read_json

MAX_MEMORY_FUNCTIONS = 4_096
MAX_FUNCTIONS = 256
"""Maximum number of profiled functions, across all keys."""
MAX_TASKS = 256
"""Maximum number of tasks with their own profile."""
MAX_LISTED = 200
REPORTS_PER_SECOND = 100
"""Maximum reports per second, averaged over MAX_SAVED_SECONDS. A report costs about 0.1 ms."""
MAX_SAVED_SECONDS = 5.0
MAX_NAME = 200


class Profiles(SchedulerPart):
    """Profiles of functions by key and name, and of tasks by id, least recently used first."""

    messages = (TasksProfiled, WorkerHeartbeat)
    questions = (ReadProfile,)

    def __init__(self, _config: object = None) -> None:
        self._memories: OrderedDict[str, MemorySamples] = OrderedDict()
        """Memory use by function, least recently used first."""
        self._functions: OrderedDict[tuple[str, str], StackProfile] = OrderedDict()
        self._tasks: OrderedDict[bytes, tuple[str, StackProfile]] = OrderedDict()
        self._left = REPORTS_PER_SECOND * MAX_SAVED_SECONDS
        self._refilled_at = 0.0

    def on_message(
        self, _peer: PeerRecord, message: TasksProfiled | WorkerHeartbeat, state: ClusterState
    ) -> Iterable[Command]:
        if isinstance(message, WorkerHeartbeat):
            for use in message.functions:
                memory = self._memories.setdefault(use.function, MemorySamples())
                memory.add(use.samples, use.mean_bytes, use.peak_bytes)
                self._memories.move_to_end(use.function)
            while len(self._memories) > MAX_MEMORY_FUNCTIONS:
                self._memories.popitem(last=False)
            return ()
        key = state.accounts.owners.get(owner_of(message.task))
        if key is not None:
            self.add(message.task, key, message.document, state.now)
        return ()

    def add(self, task: bytes, key: str, document: bytes, now: float) -> None:
        """Merge a worker's report about a task or several tasks of one function. key: the owner's key."""
        refill = max(0.0, now - self._refilled_at) * REPORTS_PER_SECOND
        self._left = min(self._left + refill, REPORTS_PER_SECOND * MAX_SAVED_SECONDS)
        self._refilled_at = now
        if self._left < 1:
            return
        self._left -= 1
        try:
            profile, values = read_json(document)
            name = str(values.get("name", ""))[:MAX_NAME]
        except ValueError:  # the sender runs user code
            return
        self._functions.setdefault((key, name), StackProfile()).merge(profile)
        self._functions.move_to_end((key, name))
        if len(self._functions) > MAX_FUNCTIONS:
            self._functions.popitem(last=False)
        if values.get("single") is True:
            self._tasks.setdefault(task, (name, StackProfile()))[1].merge(profile)
            self._tasks.move_to_end(task)
            if len(self._tasks) > MAX_TASKS:
                self._tasks.popitem(last=False)

    def of_task(self, task: bytes) -> tuple[str, StackProfile] | None:
        return self._tasks.get(task)

    def of_function(self, name: str, may_see: Callable[[str], bool]) -> StackProfile | None:
        merged = StackProfile()
        for (key, own), each in self._functions.items():
            if own == name and may_see(key):
                merged.merge(each)
        return merged if merged.samples else None

    def listed(self, may_see: Callable[[str], bool]) -> list[tuple[str, int, int, str]]:
        rows = []
        for name in dict.fromkeys(name for key, name in self._functions if may_see(key)):
            profile = self.of_function(name, may_see)
            if profile is not None:
                frame = next((each.frame for each in profile.hottest(1)), "")
                rows.append((name, profile.samples, profile.total_us, frame))
        return sorted(rows, key=lambda row: (-row[2], row[0]))[:MAX_LISTED]

    def on_question(self, question: ReadProfile, client: ClientRecord, state: ClusterState) -> Profiled:
        """Return the profile of a task or of its function (for a short task), or else the list of functions."""
        may_see = client.identity.may_see
        task, name, of, profile = question.task, question.search, "", None
        if len(task) == ID_BYTES and state.may_see(client, task):
            found = self.of_task(task)
            if found is not None:
                of, (name, profile) = "task", found
            elif not name and (living := state.living_task(task)) is not None:
                name = living.group.spec.name
            elif not name and (ended := state.ended_task(task)) is not None:
                name = ended[0].run_of(ended[1])[0].spec.name
        if profile is None and name:
            profile = self.of_function(name, may_see)
            of = "function" if profile is not None else ""
        document: dict[str, object] = {"of": of, "name": name}
        if profile is not None:
            document |= profile.document()
        elif not task and not name:
            document["functions"] = self.listed(may_see)
        return Profiled(task, question.search, json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))

    def add_to_status(self, reader: Reader) -> Additions:
        functions = self._memories if reader.sees_all else {}
        columns = {
            name: {"memory_peak_bytes": memory.peak_bytes, "memory_mean_bytes": memory.mean_bytes}
            for name, memory in functions.items()
        }
        return Additions(columns={"functions": columns})

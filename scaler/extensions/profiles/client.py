"""`Client.profile`: returns a sampling profile."""

from __future__ import annotations

import json
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from scaler.client.future import ScalerFuture
from scaler.client.options import check_seconds
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.errors import UsageError
from scaler.monitor.messages import Profiled, ReadProfile
from scaler.paths import local_path
from scaler.stack_profile import HotFrame, StackProfile, read_document

FIRST_SAMPLES_SECONDS = 12.0
"""Maximum wait (seconds) for the first samples of a running task. A processor reports every 1 to 5 s."""
_POLL_SECONDS = 0.25
_LISTED = 20


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """Samples of the main thread during one task or all tasks of a function. `of` is empty without samples."""

    name: str
    of: str
    stacks: StackProfile

    @property
    def samples(self) -> int:
        return self.stacks.samples

    @property
    def seconds(self) -> float:
        return self.stacks.total_us / 1e6

    def hottest(self, most: int = _LISTED) -> list[HotFrame]:
        """Return the frames with the longest self time, in microseconds."""
        return self.stacks.hottest(most)

    def save(self, path: str | Path) -> None:
        """Write collapsed stacks, which https://www.speedscope.app and flamegraph.pl read."""
        local_path(path).write_text(self.stacks.collapsed(), encoding="utf-8")

    def __str__(self) -> str:
        return self.stacks.table(self.name, _LISTED)


@hiding_frames_of_methods()
class ProfileCalls(TaskCalls):
    def profile(self, of: ScalerFuture | str, seconds: float = 0.0) -> TaskProfile:
        """Return a sampling profile. `print` shows its hottest frames.

        Args:
            of: a task, or the name of a function, for all its tasks. For a task too short to have its own profile,
                returns its function's profile. For a running task, waits for the first samples.
            seconds: sample for this long, or until the task ends. 0: return all samples so far.

        Raises:
            UsageError: An argument is invalid.
            UnreachableError: The scheduler does not answer.
        """
        self._check_open()
        check_seconds("seconds", seconds, "requests all samples so far")
        if isinstance(of, str):
            question, future = ReadProfile(b"", of), None
        elif isinstance(task := getattr(of, "task_id", None), bytes):
            question, future = ReadProfile(task), of
        else:
            raise UsageError(f"{of!r} is neither a future nor a function name")
        before = _read(self, question) if seconds else TaskProfile("", "", StackProfile())
        began = monotonic()
        while True:
            left = began + seconds - monotonic()
            is_over = future is not None and future.done()
            if left <= 0 or is_over:
                found = _read(self, question)
                stacks = found.stacks.since(before.stacks) if before.of == found.of else found.stacks
                is_running = future is not None and not is_over and (found.of != "task" or not stacks.samples)
                if not is_running or left < -FIRST_SAMPLES_SECONDS:
                    return TaskProfile(found.name, found.of, stacks)
            wait([Future() if future is None else future], timeout=max(_POLL_SECONDS, left))


def _read(client: TaskCalls, question: ReadProfile) -> TaskProfile:
    document = json.loads(client._loop.ask(question, Profiled).json)
    stacks = read_document(document) if document["of"] else StackProfile()
    return TaskProfile(document["name"], document["of"], stacks)

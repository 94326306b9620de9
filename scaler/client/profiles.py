"""Sampling profiles of tasks, collected by processors."""

from __future__ import annotations

import json
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from scaler.client.options import check_seconds
from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.protocol.messages import Profiled, ReadProfile
from scaler.stack_profile import HotFrame, StackProfile, read_document

if TYPE_CHECKING:
    from scaler.client.future import ScalerFuture
    from scaler.client.loop import ClientLoop

FIRST_SECONDS = 12.0
"""Maximum wait for the first samples of a running task, seconds. A processor reports every 1 to 5 s."""
_POLL_SECONDS = 0.25
_LISTED = 20


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """Samples of the main thread during a task, or all tasks of a function. `of` is empty without samples."""

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
        """Return the frames with the longest own time, in microseconds."""
        return self.stacks.hottest(most)

    def save(self, path: str | Path) -> None:
        """Write a https://www.speedscope.app file if the name ends with .json, otherwise collapsed stacks."""
        target = local_path(path)
        is_json = target.suffix == ".json"
        text = json.dumps(self.stacks.speedscope(self.name)) if is_json else self.stacks.collapsed()
        target.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        return self.stacks.table(self.name, _LISTED)


def profile(loop: ClientLoop, of: ScalerFuture | str, seconds: float) -> TaskProfile:
    """seconds: sample only the next seconds; 0: all samples so far. Raises UsageError and UnreachableError."""
    check_seconds("seconds", seconds, "asks for all samples so far")
    if isinstance(of, str):
        question, future = ReadProfile(b"", of), None
    elif isinstance(task := getattr(of, "task_id", None), bytes):
        question, future = ReadProfile(task), of
    else:
        raise UsageError(f"{of!r} is no future and no name of a function")
    before = _read(loop, question) if seconds else TaskProfile("", "", StackProfile())
    began = monotonic()
    while True:
        left = began + seconds - monotonic()
        is_over = future is not None and future.done()
        if left <= 0 or is_over:
            found = _read(loop, question)
            stacks = found.stacks.since(before.stacks) if before.of == found.of else found.stacks
            is_running = future is not None and not is_over and (found.of != "task" or not stacks.samples)
            if not is_running or left < -FIRST_SECONDS:
                return TaskProfile(found.name, found.of, stacks)
        wait([Future() if future is None else future], timeout=max(_POLL_SECONDS, left))


def _read(loop: ClientLoop, question: ReadProfile) -> TaskProfile:
    document = json.loads(loop.ask(question, Profiled).json)
    stacks = read_document(document) if document["of"] else StackProfile()
    return TaskProfile(document["name"], document["of"], stacks)

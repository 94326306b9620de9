"""Notices that a task waits for its own tasks in another way than through their futures.

A wait on a future lends the task's slot by itself. But a task may as well wait for a lock, a queue or a future of
another kind that a callback serves, or ask again and again whether its tasks have ended. When such tasks have all the
slots, theirs never run. So a thread looks: a task that has unfinished tasks and hardly uses the CPU waits for them.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

LOOK_SECONDS = 0.02
MAX_LOOK_SECONDS = 0.16
"""While the task waits for a future, which lends its slot by itself, looks become as rare as this: fifty processors
that wait would else be a load of their own."""
IDLE_SHARE = 0.25
"""A process that uses less of a CPU than this, and whose main thread sleeps, waits."""
BUSY_SHARE = 0.5
"""A process that uses more of a CPU than this works again. So does one that finds no CPU to run on."""


class Slot(Protocol):
    """What the watch needs of its processor."""

    @property
    def is_waiting(self) -> bool: ...

    def lend(self) -> None: ...

    def take_back(self) -> None: ...


class Submitter(Protocol):
    """A client inside a task, as far as the watch needs it."""

    def has_unfinished(self) -> bool: ...


class SlotWatch:
    """One per processor that has clients. Its thread sleeps while they have nothing unfinished."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._clients: set[Submitter] = set()
        self._submitted = threading.Event()
        self._state = Path(f"/proc/self/task/{os.getpid()}/stat")  # of the main thread, which runs the tasks
        threading.Thread(target=self._run, name="scaler-slot-watch", daemon=True).start()

    def submitted(self, client: Submitter) -> None:
        """A client has unfinished tasks. Safe to call from any thread."""
        self._clients.add(client)
        self._submitted.set()

    def _run(self) -> None:
        while True:
            self._submitted.wait()
            self._submitted.clear()
            self._watch()
            self._slot.take_back()

    def _watch(self) -> None:
        """Look for as long as there is something unfinished."""
        used, at = _cpu_seconds(), time.monotonic()
        was_runnable = False
        pause = LOOK_SECONDS
        while self._has_unfinished():
            time.sleep(pause)
            if self._slot.is_waiting:
                pause = min(2 * pause, MAX_LOOK_SECONDS)
                used, at = _cpu_seconds(), time.monotonic()
                continue
            pause = LOOK_SECONDS
            used_before, at_before = used, at
            used, at = _cpu_seconds(), time.monotonic()
            share = (used - used_before) / (at - at_before)
            is_runnable = self._is_runnable()
            if share < IDLE_SHARE and not is_runnable:
                self._slot.lend()
            elif share > BUSY_SHARE or (is_runnable and was_runnable):
                self._slot.take_back()
            was_runnable = is_runnable

    def _has_unfinished(self) -> bool:
        for client in self._clients.copy():
            self._clients.discard(client)  # before the question: whoever submits after it is added again
            if client.has_unfinished():
                self._clients.add(client)
        return bool(self._clients)

    def _is_runnable(self) -> bool:
        return self._state.read_bytes().rpartition(b") ")[2][:1] == b"R"


def _cpu_seconds() -> float:
    """Return what this process has used, without the thread that asks."""
    return time.process_time() - time.thread_time()

"""How threads wait: Ctrl-C leaves nothing half done, and a task that waits for its own tasks lends its slot."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler.worker.processor.context import ProcessorContext

POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.16
"""The watch polls this rarely while the task waits for a future, which lends its slot by itself: fifty waiting
processors would otherwise be a load of their own."""
IDLE_SHARE = 0.25
"""A process that uses less of a CPU than this, and whose main thread sleeps, waits."""
BUSY_SHARE = 0.5
"""A process that uses more of a CPU than this works again. So does one that finds no CPU to run on."""


class SteadyCondition(threading.Condition):
    """A condition around a re-entrant lock, for `with` in threads that Ctrl-C interrupts.

    `threading.Condition` enters and leaves its lock in Python code, where a Ctrl-C can come between taking the lock and
    the block: the lock then stays taken for ever, and with it the client's thread. Here `with` finds the methods of
    the lock itself, in which no Ctrl-C is raised once it is taken.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Condition` does; the lock is taken again at the end, also when Ctrl-C ends the wait."""
        try:
            return super().wait(timeout)
        except BaseException:  # Ctrl-C may come when the lock was just given back
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise

    if not TYPE_CHECKING:
        __enter__ = property(attrgetter("_lock.__enter__"))
        __exit__ = property(attrgetter("_lock.__exit__"))


def carry_through(function: Callable[[], object]) -> None:
    """Call a function that may be called again. When Ctrl-C ends it, a thread of its own calls it once more.

    Users press Ctrl-C twice, and the second one comes while the first one's many tasks are being cancelled.
    """
    try:
        function()
    except Exception:
        raise
    except BaseException:
        threading.Thread(target=function, name="scaler-cancel", daemon=True).start()
        raise


class SlotWatch:
    """Notices that a task waits for its own tasks in another way than through their futures, and lends its slot.

    A task may wait for a lock, a queue or a future of another kind that a callback serves, or poll whether its tasks
    have ended. When such tasks have all the slots, theirs never run. So a thread polls: a task that has unfinished
    tasks and hardly uses the CPU waits for them. One per processor that has clients; it sleeps while they have nothing
    unfinished.
    """

    def __init__(self, slot: ProcessorContext) -> None:
        self._slot = slot
        self._clients: set[Callable[[], bool]] = set()
        self._submitted = threading.Event()
        self._state = Path(f"/proc/self/task/{os.getpid()}/stat")  # of the main thread, which runs the tasks
        threading.Thread(target=self._run, name="scaler-slot-watch", daemon=True).start()

    def submitted(self, has_unfinished: Callable[[], bool]) -> None:
        """Watch while a client has unfinished tasks. Safe to call from any thread."""
        self._clients.add(has_unfinished)
        self._submitted.set()

    def _run(self) -> None:
        while True:
            self._submitted.wait()
            self._submitted.clear()
            self._watch()
            self._slot.take_back()

    def _watch(self) -> None:
        used, at = _cpu_seconds(), time.monotonic()
        was_runnable = False
        pause = POLL_SECONDS
        while self._has_unfinished():
            time.sleep(pause)
            used_before, at_before = used, at
            used, at = _cpu_seconds(), time.monotonic()
            if self._slot.is_waiting:
                pause = min(2 * pause, MAX_POLL_SECONDS)
                continue
            pause = POLL_SECONDS
            share = (used - used_before) / (at - at_before)
            is_runnable = self._state.read_bytes().rpartition(b") ")[2][:1] == b"R"
            if share < IDLE_SHARE and not is_runnable:
                self._slot.lend()
            elif share > BUSY_SHARE or (is_runnable and was_runnable):
                self._slot.take_back()
            was_runnable = is_runnable

    def _has_unfinished(self) -> bool:
        for client in self._clients.copy():
            self._clients.discard(client)  # before the question: a client that submits after it is added again
            if client():
                self._clients.add(client)
        return bool(self._clients)


def _cpu_seconds() -> float:
    """Return what this process has used, without the calling thread."""
    return time.process_time() - time.thread_time()

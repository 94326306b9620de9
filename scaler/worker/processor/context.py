"""The interface of a processor to code inside a task: the task's id, a channel for a client, and waiting.

`current()` returns it; outside of processors, and in processes that a task forked, it returns None.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from scaler.config.worker import WorkerConfig
from scaler.worker.frames import GRANT, Note, ToAgent, pack_note

refusal = ""
"""Why tasks of this process cannot have clients through a worker; empty when they can."""
_current: ProcessorContext | None = None


def current() -> ProcessorContext | None:
    """Return the context of the processor that this code runs in, or None."""
    context = _current
    return context if context is not None and context.pid == os.getpid() else None


def running_task() -> bytes:
    """Return the id of the task that this process runs; empty between tasks and elsewhere."""
    context = current()
    return b"" if context is None else context.task_id


def enter(context: ProcessorContext) -> None:
    global _current  # noqa: PLW0603 (a process is a processor or is not: this is where it is known)
    _current = context


class ProcessorContext:
    """One per processor. Safe to use from any thread of a task."""

    def __init__(self, control: socket.socket, flush_results: Callable[[], None], config: WorkerConfig) -> None:
        self.pid = os.getpid()
        self.config = config
        self.task_id = b""
        self.function = ""
        self.object_storage_address = ""
        self.uploaded_code: Callable[[], bytes] = bytes
        """Returns the archive of what the client of the running task has uploaded; empty for nothing."""
        self._control = control
        self._flush_results = flush_results
        """Called before the task waits, so that results are on their way."""
        self._lock = threading.Lock()
        self._waits = 0
        self.is_suspended = False
        self._is_lent = False
        """Suspended by `lend`, not by a wait."""
        self._grant_is_due = False
        """Not suspended, and the grant of the slot that was asked back has not been read."""
        self._task_count = 0
        self.on_resume: list[Callable[[], object]] = []
        """Called when a task works again after a wait. They must neither wait nor raise."""

    def open_channel(self, peer: bytes) -> socket.socket:
        """Open a channel for a client of this process with this peer id. It carries datagrams of `frames.send` with
        encoded messages until one end closes it; the agent does when the scheduler forgets the client."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [pack_note(Note(ToAgent.CHANNEL, identifier=peer))], [theirs.fileno()])
        return ours

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Return a context manager for waiting on other tasks, which lends this processor's slot.

        At its end it waits for a slot. The task counts as waiting until the last of its waiting threads goes on. After
        a TimeoutError the task goes on at once, beside the one that has its slot, until it waits again or ends.
        """
        with self._lock:
            task_count = self._task_count
            if not self.is_waiting and threading.current_thread() is threading.main_thread():
                self._flush_results()
            self._waits += 1
            self._is_lent = False
            if not self.is_suspended:
                self._read_grant()
                self._suspend()
        is_late = False
        try:
            yield
        except TimeoutError:
            is_late = True
            raise
        finally:
            with self._lock:
                if task_count == self._task_count:  # else the task has ended before this thread of it
                    self._waits -= 1
                    if is_late and self.is_suspended:
                        self._is_lent = not self._waits
                        self._resume()
                    elif not self._waits:
                        self._ask_back()
                        self._read_grant()

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Return a context manager like `blocked` for another kind of wait. text: see `report_wait`."""
        self.report_wait(text)
        try:
            with self.blocked():
                yield
        finally:
            self.report_wait("")

    def report_wait(self, text: str) -> None:
        """Report what the running task waits for besides tasks, such as "waits for ..."; empty: the wait is over."""
        self._control.send(pack_note(Note(ToAgent.WAITS, text.encode("utf-8", "replace"))))

    @property
    def is_waiting(self) -> bool:
        """True while the task waits in `blocked`, which has lent its slot."""
        return self.is_suspended and not self._is_lent

    def lend(self) -> None:
        """Lend the slot of a task that waits outside of `blocked`. Never waits, and may do nothing: call it again."""
        if self.is_suspended or not self._lock.acquire(blocking=False):
            return
        try:
            if not self.is_suspended and self._read_grant(socket.MSG_DONTWAIT):
                self._is_lent = True  # before the question: `end_task` looks at the one after it has changed the other
                if self.task_id:
                    self._suspend()
                else:
                    self._is_lent = False
        finally:
            self._lock.release()

    def take_back(self) -> None:
        """Ask for a slot for a task that works again after `lend`. The task does not wait for the slot."""
        if not self._is_lent or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_lent:
                self._ask_back()
        finally:
            self._lock.release()

    def end_task(self) -> None:
        """Note the end of the running task. Threads that it left waiting do not count any more."""
        self.task_id = b""
        if self._waits or self.is_suspended or self._is_lent or self._grant_is_due:
            with self._lock:
                self._task_count += 1
                self._waits = 0
                self._is_lent = False
                self._flush_results()  # they need not wait for the slot
                if self.is_suspended:
                    self._ask_back()
                self._read_grant()

    def _suspend(self) -> None:
        self.is_suspended = True
        self._control.send(pack_note(Note(ToAgent.BLOCKED)))

    def _ask_back(self) -> None:
        self.is_suspended = self._is_lent = False
        self._grant_is_due = True
        self._resume()
        self._control.send(pack_note(Note(ToAgent.UNBLOCKED)))

    def _resume(self) -> None:
        for call in self.on_resume:
            call()

    def _read_grant(self, flags: int = 0) -> bool:
        """Read the requested grant. Returns False when flags say not to wait and the grant has not come."""
        if self._grant_is_due:
            try:
                self._control.recv(len(GRANT), flags)
            except BlockingIOError:
                return False
            self._grant_is_due = False
        return True

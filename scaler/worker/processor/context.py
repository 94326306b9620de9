"""A processor's interface for code inside a task: task id, channels for clients, and waits. `current()` returns None
outside processors and in processes forked by tasks."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scaler.config.worker import WorkerConfig
from scaler.worker.frames import GRANT, Note, ToAgent, pack_note

if TYPE_CHECKING:  # clients import this module
    from scaler.worker.processor.functions import Wrap

refusal = ""
"""Why tasks in this process cannot have clients, or ""."""
_current: ProcessorContext | None = None


def current() -> ProcessorContext | None:
    context = _current
    return context if context is not None and context.pid == os.getpid() else None


def running_task() -> bytes:
    context = current()
    return b"" if context is None else context.task_id


def enter(context: ProcessorContext) -> None:
    global _current  # noqa: PLW0603 (a process is a processor or is not: this is where it is known)
    _current = context


class ProcessState:
    """What a task may change in its process. By default, changes remain; the `isolation` extension undoes them."""

    def __init__(self) -> None:
        self.is_spoilt = False
        """The running task has changed this process for good, or this process is a forked copy."""
        self.is_changed = False
        self.streams = [sys.stdin, sys.stdout, sys.stderr]

    def undo(self, _error: BaseException | None) -> str:
        """Return why a processor must be replaced after its task has changed it permanently."""
        return ""

    def restore(self) -> None:
        """Restore the process after a task that has changed it or its streams."""


class ProcessorContext:
    """Singleton in each processor. Thread-safe."""

    def __init__(self, control: socket.socket, flush_results: Callable[[], None], config: WorkerConfig) -> None:
        self.pid = os.getpid()
        self.config = config
        self.task_id = b""
        self.function = ""
        self.object_storage_address = ""
        self.uploaded_code: Callable[[], bytes] = bytes
        """Returns the archive of modules uploaded by the running task's client; may be empty."""
        self.tee: Callable[[bool, Any], object] = lambda _is_stderr, _stream: None
        """Called with is_stderr and a stream, so that text written to the stream is also sent to the agent."""
        self.state = ProcessState()
        self._control = control
        self._flush_results = flush_results
        self._lock = threading.Lock()
        self._waits = 0
        self.is_suspended = False
        self._is_lent = False
        """Whether `lend`, rather than a wait, suspended the task."""
        self._grant_is_due = False
        """Whether the grant of a slot, requested after a suspension, is still unread."""
        self.has_waited = False
        """Whether a task has waited, or lent its slot, since the last `end_waits`."""
        self._task_count = 0
        self.on_resume: list[Callable[[], object]] = []
        """Called when a task continues after a wait. Must neither block nor raise."""
        self.on_task: list[Callable[[], object]] = []
        """Called once, when the next task begins. Must neither block nor raise."""
        self.wrappers: list[Wrap] = []
        """Each takes a spec with a context and a function, and returns the callable to use instead of the function."""
        self.on_client: list[Callable[[Any], object]] = []
        """Called with the `FutureTable` of each new client inside a task."""
        self.on_end: list[Callable[[], object]] = []
        """Called when this process ends after its last task, unless it is killed. Must not raise."""

    def open_channel(self, peer: bytes) -> socket.socket:
        """Open a channel for a client with this peer id. The channel carries encoded messages as `frames.send`
        datagrams until one side closes it. The agent closes it when the scheduler drops the client."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [pack_note(Note(ToAgent.CHANNEL, identifier=peer))], [theirs.fileno()])
        return ours

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Context manager for waiting on other tasks; lends this processor's slot.

        Waits for a slot when it exits. The task counts as waiting until its last waiting thread continues. After a
        TimeoutError, the task continues immediately, next to the task that has its slot, until it waits again or ends.
        """
        with self._lock:
            task_count = self._task_count
            if not self.is_waiting and threading.current_thread() is threading.main_thread():
                self._flush_results()
            self._waits += 1
            self.has_waited = True
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
                if task_count == self._task_count:  # otherwise, the task ended before this thread
                    self._waits -= 1
                    if is_late and self.is_suspended:
                        self._is_lent = not self._waits
                        self._resume()
                    elif not self._waits:
                        self._ask_back()
                        self._read_grant()

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Context manager like `blocked` for other waits. text: see `report_wait`."""
        self.report_wait(text)
        try:
            with self.blocked():
                yield
        finally:
            self.report_wait("")

    def report_wait(self, text: str) -> None:
        """Report why the running task waits, except for tasks. text: "waits for ...", or empty when the wait ends."""
        self._control.send(pack_note(Note(ToAgent.WAITS, text.encode("utf-8", "replace"))))

    @property
    def is_waiting(self) -> bool:
        return self.is_suspended and not self._is_lent

    def lend(self) -> None:
        """Lend the slot of a task that waits outside `blocked`. Never blocks. May do nothing; call repeatedly."""
        if self.is_suspended or not self._lock.acquire(blocking=False):
            return
        try:
            if not self.is_suspended and self._read_grant(socket.MSG_DONTWAIT):
                # Before reading task_id: the processor clears task_id first, then reads has_waited.
                self._is_lent = self.has_waited = True
                if self.task_id:
                    self._suspend()
                else:
                    self._is_lent = False
        finally:
            self._lock.release()

    def take_back(self) -> None:
        """Request a slot for a task that continues after `lend`. The task does not wait for the slot."""
        if not self._is_lent or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_lent:
                self._ask_back()
        finally:
            self._lock.release()

    def end_waits(self) -> None:
        """Take back an ended task's slot."""
        with self._lock:
            self.has_waited = False
            self._task_count += 1
            self._waits = 0
            self._is_lent = False
            self._flush_results()  # results need not wait for the slot
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
        """Read a requested grant. Returns False if flags are non-blocking and the grant has not arrived."""
        if self._grant_is_due:
            try:
                self._control.recv(len(GRANT), flags)
            except BlockingIOError:
                return False
            self._grant_is_due = False
        return True

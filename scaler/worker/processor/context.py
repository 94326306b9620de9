"""The interface of a processor to code inside a task: the task's id, a channel for a client, and waiting.

`current()` returns it; outside of processors, and in processes that a task forked, it returns None.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from scaler.errors import ClientClosedError, ProtocolError
from scaler.ids import new_peer_id
from scaler.protocol.messages import MAX_BATCH_BYTES
from scaler.worker.frames import BodyReader, ToAgent, pack_body_head, pack_id
from scaler.worker.processor.capture import PrintForwarder

_READ_BYTES = 256 * 1024
_GRANT_BYTES = 16

_current: ProcessorContext | None = None
_no_clients = ""


def current() -> ProcessorContext | None:
    """Return the context of the processor that this code runs in, or None."""
    context = _current
    return context if context is not None and context.pid == os.getpid() else None


def enter(context: ProcessorContext) -> None:
    """Make this process a processor."""
    global _current  # noqa: PLW0603 (a process is a processor or is not: this is where it is known)
    _current = context


def refuse_clients(why: str) -> None:
    """Note that tasks of this process cannot have clients through a worker, and why."""
    global _no_clients  # noqa: PLW0603 (as above)
    _no_clients = why


def refusal() -> str:
    """Return why tasks of this process cannot have clients through a worker; empty when they can."""
    return _no_clients


class NestedChannel:
    """A nested client's way to the scheduler: encoded messages in both directions, in order, through the agent.

    Sending and receiving may happen in different threads, each in one. It ends when the agent ends it or the process
    does.
    """

    def __init__(self, end: socket.socket, peer: bytes) -> None:
        self.peer = peer
        """The peer id under which the scheduler knows this client."""
        self._socket = end
        self._reader = BodyReader(MAX_BATCH_BYTES)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to receive."""
        return self._socket.fileno()

    def send(self, body: bytes) -> None:
        """Send an encoded message. Raises ClientClosedError when the channel has ended."""
        try:
            self._socket.sendall(pack_body_head(len(body)) + body)
        except OSError as error:
            raise ClientClosedError("the channel of a client inside a task has ended") from error

    def receive_ready(self) -> list[bytes] | None:
        """Return the messages that are here now, without waiting; None when the channel has ended."""
        ready: list[bytes] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
                ready.extend(self._reader.feed(data))
            except BlockingIOError:
                return ready
            except (OSError, ProtocolError):
                data = b""
            if not data:
                return ready or None

    def close(self) -> None:
        """End the channel: the scheduler forgets this client. Harmless when repeated."""
        self._socket.close()


class ProcessorContext:
    """One per processor. Safe to use from any thread of a task."""

    def __init__(self, control: socket.socket, flush_results: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self.task_id = b""
        """The running task; empty between tasks."""
        self.printing = PrintForwarder(lambda: self.task_id, control.send)
        self.object_storage_address = ""
        self._control = control
        self._flush_results = flush_results
        """Called before the task waits, so that results are on their way."""
        self._lock = threading.Lock()
        self._waits = 0
        self.is_suspended = False
        self._is_lent = False
        """Suspended by `lend`, not by a wait."""
        self._grant_is_due = False
        """Not suspended, and the grant that `take_back` asked for has not been read."""
        self._task_count = 0

    def open_channel(self, peer: bytes | None = None) -> NestedChannel:
        """Open a channel for a client inside this process. peer: its peer id; chosen here when left out."""
        chosen = new_peer_id() if peer is None else peer
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
        self._control.sendmsg([pack_id(ToAgent.CHANNEL, chosen)], attached)
        theirs.close()
        return NestedChannel(ours, chosen)

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Return a context manager for waiting on other tasks: meanwhile others may use this processor's slot.

        At its end it waits until there is a slot again. When several threads of a task wait, the task counts as
        waiting until the last of them goes on. A wait that ends with a TimeoutError does not wait any longer: the task
        goes on beside the one that has its slot, until it waits again or ends.
        """
        task_count = self.begin_wait()
        is_late = False
        try:
            yield
        except TimeoutError:
            is_late = True
            raise
        finally:
            self.end_wait(task_count, is_late)

    @property
    def is_waiting(self) -> bool:
        """True while the task waits in `blocked`, and its slot is lent for that reason."""
        return self.is_suspended and not self._is_lent

    def begin_wait(self) -> int:
        """Enter a wait; returns what `end_wait` takes."""
        with self._lock:
            self._waits += 1
            if self._is_lent or not self.is_suspended:
                if threading.current_thread() is threading.main_thread():
                    self._flush_results()
                self._is_lent = False
            if not self.is_suspended:
                self._read_grant()
                self._suspend()
            return self._task_count

    def end_wait(self, task_count: int, is_late: bool = False) -> None:
        """Leave a wait that began during this task, and get a slot when it was the last one and is not late."""
        with self._lock:
            if task_count != self._task_count:
                return
            self._waits -= 1
            if is_late and self.is_suspended:
                self._is_lent = not self._waits
            elif not self._waits:
                self._resume()

    def lend(self) -> None:
        """Lend the slot of a task that waits outside of `blocked`. Does not wait: it may do nothing, so ask again."""
        if self.is_suspended or not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_suspended or (self._grant_is_due and not self._grant_is_here()):
                return
            self._is_lent = True  # before the question: `end_task` looks at the one after it has changed the other
            if self.task_id:
                self._suspend()
            else:
                self._is_lent = False
        finally:
            self._lock.release()

    def take_back(self) -> None:
        """Ask for a slot for a task that works again after `lend`. Does not wait: it works on meanwhile."""
        if not self._is_lent or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_lent:
                self._is_lent = self.is_suspended = False
                self._grant_is_due = True
                self._control.send(bytes((ToAgent.UNBLOCKED,)))
        finally:
            self._lock.release()

    def end_task(self) -> None:
        """The running task has ended. Threads that it left waiting do not count any more."""
        self.task_id = b""
        if self._waits or self.is_suspended or self._is_lent or self._grant_is_due:
            with self._lock:
                self._task_count += 1
                self._waits = 0
                self._is_lent = False
                self._flush_results()  # they need not wait for the slot
                if self.is_suspended:
                    self._resume()
                self._read_grant()

    def _suspend(self) -> None:
        self.is_suspended = True
        self._control.send(bytes((ToAgent.BLOCKED,)))

    def _resume(self) -> None:
        self._control.send(bytes((ToAgent.UNBLOCKED,)))
        self.is_suspended = False
        self._grant_is_due = True
        self._read_grant()

    def _read_grant(self) -> None:
        if self._grant_is_due:
            self._control.recv(_GRANT_BYTES)
            self._grant_is_due = False

    def _grant_is_here(self) -> bool:
        try:
            self._control.recv(_GRANT_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        self._grant_is_due = False
        return True

"""Runs components as child processes: the shell around `supervision`.

Each child leads a session of its own, so that a Ctrl-C of the terminal reaches only the supervisor and the order of the
stop is kept. A child says that it is ready by one line of JSON on the descriptor in SCALER_READY_FD. It is told the
supervisor's process id in SCALER_PARENT_PID, and ends when that process does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from scaler.cluster.child import Child, Output, start_child
from scaler.cluster.supervision import (
    START_SECONDS,
    Announce,
    Command,
    Complain,
    Component,
    Ended,
    Input,
    Kill,
    NotStarted,
    Ready,
    Start,
    Started,
    StopAsked,
    Supervision,
    Terminate,
)
from scaler.processes import describe_exit

_Tell = Callable[[str], None]


def _tell_nobody(_text: str) -> None:
    """Nobody listens."""


class Supervisor:
    """Starts components, watches them, and stops them all. `run` does the work, in the thread that calls it."""

    def __init__(
        self,
        components: Sequence[Component],
        *,
        together: bool = False,
        start_seconds: float = START_SECONDS,
        announce: _Tell = _tell_nobody,
        complain: _Tell = _tell_nobody,
        parent_pid: int | None = None,
    ) -> None:
        """together: start all at once instead of tier by tier. announce and complain are given lines for people.

        parent_pid: a process with whose end everything is stopped. Raises ValueError when two components have the same
        name.
        """
        self._supervision = Supervision(components, together=together, start_seconds=start_seconds)
        self._announce = announce
        self._complain = complain
        self._children: list[Child] = []
        self._alive: dict[str, Child] = {}
        self._inputs: list[Input] = []
        self._hurry = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wake_lock = threading.RLock()
        self._parent_pid = parent_pid
        self._selector = selectors.DefaultSelector()
        self._settled = threading.Event()

    # -- for any thread --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True while every component is ready and nothing is being stopped."""
        return self._supervision.ready

    @property
    def failure(self) -> str | None:
        """What went wrong first, in words and with the component's last lines; None while nothing did."""
        return self._supervision.failure

    def address(self, component: str, kind: str) -> str | None:
        """Return where a component that is or was ready listens, None when it said nothing about this kind."""
        return self._supervision.addresses.get(component, {}).get(kind)

    def pid(self, component: str) -> int | None:
        """Return the process id of a component that lives, None otherwise."""
        child = self._alive.get(component)
        return None if child is None else child.pid

    def wait_settled(self) -> None:
        """Wait until every component is ready, or until all have ended."""
        self._settled.wait()

    def stop(self, *, hurry: bool = False) -> None:
        """Ask for the end: from any thread, from a signal handler, any number of times. hurry: kill at once."""
        with self._wake_lock:  # reentrant, for a signal may arrive while its thread is right here
            self._hurry = self._hurry or hurry
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # full: the other side is about to wake up anyway
                    os.write(self._wake_write, b"\0")

    # -- the work --------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start the components and return when none is left: 0, 1 when one failed, 2 when its settings cannot be."""
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._wake)
        parent_fd = self._watch_parent()
        try:
            while not self._supervision.finished:
                self._turn()
        finally:
            self._close()
            if parent_fd is not None:
                os.close(parent_fd)
        return self._supervision.exit_code

    def _watch_parent(self) -> int | None:
        if self._parent_pid is None:
            return None
        try:
            parent_fd = os.pidfd_open(self._parent_pid)
        except ProcessLookupError:
            self.stop()
            return None

        def parent_gone() -> None:
            self._selector.unregister(parent_fd)
            self.stop()

        self._selector.register(parent_fd, selectors.EVENT_READ, parent_gone)
        return parent_fd

    def _turn(self) -> None:
        commands = self._supervision.step(self._take_inputs(), time.monotonic())
        for command in commands:
            self._perform(command)
        if self._supervision.ready:
            self._settled.set()
        if self._inputs or self._supervision.finished:
            return
        deadline = self._supervision.next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ended: list[Child] = []
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Child):
                ended.append(key.data)
            else:
                key.data()
        # Last, so that what a child said before its end is heard before it.
        for child in ended:
            self._take_end(child)

    def _take_inputs(self) -> list[Input]:
        inputs, self._inputs = self._inputs, []
        return inputs

    def _perform(self, command: Command) -> None:
        match command:
            case Start(component):
                self._start(component)
            case Terminate(name):
                self._alive[name].terminate()
            case Kill(name):
                self._alive[name].kill()
            case Announce(text):
                self._announce(text)
            case Complain(text):
                self._complain(text)
            case _:
                assert_never(command)

    def _start(self, component: Component) -> None:
        try:
            child = start_child(component.name, component.argv, component.environment)
        except OSError as error:
            self._inputs.append(NotStarted(component.name, str(error)))
            return
        self._children.append(child)
        self._alive[component.name] = child
        self._inputs.append(Started(component.name, child.pid))
        self._selector.register(child.pid_fd, selectors.EVENT_READ, child)
        self._selector.register(child.ready_fd, selectors.EVENT_READ, partial(self._take_ready, child))
        for output in child.outputs:
            self._selector.register(output.fd, selectors.EVENT_READ, partial(self._pass_on, output))

    # -- what happens ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 1024):
                pass
        self._inputs.append(StopAsked(self._hurry))

    def _take_ready(self, child: Child) -> None:
        addresses = child.read_ready()
        if child.ready_closed:
            self._selector.unregister(child.ready_fd)
            child.close_ready()
        if addresses is not None:
            self._inputs.append(Ready(child.name, addresses))

    def _pass_on(self, output: Output) -> None:
        if not output.pass_on():
            self._selector.unregister(output.fd)
            output.close()

    def _take_end(self, child: Child) -> None:
        if not child.ready_closed:
            self._take_ready(child)
        for output in child.outputs:
            output.drain()
        self._selector.unregister(child.pid_fd)
        returncode = child.reap()
        del self._alive[child.name]
        reason = "nobody knows how" if returncode is None else describe_exit(returncode)
        self._inputs.append(Ended(child.name, returncode, reason, child.last_lines()))

    def _close(self) -> None:
        for child in self._alive.values():
            # Only when this thread was ended by an exception of its own.
            child.kill()
            child.reap()
        for child in self._children:
            child.close()
        self._selector.close()
        with self._wake_lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1
        self._settled.set()

"""The connections of the clients of this process: opened, listed, and ended with the program.

How a client reaches its scheduler is in `clusters` (over a socket), `nested` (through the worker of the task that it is
in) and `in_process`. A forked child has no clients.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol
from weakref import WeakSet

from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.transfers import Storage
from scaler.grammar import counted
from scaler.net.connection import Connector
from scaler.processes import after_fork
from scaler.protocol.messages import Welcome

QUIET_VARIABLE = "SCALER_QUIET"
"""Any value keeps clients from printing which cluster they use, and which tasks they drop."""

_loops: WeakSet[ClientLoop] = WeakSet()


class RunningTask(Protocol):
    """A client's view of the processor that it is in; see `worker.processor.context.ProcessorContext`."""

    task_id: bytes
    uploaded_code: Callable[[], bytes]

    @property
    def is_suspended(self) -> bool: ...

    def blocked(self) -> AbstractContextManager[None]: ...


def room(name: str) -> Any:
    """Import a module of the client that few programs need, or that needs much itself."""
    return import_module(f"scaler.client.{name}")


def processor() -> RunningTask | None:
    """Return the context of the processor that this code runs in, None outside of tasks."""
    module = sys.modules.get("scaler.worker.processor.context")  # a processor has imported it
    if module is None:
        return None
    context: RunningTask | None = module.current()
    return context


def is_inside_task() -> bool:
    """Return True when this code runs in a task, also in one that can have no clients."""
    module = sys.modules.get("scaler.worker.processor.context")
    return processor() is not None or (module is not None and bool(module.refusal))


def uploaded_code() -> bytes:
    """Return the archive of the modules that the client of the running task has uploaded; empty for none."""
    context = processor()
    return b"" if context is None else context.uploaded_code()


def opened(
    connect: Callable[[bytes, OnEvents], Connector],
    connect_storage: Callable[[Welcome, bytes], Storage],
    address: str,
    timeout_seconds: float,
    **options: Any,
) -> ClientLoop:
    """Make a client's loop. The arguments are those of `ClientLoop`."""
    context = processor()
    if context is not None:
        submitted = room("nested").watch(context).submitted
        options |= {"blocked": context.blocked, "submitted": submitted, "may_rest": lambda: context.is_suspended}
    loop = ClientLoop(address, connect, connect_storage, timeout_seconds, **options)
    _loops.add(loop)
    return loop


def runs_in_process() -> bool:
    """Return whether this code runs in a task of a client without processes."""
    module = sys.modules.get("scaler.client.in_process")  # such a client has imported it
    return module is not None and bool(module.is_running())


def open_loops() -> list[ClientLoop]:
    return list(_loops)


def say(text: str) -> None:
    """Print a line to stderr. A program without a terminal or console may have no stderr."""
    if sys.stderr is not None and not os.environ.get(QUIET_VARIABLE):
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"scaler: {text}\n")
            sys.stderr.flush()


def say_unfinished(loop: ClientLoop) -> None:
    """Print how many tasks a client of a program drops; those of a client inside a task are not the program's."""
    unfinished = loop.futures.unfinished() if processor() is None and loop.futures.closed is None else []
    if not unfinished or loop._is_durable:  # a session keeps its tasks
        return
    client = loop.futures.ids.owner.hex()
    named = f"{loop._name!r} ({client})" if loop._name else client
    tasks = f"{counted(len(unfinished), 'unfinished task')} of client {named} at {loop.address}"
    advice = "wait for the futures, or submit in a durable session: Client(ADDRESS, session=NAME)"
    say(f"dropped {tasks}, {unfinished[0]._label} first; {advice}")


def _at_exit() -> None:
    """End what the program did not end itself: its threads must not outlive the interpreter."""
    for loop in open_loops():
        say_unfinished(loop)
        loop.close("the program ends")


def _after_fork() -> None:
    for loop in open_loops():
        loop.futures.forked()


atexit.register(_at_exit)
after_fork(_after_fork)

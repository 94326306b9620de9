"""Opens, lists, and closes the connections of this process's clients."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import WeakSet

from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.transfers import Storage
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.net.connection import Connector
from scaler.plugins import part_of
from scaler.processes import after_fork
from scaler.protocol.messages import Welcome

QUIET_VARIABLE = "SCALER_QUIET"
"""Any value stops clients from printing which cluster they use and which tasks they drop."""

_loops: WeakSet[ClientLoop] = WeakSet()


class _Thread(threading.local):
    tasks = 0
    """Number of tasks that this thread is running for clients with processes=False."""


this_thread = _Thread()


class RunningTask(Protocol):
    """A client's view of its processor; see `worker.processor.context.ProcessorContext`."""

    task_id: bytes
    uploaded_code: Callable[[], bytes]
    on_client: list[Callable[[Any], object]]

    @property
    def is_suspended(self) -> bool: ...

    def blocked(self) -> AbstractContextManager[None]: ...


def processor() -> RunningTask | None:
    module = sys.modules.get("scaler.worker.processor.context")  # imported by a processor
    if module is None:
        return None
    context: RunningTask | None = module.current()
    return context


def is_inside_task() -> bool:
    """Return whether this code runs in a task, even one that cannot use clients."""
    module = sys.modules.get("scaler.worker.processor.context")
    return processor() is not None or (module is not None and bool(module.refusal))


def uploaded_code() -> bytes:
    context = processor()
    return b"" if context is None else context.uploaded_code()


def opened(
    connect: Callable[[bytes, OnEvents], Connector],
    connect_storage: Callable[[Welcome, bytes], Storage],
    address: str,
    timeout_seconds: float,
    **options: Any,
) -> ClientLoop:
    context = processor()
    if context is not None:
        options |= {"blocked": context.blocked, "may_rest": lambda: context.is_suspended}
        with contextlib.suppress(UsageError):
            options["submitted"] = part_of("nested", "watch", "")(context).submitted
    loop = ClientLoop(address, connect, connect_storage, timeout_seconds, **options)
    _loops.add(loop)
    return loop


def open_loops() -> list[ClientLoop]:
    return list(_loops)


def say(text: str) -> None:
    """Print a line to stderr, which may be missing in a program without a terminal or console."""
    if sys.stderr is not None and not os.environ.get(QUIET_VARIABLE):
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"scaler: {text}\n")
            sys.stderr.flush()


def say_unfinished(loop: ClientLoop) -> None:
    unfinished = loop.futures.unfinished() if processor() is None and loop.futures.closed is None else []
    if not unfinished or loop._is_durable:  # a session keeps its tasks
        return
    client = loop.futures.ids.owner.hex()
    named = f"{loop._name!r} ({client})" if loop._name else client
    tasks = f"{counted(len(unfinished), 'unfinished task')} of client {named} at {loop.address}"
    advice = "wait for the futures, or use a durable session: Client(ADDRESS, session=NAME)"
    say(f"dropped {tasks}, starting with {unfinished[0]._label}; {advice}")


def _at_exit() -> None:
    """Close all open clients, whose threads must not outlive the interpreter."""
    for loop in open_loops():
        say_unfinished(loop)
        loop.close("the program ends")


def _after_fork() -> None:
    for loop in open_loops():
        loop.futures.forked()


atexit.register(_at_exit)
after_fork(_after_fork)

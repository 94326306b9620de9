"""Helpers for calling a task's function: coroutines, preload hook, exceptions, and resource usage."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import Any

from scaler.config.values import parse_preload
from scaler.errors import ObjectLostError, RemoteError
from scaler.protocol.messages import Outcome
from scaler.serialization import describe
from scaler.serialization.exception_graph import assign
from scaler.serialization.exceptions import annotate, dump_exception, is_raised_by_user, user_traceback
from scaler.texts import escaped_lines

MAX_EXCEPTION_BYTES = 1024 * 1024

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def finish(value: Any) -> Any:
    """Run a coroutine in a new event loop and return its result. Returns other values unchanged."""
    if type(value) is not CoroutineType:
        return value
    import asyncio  # noqa: PLC0415 (it takes a while to import, and few tasks need it)

    return asyncio.run(value)


def run_preload(text: str) -> None:
    """Import the module and call the function of a preload setting. Raises UsageError, and the errors of both."""
    call = parse_preload(text)
    function = getattr(importlib.import_module(call.module), call.function)
    function(*call.args, **call.kwargs)


def failure_of(
    error: BaseException, is_to_retry: Callable[[BaseException], bool] = lambda _: False
) -> tuple[Outcome, bytes]:
    """Return the outcome and payload for a task's exception. Never raises. is_to_retry: the task's predicate."""
    if isinstance(error, ObjectLostError) and not is_raised_by_user(error):
        outcome = Outcome.INPUT_MISSING if error.object_id else Outcome.OBJECT_LOST
        return outcome, error.object_id + str(error).encode("utf-8", "replace")
    outcome = Outcome.EXCEPTION
    try:
        if asks_to_retry(error, is_to_retry):
            outcome = Outcome.EXCEPTION_TO_RETRY
        text = user_traceback(error)
        payload = dump_exception(error, text)
        if len(payload) > MAX_EXCEPTION_BYTES:
            payload = dump_exception(_shortened(error), text)
    except BaseException as second:  # noqa: BLE001 (user code runs in here too: __reduce__, __str__, ...)
        shown = RemoteError(type(error).__name__, f"it cannot be reported ({type(second).__name__})")
        payload = dump_exception(shown, "")
    finally:
        assign(error, "__traceback__", None)  # its frames refer to the task's values
    return outcome, payload


def asks_to_retry(error: BaseException, is_to_retry: Callable[[BaseException], bool]) -> bool:
    """Return True if the task should be retried. If the predicate fails, the exception gets a note and the task is not
    retried."""
    try:
        return is_to_retry(error)
    except Exception as second:  # noqa: BLE001 (a user's predicate may raise anything)
        annotate(error, f"not retried, because retry_on raised {describe(second)}")
        return False


def _shortened(error: BaseException) -> RemoteError:
    text = f"{escaped_lines(str(error)[:10_000])} (the exception itself is larger than {MAX_EXCEPTION_BYTES} bytes: "
    return RemoteError(type(error).__name__, text + "MAX_EXCEPTION_BYTES)")


class Meter:
    cpu_us = 0
    peak_bytes = 0

    def __enter__(self) -> None:
        with contextlib.suppress(OSError):  # if not permitted, the peak of the process so far is used
            _CLEAR_REFS.write_text(_RESET_PEAK, "ascii")  # makes the kernel measure the peak from now on
        self._cpu_ns = time.process_time_ns()

    def __exit__(self, *_: object) -> None:
        self.cpu_us = (time.process_time_ns() - self._cpu_ns) // 1000
        import resource  # noqa: PLC0415 (Windows has none, and clients there import this module)

        self.peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

"""Around the call of a task's function, wherever it runs: coroutines, the preload hook, and what the task raised."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from scaler.config.preload import parse_preload
from scaler.errors import ObjectLostError, RemoteError
from scaler.protocol.messages import Outcome
from scaler.serialization.exceptions import assign, dump_exception

MAX_EXCEPTION_BYTES = 1024 * 1024
"""A larger exception arrives as its type and text only."""


def finish(value: Any) -> Any:
    """Run a coroutine to its end in an event loop of its own and return its result; return anything else unchanged."""
    if type(value) is not CoroutineType:
        return value
    import asyncio  # noqa: PLC0415 (it takes a while to import, and few tasks need it)

    return asyncio.run(value)


def run_preload(text: str) -> None:
    """Import the module and call the function that a preload setting names. Raises UsageError, and whatever these
    raise."""
    call = parse_preload(text)
    function = getattr(importlib.import_module(call.module), call.function)
    function(*call.args, **call.kwargs)


def failure_of(
    error: BaseException, caller: str, is_to_retry: Callable[[BaseException], bool] = lambda _: False
) -> tuple[Outcome, bytes]:
    """Return the outcome and the payload for an exception of a task. Never fails.

    caller: path of the module that called the task; its frames are not shown. is_to_retry: returns True if the user
    asked to run the task again after such an error.
    """
    if isinstance(error, ObjectLostError) and not _raised_by_user(error, caller):
        return Outcome.OBJECT_LOST, str(error).encode("utf-8", "replace")
    outcome = Outcome.EXCEPTION
    try:
        if is_to_retry(error):
            outcome = Outcome.EXCEPTION_TO_RETRY
        trace = _user_frames(error, caller)
        text = "".join(traceback.format_exception(type(error), error, trace))
        payload = dump_exception(error, text)
        if len(payload) > MAX_EXCEPTION_BYTES:
            payload = dump_exception(_shortened(error), text)
    except BaseException as second:  # noqa: BLE001 (user code runs in here too: __reduce__, __str__, ...)
        shown = RemoteError(type(error).__name__, f"it cannot be reported ({type(second).__name__})")
        payload = dump_exception(shown, "")
    finally:
        assign(error, "__traceback__", None)  # its frames hold the task's values
    return outcome, payload


def _user_frames(error: BaseException, caller: str) -> Any:
    """Return the traceback from where user code begins."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == caller:
        trace = trace.tb_next
    return trace


def _raised_by_user(error: BaseException, caller: str) -> bool:
    """Return True if an error came out of a task's function, and not from what was needed to call it."""
    trace = _user_frames(error, caller)
    return trace is not None and not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("scaler.")


def _shortened(error: BaseException) -> RemoteError:
    text = f"{str(error)[:10_000]} (the exception itself is larger than {MAX_EXCEPTION_BYTES} bytes: "
    return RemoteError(type(error).__name__, text + "MAX_EXCEPTION_BYTES)")

"""What a task raised, as an outcome and a payload: the same wherever tasks run."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from scaler.errors import ObjectLostError, RemoteError
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_exception
from scaler.serialization.exceptions import assign

MAX_EXCEPTION_BYTES = 1024 * 1024
"""A larger exception arrives as its type and text only."""


def failure_of(
    error: BaseException, is_to_retry: Callable[[BaseException], bool], caller: str
) -> tuple[Outcome, bytes]:
    """Turn what a task raised into an outcome and a payload. Never fails.

    is_to_retry: tells whether the user asked to run the task again after such an error. caller: path of the module that
    called the task; its frames are not shown.
    """
    if isinstance(error, ObjectLostError) and not _raised_by_user(error, caller):
        return Outcome.OBJECT_LOST, str(error).encode("utf-8", "replace")
    outcome = Outcome.EXCEPTION
    try:
        if is_to_retry(error):
            outcome = Outcome.EXCEPTION_TO_RETRY
        text = _traceback_text(error, caller)
        payload = dump_exception(error, text)
        if len(payload) > MAX_EXCEPTION_BYTES:
            payload = dump_exception(_shortened(error), text)
    except BaseException as second:  # noqa: BLE001 (user code runs in here too: __reduce__, __str__, ...)
        shown = RemoteError(type(error).__name__, f"it cannot be reported ({type(second).__name__})")
        payload = dump_exception(shown, "")
    finally:
        assign(error, "__traceback__", None)  # its frames hold the task's values
    return outcome, payload


def _traceback_text(error: BaseException, caller: str) -> str:
    """Return the traceback as text, from where user code begins."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == caller:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _raised_by_user(error: BaseException, caller: str) -> bool:
    """Tell whether an error came out of a task's function, and not from what was needed to call it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == caller:
        trace = trace.tb_next
    return trace is not None and not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("scaler.")


def _shortened(error: BaseException) -> RemoteError:
    text = f"{str(error)[:10_000]} (the exception itself is larger than {MAX_EXCEPTION_BYTES} bytes: "
    return RemoteError(type(error).__name__, text + "MAX_EXCEPTION_BYTES)")

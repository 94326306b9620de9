"""Tracebacks for users, without Scaler's frames."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from itertools import dropwhile, zip_longest
from types import TracebackType
from typing import ParamSpec, TypeVar

from scaler.errors import ScalerError

MAX_CAUSES = 10
"""Maximum length of the chain of causes shown or sent with an exception."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_EXPECTED = (ScalerError, TimeoutError, KeyboardInterrupt)
_CALLERS = (
    "chunks",
    "executor",
    "client.functions",
    "future",
    "graph",
    "map",
    "job",
    "calling",
    "main",
    "tracebacks",
)
"""Modules that call user functions or reraise their errors. An error that originates there is not a bug in Scaler."""


def causes(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its cause or context, and so on."""
    each: BaseException | None = exception
    for _ in range(MAX_CAUSES):
        if each is not None:
            yield each
            each = each.__context__ if each.__cause__ is None else each.__cause__


def hide_frames(error: BaseException) -> None:
    """Remove Scaler's frames from the tracebacks of an exception and its causes, except for a bug in Scaler."""
    last = _frames(error)[-1:]
    if last and _is_own(last[0]) and not _module(last[0]).endswith(_CALLERS) and not isinstance(error, _EXPECTED):
        return
    for each in causes(error):
        frames = user_frames(each)
        for frame, following in zip_longest(frames, frames[1:]):
            frame.tb_next = following
        BaseException.with_traceback(each, frames[0] if frames else None)


def hiding_frames(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that its exceptions have no Scaler frames. Hot paths call `hide_frames` instead."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    return call


def user_traceback(error: BaseException) -> str:
    """Return the traceback and causes without Scaler's frames; only notes if no frame is left."""
    hide_frames(error)
    if not any(each.__traceback__ for each in causes(error)):
        return "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
    return "".join(traceback.format_exception(error))


def user_frames(error: BaseException) -> list[TracebackType]:
    """Return the frames of a traceback, without frames of Scaler and of asyncio's runner."""
    frames = [frame for frame in _frames(error) if not _is_own(frame)]
    return list(dropwhile(lambda frame: _module(frame).startswith("asyncio."), frames))


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether an error was raised by a task's function, not by Scaler's preparation of the call."""
    frames = (frame for frame in _frames(error) if not (_is_own(frame) and _module(frame).endswith(_CALLERS)))
    first = next(frames, None)
    return first is not None and not _is_own(first)


def _frames(error: BaseException) -> list[TracebackType]:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _module(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", ""))


def _is_own(frame: TracebackType) -> bool:
    return _module(frame).startswith(("scaler.", "cloudpickle."))

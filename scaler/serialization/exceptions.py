"""Exceptions for users: pickled where raised, loaded where read, and shown without Scaler's frames."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Callable, Iterator
from itertools import dropwhile, zip_longest
from types import TracebackType
from typing import ParamSpec, TypeVar

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback, ScalerError
from scaler.protocol.failures import failure_texts, pack_exception, unpack_exception
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer, describe, how_to_send
from scaler.serialization.exception_graph import MAX_CAUSES, Graph, assign, attributes_of, pack, type_and_text, unpack

MAX_TRACEBACK_CHARACTERS = 16 * 1024
_P = ParamSpec("_P")
_T = TypeVar("_T")
_EXPECTED = (ScalerError, TimeoutError, KeyboardInterrupt)
_CALLERS = (
    "chunks",
    "executor",
    "client.task_calls",
    "future",
    "graphs.run",
    "maps.results",
    "streams.client",
    "job",
    "calling",
    "main",
    "exceptions",
)
"""Modules that call user functions or reraise their errors. An error that originates there is not a bug in Scaler."""


class ShownAsError(Exception):
    """Carries results along with a failure. Monitors display the exception in the payload `shown`."""

    shown: bytes

    def __str__(self) -> str:
        return failure_texts(Outcome.EXCEPTION, self.shown).text


class PartFailedError(ShownAsError):
    """A part of a task, such as a node of a chunk, raised an exception. number: number of the part. shown: payload of
    its exception. raised: the exception, once loaded."""

    raised: BaseException

    def __init__(self, number: int, shown: bytes) -> None:
        super().__init__(number, shown)
        self.number = number
        self.shown = shown


def dump_exception(exception: BaseException, traceback_text: str) -> bytes:
    """Return the payload of an exception. Never fails: an exception that cannot be pickled becomes a RemoteError."""
    type_name, text = type_and_text(exception)
    packed: Graph | None = None
    try:
        packed = pack(exception)
    except Exception as error:  # noqa: BLE001 (user code in __reduce__: send the text instead)
        text = f"{text} (the exception itself cannot be pickled: {describe(error)})"
    if isinstance(exception, ShownAsError):
        type_name, text, traceback_text, _ = unpack_exception(exception.shown)
    if len(traceback_text) > MAX_TRACEBACK_CHARACTERS:
        half = MAX_TRACEBACK_CHARACTERS // 2
        omitted = len(traceback_text) - 2 * half
        traceback_text = f"{traceback_text[:half]}\n  ... characters left out: {omitted} ...\n{traceback_text[-half:]}"
    return pack_exception(type_name, text, traceback_text, pickle.dumps(packed, 5))


def load_exception(payload: Buffer) -> BaseException:
    """Return the exception or a RemoteError, caused by the remote traceback. Raises ProtocolError."""
    type_name, text, traceback_text, pickled = unpack_exception(bytes(payload))
    try:
        graph = pickle.loads(pickled)  # noqa: S301 (see `load`)
    except Exception as error:
        raise ProtocolError(f"the payload does not contain an exception: {describe(error)}") from error
    exception: BaseException = RemoteError(type_name, text)
    if graph is not None:
        try:
            exception = unpack(graph)
        except Exception as error:  # noqa: BLE001 (loading runs user code)
            exception = RemoteError(
                type_name, f"{text} (the exception itself cannot be loaded here: {describe(error)})"
            )
    first = exception
    for _ in range(MAX_CAUSES):
        if first.__cause__ is not None:
            first = first.__cause__
    assign(first, "__cause__", RemoteTraceback(traceback_text))
    if type(exception) is ModuleNotFoundError and exception.name:
        annotate(exception, f"the worker has no module {exception.name!r}: {how_to_send(exception.name)}")
    return exception


def remote_traceback(exception: BaseException) -> RemoteTraceback | None:
    return next((each for each in causes(exception) if isinstance(each, RemoteTraceback)), None)


def locate(exception: BaseException, where: str) -> None:
    """Add the item or node that raised an exception in a note, and at the top of the remote traceback."""
    annotate(exception, f"in {where}")
    trace = remote_traceback(exception)
    if trace is not None:
        trace.where = where


def annotate(exception: BaseException, note: str) -> None:
    """Add a note to an exception once, even if its class overrides `add_note` or attribute access."""
    notes = attributes_of(exception).get("__notes__", ())
    if note not in notes:
        assign(exception, "__notes__", [*notes, note])


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
        frames = [frame for frame in _frames(each) if not _is_own(frame)]
        frames = list(dropwhile(lambda frame: _module(frame).startswith("asyncio."), frames))
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

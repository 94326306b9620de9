"""Transfers exceptions to the client: pickled where raised, loaded where read."""

from __future__ import annotations

import pickle

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback
from scaler.protocol.failures import failure_texts, pack_exception, unpack_exception
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer, describe, how_to_send
from scaler.serialization.exception_graph import Graph, assign, attributes_of, pack, type_and_text, unpack
from scaler.serialization.tracebacks import MAX_CAUSES, causes

MAX_TRACEBACK_CHARACTERS = 16 * 1024
_ORIGIN = "__origin__"


class ShownAsError(Exception):
    """Carries results along with a failure. Monitors display the exception in the payload `shown`."""

    shown: bytes

    @property
    def only(self) -> BaseException | None:
        """The exception if there is only one, which then decides about a retry."""
        return None


class PartFailedError(ShownAsError):
    """A part of a task raised, such as a node of a chunk. number: of the part. shown: payload of its exception."""

    def __init__(self, number: int, shown: bytes) -> None:
        super().__init__(number, shown)
        self.number = number
        self.shown = shown

    def __str__(self) -> str:
        return failure_texts(Outcome.EXCEPTION, self.shown).text

    def raised(self) -> BaseException:
        error = load_exception(self.shown)
        assign(error, _ORIGIN, self.number)
        return error


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
        raise ProtocolError(f"a payload that should hold an exception does not: {describe(error)}") from error
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
    """Name the item or node of an exception: in a note, and at the top of its remote traceback."""
    annotate(exception, f"in {where}")
    trace = remote_traceback(exception)
    if trace is not None:
        trace.where = where


def annotate(exception: BaseException, note: str) -> None:
    """Add a note to an exception once, even if its class overrides `add_note` or attribute access."""
    notes = attributes_of(exception).get("__notes__", ())
    if note not in notes:
        assign(exception, "__notes__", [*notes, note])


def take_origin(exception: BaseException) -> int | None:
    """Return and remove the number of the task part that raised, or None."""
    found: int | None = attributes_of(exception).pop(_ORIGIN, None)
    return found

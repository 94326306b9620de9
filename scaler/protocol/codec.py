"""Between messages and bytes: the only translator, and the only module that knows Cap'n Proto.

Decoding is eager: what it returns is plain objects that keep nothing of the frame. Bytes of a peer are never trusted:
whatever is wrong with them ends in one ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import capnp

from scaler.errors import LimitError, ProtocolError
from scaler.protocol import batch_shapes as b
from scaler.protocol import lone
from scaler.protocol import messages as m
from scaler.protocol.shapes import SHAPES

MIN_TRAVERSAL_WORDS = 8 * 1024
NESTING_LIMIT = 32
_WORD_BYTES = 8

_Write = Callable[[Any, Any], None]
_Read = Callable[[Any], m.Message]

_BATCHES: tuple[tuple[type[Any], str, _Write, _Read], ...] = (
    (m.Submit, "submit", b.write_submit, b.read_submit),
    (m.Run, "run", b.write_run, b.read_run),
    (m.Done, "done", b.write_done, b.read_done),
    (m.Finished, "finished", b.write_finished, b.read_finished),
    (m.Recall, "recall", b.write_recall, b.read_recall),
    (m.Returned, "returned", b.write_returned, b.read_returned),
    (m.Suspended, "suspended", b.write_suspended, b.read_suspended),
    (m.Printed, "printed", b.write_printed, b.read_printed),
)
_PLAIN = tuple((shape.type, shape.wire, shape.write, shape.read) for shape in SHAPES)


def _largest(message_type: type[Any]) -> tuple[int, str]:
    if message_type in m.BATCH_MESSAGES:
        return m.MAX_BATCH_BYTES, "MAX_BATCH_BYTES"
    return m.MAX_CONTROL_BYTES, "MAX_CONTROL_BYTES"


_WRITERS: dict[type[Any], tuple[str, _Write, int, str]] = {
    kind: (wire, write, *_largest(kind)) for kind, wire, write, _ in (*_BATCHES, *_PLAIN)
}
_READERS: dict[str, tuple[str, _Read, int, str]] = {
    wire: (kind.__name__, read, *_largest(kind)) for kind, wire, _, read in (*_BATCHES, *_PLAIN)
}

# By its path: looking for it along sys.path would cost every process's start.
_BODY: Any = capnp.load(str(Path(__file__).with_name("scaler.capnp"))).Body


def encode(message: m.Message) -> bytes:
    """Return the message as the bytes of a body.

    Raises LimitError when it is larger than the protocol allows, and ValueError when it breaks a rule of its own, such
    as columns of different lengths.
    """
    write_lone = lone.WRITERS.get(type(message))
    if write_lone is not None and (lone_body := write_lone(message, _specs)) is not None:
        return lone_body
    return _encode(message)


def _encode(message: m.Message) -> bytes:
    wire, write, largest, limit = _WRITERS[type(message)]
    builder = _BODY.new_message()
    try:
        write(builder.init(wire), message)
        body: bytes = builder.to_bytes()
    except (capnp.KjException, OverflowError) as error:
        raise ValueError(f"{type(message).__name__} has a field that does not fit the wire: {_text(error)}") from error
    if len(body) > largest:
        raise LimitError(f"a {type(message).__name__} of {len(body)} bytes is larger than {limit} ({largest})")
    return body


def decode(body: bytes | memoryview) -> m.Message:
    """Return the message that a body holds.

    Raises ProtocolError for anything but the bytes of one well-formed message within the limits.
    """
    size = len(body) if isinstance(body, bytes) else body.nbytes
    if size > m.MAX_BATCH_BYTES:
        raise ProtocolError(f"a body of {size} bytes is larger than MAX_BATCH_BYTES ({m.MAX_BATCH_BYTES})")
    # Cap'n Proto needs aligned memory, which a part of a frame need not be and bytes objects are.
    whole = body if isinstance(body, bytes) else bytes(body)
    message = lone.read(whole, _specs)
    if message is None:
        message = _decode(whole)
        if isinstance(message, m.Submit | m.Run) and len(message.groups) == 1 and len(message.groups[0].ids) == 1:
            _specs.bytes_of(message.groups[0].spec)
    return message


def _decode(whole: bytes) -> m.Message:
    size = len(whole)
    name = "message"
    try:
        with _BODY.from_bytes(whole, max(MIN_TRAVERSAL_WORDS, size // _WORD_BYTES * 4), NESTING_LIMIT) as reader:
            wire = str(reader.which)
            name, read, largest, limit = _READERS[wire]
            if size > largest:
                raise ProtocolError(f"a {name} of {size} bytes is larger than {limit} ({largest})")
            return read(getattr(reader, wire))
    except (capnp.KjException, ValueError) as error:
        raise ProtocolError(f"malformed {name}: {_text(error)}") from error


_specs = lone.Specs(_encode)


def _text(error: Exception) -> str:
    return str(error).partition("\n")[0]

"""Payloads of failures. Their texts can be read without unpickling.

The payload of a task's exception is:

    tag (1 byte: PayloadTag.EXCEPTION) | version (1 byte: 3) | sizes of the three texts (u32 each, little endian) |
    type name, text, traceback (UTF-8) | a pickle of builtins: a `Graph`, or None

The payloads of all other failures are UTF-8 text.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from scaler.errors import ProtocolError
from scaler.protocol.messages import Outcome, PayloadTag, is_stored
from scaler.texts import readable

MAX_TEXT_BYTES = 64 * 1024
_VERSION = 3
_HEAD = struct.Struct("<BB3I")


class FailureTexts(NamedTuple):
    """text: the error, prefixed with the exception's type if there is one. traceback: may be empty."""

    text: str
    traceback: str = ""


def pack_exception(type_name: str, text: str, traceback: str, pickled: bytes) -> bytes:
    texts = [part.encode("utf-8", "backslashreplace") for part in (type_name, text, traceback)]
    return b"".join((_HEAD.pack(PayloadTag.EXCEPTION, _VERSION, *map(len, texts)), *texts, pickled))


def unpack_exception(payload: bytes) -> tuple[str, str, str, bytes]:
    """Return the type name, text, traceback, and pickled parts of an exception. Raises ProtocolError otherwise."""
    if len(payload) < _HEAD.size or payload[0] != PayloadTag.EXCEPTION:
        raise ProtocolError("the payload does not contain an exception")
    _, version, *sizes = _HEAD.unpack_from(payload)
    if version != _VERSION:
        raise ProtocolError(f"the exception has version {version}, but this side supports version {_VERSION}")
    texts = []
    at = _HEAD.size
    for size in sizes:
        texts.append(readable(payload[at : at + size], MAX_TEXT_BYTES))
        at += size
    if at > len(payload):
        raise ProtocolError(f"the exception has size {len(payload)}, but announces size {at}")
    return texts[0], texts[1], texts[2], payload[at:]


def failure_texts(outcome: int, payload: bytes) -> FailureTexts:
    """Return the texts of a failure's payload. Never raises: if the payload is unreadable, the text explains why."""
    if is_stored(payload):
        return FailureTexts("the exception is too large to display; its client has it")
    if outcome not in (Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY):
        return FailureTexts(readable(payload, MAX_TEXT_BYTES))
    try:
        type_name, text, traceback, _ = unpack_exception(payload)
    except ProtocolError as error:
        return FailureTexts(f"the exception cannot be read ({error})")
    return FailureTexts(f"{type_name}: {text}" if text else type_name, traceback)

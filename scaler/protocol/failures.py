"""What a failed task says of itself, as texts: readable by anybody on the way, without loading what users made.

The payload of a task's own exception begins with a header:

    tag (1 byte: PayloadTag.EXCEPTION) | version (1 byte: 1) | sizes of the three texts (u32 each, little endian)

Then come the texts in UTF-8 (the name of its type, its text, its traceback), then a pickle of the exception's parts,
which only who wants the exception itself reads. The payloads of all other failures are UTF-8 text.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from scaler.errors import ProtocolError
from scaler.protocol.messages import Outcome, PayloadTag, is_stored

VERSION = 1
_HEAD = struct.Struct("<BB3I")


@dataclass(frozen=True, slots=True)
class FailureTexts:
    """text: what failed, with the type of an exception before it. traceback is empty where there is none."""

    text: str
    traceback: str = ""


def pack_exception(type_name: str, text: str, traceback: str, pickled: bytes) -> bytes:
    """Return the payload of an exception."""
    texts = [part.encode("utf-8", "backslashreplace") for part in (type_name, text, traceback)]
    return b"".join((_HEAD.pack(PayloadTag.EXCEPTION, VERSION, *map(len, texts)), *texts, pickled))


def unpack_exception(payload: bytes) -> tuple[str, str, str, bytes]:
    """Return the name of the exception's type, its text, its traceback, and the pickle of its parts.

    Raises ProtocolError when the payload is no exception's.
    """
    if len(payload) < _HEAD.size or payload[0] != PayloadTag.EXCEPTION:
        raise ProtocolError("a payload that should hold an exception does not")
    _, version, *sizes = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise ProtocolError(f"an exception of version {version} came, and this side knows version {VERSION}")
    texts = []
    at = _HEAD.size
    for size in sizes:
        texts.append(payload[at : at + size].decode("utf-8", "replace"))
        at += size
    if at > len(payload):
        raise ProtocolError(f"an exception of {len(payload)} bytes says that it has {at}")
    return texts[0], texts[1], texts[2], payload[at:]


def failure_texts(outcome: int, payload: bytes) -> FailureTexts:
    """Return what a payload that is no success says. Never fails: what cannot be read is said so."""
    if is_stored(payload):
        return FailureTexts("an exception that is too large to be shown: its client has it")
    if outcome not in (Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY):
        return FailureTexts(payload.decode("utf-8", "replace"))
    try:
        type_name, text, traceback, _ = unpack_exception(payload)
    except ProtocolError as error:
        return FailureTexts(f"an exception that cannot be read ({error})")
    return FailureTexts(f"{type_name}: {text}" if text else type_name, traceback)

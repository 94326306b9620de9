"""Checksums of envelopes over ZeroMQ without encryption. Pure.

Encryption finds every damaged byte, and a unix socket damages none. Plain TCP has a checksum of 16 bits for each hop
only, so a proxy or a network card may change bytes unnoticed. The checksum takes the place of the header's flags; 0 is
none, so that a peer in another language may leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.protocol.session import HEADER_BYTES, Buffer, Envelope

_CHECKSUM = slice(4, 8)


def with_checksum(envelope: Envelope) -> Envelope:
    """Return an envelope whose header has the CRC-32 of the header without it, the body and the attachments."""
    header, body, attachments, _ = envelope  # the header may be longer: that of compressed frames
    checksum = _crc32(header, body, attachments).to_bytes(4, "little")
    return envelope._replace(header=header[: _CHECKSUM.start] + checksum + header[_CHECKSUM.stop :])


def checked(received: Input) -> Input:
    """Return an envelope with a header without checksum, or `MalformedReceived` when its bytes were damaged."""
    if not isinstance(received, EnvelopeReceived):
        return received
    header = received.header
    checksum = int.from_bytes(header[_CHECKSUM], "little")
    if not checksum or len(header) < HEADER_BYTES:
        return received
    header = header[: _CHECKSUM.start] + bytes(4) + header[_CHECKSUM.stop :]
    if _crc32(header, received.body, received.attachments) != checksum:
        return MalformedReceived(received.link, "bytes of an envelope were damaged on the way", is_damaged=True)
    return received._replace(header=header)


def _crc32(header: bytes, body: bytes, attachments: Sequence[Buffer]) -> int:
    value = crc32(body, crc32(header))
    for attachment in attachments:
        value = crc32(attachment, value)
    return value

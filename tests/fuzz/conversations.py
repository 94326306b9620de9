"""Conversations: the messages of one side of a connection, as bytes of the local transport.

Fuzz targets parse a conversation leniently: a truncated part is a shorter frame, so any change of the bytes still
yields envelopes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaler.protocol.session import HEADER_BYTES

HEAD = struct.Struct(f"=IHH{HEADER_BYTES}s")
"""Size of the body, number of attachments, number of descriptors, header."""
MAX_ENVELOPES = 200


class Spoken(NamedTuple):
    """One envelope of a conversation."""

    header: bytes
    body: bytes
    attachments: tuple[bytes, ...] = ()


def pack(envelopes: Iterable[Spoken]) -> bytes:
    parts = []
    for header, body, attachments in envelopes:
        sizes = [len(each) for each in attachments]
        parts += [HEAD.pack(len(body), len(sizes), 0, header), struct.pack(f"={len(sizes)}I", *sizes), body]
        parts += attachments
    return b"".join(parts)


def unpack(data: bytes) -> list[Spoken]:
    """Return the envelopes, of which the last may be truncated."""
    envelopes: list[Spoken] = []
    at = 0
    while at + HEAD.size <= len(data) and len(envelopes) < MAX_ENVELOPES:
        body_bytes, count, _, header = HEAD.unpack_from(data, at)
        at += HEAD.size
        count = min(count, (len(data) - at) // 4)
        sizes: Sequence[int] = struct.unpack_from(f"={count}I", data, at)
        at += 4 * count
        frames = []
        for size in (body_bytes, *sizes):
            frames.append(data[at : at + size])
            at += len(frames[-1])
        envelopes.append(Spoken(header, frames[0], tuple(frames[1:])))
    return envelopes

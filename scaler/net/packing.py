"""Compression of frames by the `compression` extension. Without the extension, nothing is compressed."""

from __future__ import annotations

from functools import cache
from typing import Any

from scaler.net.transport import EnvelopeReceived, Input
from scaler.plugins import EXTENSIONS, part_of
from scaler.protocol.session import HEADER_BYTES


@cache
def packing() -> Any:
    """Return the module that compresses frames, or None."""
    return part_of("compression", "frames", "") if "compression" in EXTENSIONS.built_in else None


def announced(setting: str) -> str:
    """Return the compression method that a peer with this setting offers; empty: none."""
    module = None if setting == "off" else packing()
    return "" if module is None else str(module.METHOD)


def expanded(received: Input) -> tuple[Input, int]:
    """Return the decompressed envelope or a `MalformedReceived`, and by how many bytes the envelope grew."""
    if type(received) is not EnvelopeReceived or len(received.header) <= HEADER_BYTES or packing() is None:
        return received, 0
    found: tuple[Input, int] = packing().expanded(received)
    return found

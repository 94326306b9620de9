"""Zstandard: of the standard library from Python 3.14 on, before that of its backport."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from scaler.protocol.session import Buffer

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError

LEVEL = 1
_OPTIONS: Mapping[int, int] = {DecompressionParameter.window_log_max: 23}
"""A frame that needs more than 8 MiB of what came before is refused: that memory comes beside all limits."""


class _OfThread(threading.local):
    """All connections of a thread share a compressor, which has a megabyte. A fork inherits none that is in use."""

    def __init__(self) -> None:
        self.compressor = ZstdCompressor(LEVEL)


_of_thread = _OfThread()


def compress(data: Buffer) -> bytes:
    return _of_thread.compressor.compress(data, ZstdCompressor.FLUSH_FRAME)


def decompress(data: Buffer, size: int) -> bytes:
    """Return these bytes as they were. Raises ValueError unless that is `size`, beyond which no memory is taken."""
    decompressor = ZstdDecompressor(options=_OPTIONS)
    try:
        found = decompressor.decompress(data, size)
    except ZstdError as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"a frame does not have the size that its header announces, {size}")
    return found

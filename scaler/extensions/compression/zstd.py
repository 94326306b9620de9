"""Zstandard: the standard library from Python 3.14, or its backport."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from scaler.protocol.messages import Buffer

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError

LEVEL = 1
_OPTIONS: Mapping[int, int] = {DecompressionParameter.window_log_max: 23}
"""Reject frames whose window exceeds 8 MiB, because that memory is outside all limits."""


class _OfThread(threading.local):
    """All connections of a thread share a one-megabyte compressor. A forked process does not inherit a compressor in
    use."""

    def __init__(self) -> None:
        self.compressor = ZstdCompressor(LEVEL)


_of_thread = _OfThread()


def compress(data: Buffer) -> bytes:
    return _of_thread.compressor.compress(data, ZstdCompressor.FLUSH_FRAME)


def decompress(data: Buffer, size: int) -> bytes:
    """Decompress a frame, allocating at most `size` bytes. Raises ValueError if the result has another size."""
    decompressor = ZstdDecompressor(options=_OPTIONS)
    try:
        found = decompressor.decompress(data, size)
    except ZstdError as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"a frame does not expand to the size in its header: {size}")
    return found

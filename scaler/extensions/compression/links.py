"""Compression of one connection, as `scaler.net.packing` uses it."""

from __future__ import annotations

import threading
import time
from functools import partial

from scaler.extensions.compression.frames import Packer, PackingLoad, expanded
from scaler.net.kernel import bytes_per_second, is_of_this_host

__all__ = ["METHOD", "expanded", "packer_of"]
METHOD = "zstd"


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.load = PackingLoad()


_of_thread = _OfThread()


def packer_of(descriptor: int, setting: str) -> Packer | None:
    """Return the compressor for a connection of this thread, or None if compression never pays off."""
    if setting != "on" and is_of_this_host(descriptor):
        return None
    speed = (lambda: 0.0) if setting == "on" else partial(bytes_per_second, descriptor)
    return Packer(speed, _of_thread.load, time.monotonic, time.thread_time)

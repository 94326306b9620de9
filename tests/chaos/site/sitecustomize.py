"""Hooks for chaos runs in processes that have this directory in PYTHONPATH.

*Wall clock jumps.* The file CHAOS_CLOCK contains the offset in seconds, as a double. Monotonic clocks do not change, as
in a real jump.

*Stores behind a proxy.* A store requests a proxy from the unix socket CHAOS_STORES, and sends the scheduler the proxy's
address.
"""

from __future__ import annotations

import datetime
import mmap
import os
import socket
import struct
import sys
import time
from typing import Any

_PATH = os.environ.get("CHAOS_CLOCK")
if _PATH:
    with open(_PATH, "rb") as _file:  # noqa: PTH123 (every process would import pathlib)
        _page = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time, _time_ns = time.time, time.time_ns

    def _offset() -> float:
        offset: float = struct.unpack("d", _page[:8])[0]
        return offset

    def _jumped_time() -> float:
        return _time() + _offset()

    def _jumped_time_ns() -> int:
        return _time_ns() + int(_offset() * 1e9)

    class _Jumped(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(_jumped_time(), tz)

    _Jumped.__name__ = _Jumped.__qualname__ = "datetime"
    time.time, time.time_ns = _jumped_time, _jumped_time_ns
    datetime.datetime = _Jumped  # type: ignore[misc]

if "scaler.extensions.data_plane.host" in sys.orig_argv and "CHAOS_STORES" in os.environ:
    from scaler.protocol.messages import StoreDetails

    _init = StoreDetails.__init__

    def _proxied(self: StoreDetails, address: str, *others: Any) -> None:
        host, _, port = address.rpartition(":")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as conductor:
            conductor.connect(os.environ["CHAOS_STORES"])
            conductor.send(port.encode())
            _init(self, f"{host}:{conductor.recv(16).decode()}", *others)

    StoreDetails.__init__ = _proxied  # type: ignore[assignment, method-assign]

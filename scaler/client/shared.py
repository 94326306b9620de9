"""The clients that a process shares among calls which have none of their own, such as those of other libraries."""

from __future__ import annotations

import os
import threading

from scaler.client.client import Client
from scaler.client.connect import is_inside_task

_clients: dict[tuple[int, str | None], Client] = {}
"""By process and address: a forked child makes its own."""
_lock = threading.Lock()


def shared_client(address: str | None = None) -> Client:
    """Return this process's client of a cluster, made at the first call. Raises what `Client` raises."""
    if address is None and is_inside_task():
        return Client()  # those of a processor share their connection
    key = os.getpid(), address
    with _lock:
        client = _clients.get(key)
        if client is None or client._futures.closed is not None:
            client = _clients[key] = Client(address)
        return client

"""The one ZeroMQ context of this process: it lives as long as a listener or a connector does."""

from __future__ import annotations

import os
import threading

import zmq

_lock = threading.Lock()
_context: zmq.Context[zmq.Socket[bytes]] | None = None
_users = 0
_pid = 0
_left_behind: list[zmq.Context[zmq.Socket[bytes]]] = []
"""Contexts of the processes that this one was forked from: their threads are not here, so they must not be touched."""


def acquire(io_threads: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    """Return the context; whoever takes it must `release` it after closing its sockets.

    io_threads holds when this call makes the context, so the first user in a process decides.
    """
    global _context, _users, _pid  # noqa: PLW0603 (there is one context in a process)
    with _lock:
        if _context is not None and _pid != os.getpid():
            _left_behind.append(_context)
            _context, _users = None, 0
        if _context is None:
            _context, _pid = zmq.Context(io_threads=io_threads), os.getpid()
        _users += 1
        return _context


def release(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Give the context back. The last one waits until its closed sockets have delivered, within their linger time."""
    global _context, _users  # noqa: PLW0603
    with _lock:
        if context is not _context or _pid != os.getpid():
            return
        _users -= 1
        if _users:
            return
        _context = None
    context.term()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    # Another thread of the parent may have held it.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

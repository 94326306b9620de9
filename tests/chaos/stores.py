"""The stores of hosts in a chaos run, each behind its own proxy.

A starting store requests its proxy (`site/sitecustomize.py`), and sends the scheduler the proxy's address. Other stores
and the object storage then reach it through the proxy, over TCP, as from another host. Its own workers do not.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from tests.chaos.proxy import Proxy

_CREDENTIALS = struct.Struct("=iii")


class Stores:
    """Gives each store a proxy until `close`. path: the socket on which stores request one."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        self._known: list[tuple[psutil.Process, Proxy]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="stores", daemon=True)
        self._thread.start()

    def living(self) -> list[tuple[psutil.Process, Proxy]]:
        """Return the running stores with their proxies, oldest first. Closes the proxies of all other stores."""
        living = []
        for process, proxy in list(self._known):
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    living.append((process, proxy))
                    continue
            self._known.remove((process, proxy))
            proxy.close()
        return living

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for _, proxy in self._known:
            proxy.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError, ValueError, psutil.NoSuchProcess):
                    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                    process = psutil.Process(_CREDENTIALS.unpack(credentials)[0])
                    proxy = Proxy(int(connection.recv(16)), self._seed + process.pid)
                    self._known.append((process, proxy))
                    connection.send(str(proxy.port).encode())

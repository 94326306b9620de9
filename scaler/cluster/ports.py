"""Free addresses on this machine, kept free until their servers take them."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"
MAX_ATTEMPTS = 100


class ReservedPorts:
    """Free TCP ports in a row on the loopback interface, that nobody else is given before servers listen on them.

    A reserving socket is bound but does not listen. The system hands its port to no one who asks for any port, yet lets
    a server bind it by number, because both sides allow the reuse of addresses (as every ZeroMQ listener does).
    """

    def __init__(self, count: int) -> None:
        """Reserve ports. Raises OSError when no row of so many can be found."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self._sockets: list[socket.socket] = []
            try:
                self.first = self._reserve(0)
                for offset in range(1, count):
                    self._reserve(self.first + offset)
                return
            except (OSError, OverflowError):
                self.release()
                if attempt == MAX_ATTEMPTS:
                    raise

    def _reserve(self, port: int) -> int:
        with contextlib.ExitStack() as undo:
            reserving = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            reserving.bind((LOOPBACK, port))  # before it allows reuse: what somebody else has reserved is not free
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            undo.pop_all()
        self._sockets.append(reserving)
        found: int = reserving.getsockname()[1]
        return found

    def address(self, index: int = 0) -> str:
        """Return the address of the port with this place in the row."""
        return f"tcp://{LOOPBACK}:{self.first + index}"

    def release(self) -> None:
        """Let go of the ports: their servers have them, or nobody will."""
        for reserving in self._sockets:
            reserving.close()
        self._sockets = []

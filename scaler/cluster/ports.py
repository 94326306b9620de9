"""Free ports, reserved until servers listen on them."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"
MAX_ATTEMPTS = 100
PORTS_OF_A_SCHEDULER = 3  # for the scheduler, the object storage, and the monitors


class ReservedPorts:
    """Consecutive free TCP ports on loopback, starting at `first`, reserved until servers listen on them. A reserving
    socket is bound but does not listen. A server can bind its port because both allow address reuse."""

    def __init__(self, count: int) -> None:
        """Raises OSError without enough consecutive free ports."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self.first, self._sockets = 0, list[socket.socket]()
            try:
                for offset in range(count):
                    reserving = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                    self._sockets.append(reserving)
                    # Bind before allowing reuse, so that a port reserved elsewhere is not taken.
                    reserving.bind((LOOPBACK, self.first + offset if offset else 0))
                    reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    self.first = self._sockets[0].getsockname()[1]
                return
            except (OSError, OverflowError):
                self.release()
                if attempt == MAX_ATTEMPTS:
                    raise

    def address(self, index: int = 0) -> str:
        return f"tcp://{LOOPBACK}:{self.first + index}"

    def release(self) -> None:
        for reserving in self._sockets:
            reserving.close()
        self._sockets = []

"""A processor's results on their way to its agent, in batches."""

from __future__ import annotations

import array
import os
import socket

from scaler.worker.frames import LARGE_DATAGRAM_BYTES, ResultRow, ToAgent, pack_large, pack_results
from scaler.worker.page import PageWriter


class ResultWriter:
    """Collects results in the shared page, and sends them. Belongs to the processor's main thread."""

    __slots__ = ("_page", "_socket", "oldest_ns")

    def __init__(self, page: PageWriter, results: socket.socket) -> None:
        self._page = page
        self._socket = results
        self.oldest_ns = 0
        """When the oldest result that is not sent was added; 0: there is none."""

    def add(self, row: ResultRow, payload: bytes, now_ns: int) -> None:
        """Add the result of the task that has just run."""
        page = self._page
        size = len(payload)
        if not page.fits(size):
            self.flush()
            if not page.fits(size):
                self._send_alone(row, payload)
                return
        page.append(row, payload)
        if not self.oldest_ns:
            self.oldest_ns = now_ns

    def flush(self) -> None:
        """Send what was added."""
        if self.oldest_ns:
            self._socket.sendmsg(self._page.datagram())
            self._page.sent()
            self.oldest_ns = 0

    def _send_alone(self, row: ResultRow, payload: bytes) -> None:
        page = self._page
        send_datagram(self._socket, pack_results(page.batch, [row], [payload]), ToAgent.LARGE)
        page.next_batch()
        page.finish()


def send_datagram(end: socket.socket, datagram: bytes, large: int, flags: int = 0) -> None:
    """Send a datagram, as a memory file behind a datagram of kind `large` when it is too big to go as it is.

    Raises BlockingIOError when flags say not to wait and there is no room.
    """
    if len(datagram) <= LARGE_DATAGRAM_BYTES:
        end.send(datagram, flags)
        return
    descriptor = os.memfd_create("scaler-datagram", os.MFD_CLOEXEC)
    try:
        view = memoryview(datagram)
        while view:
            view = view[os.write(descriptor, view) :]
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        end.sendmsg([pack_large(large, len(datagram))], attached, flags)
    finally:
        os.close(descriptor)

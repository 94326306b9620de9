"""The status page that a processor shares with its agent: what it runs since when, and results that are not sent yet.

Words (u64, little endian): tasks begun since birth, when the last of them began (monotonic nanoseconds), tasks
finished, number of the current batch of results, rows in it. Behind them lie the rows and the payloads of the current
batch. Only the processor writes; each word is written whole, and last among what it announces.

So the agent knows at any time what runs, and can take results that wait behind a task that turned out long, or that
a dead processor left.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket

from scaler.worker.frames import (
    LARGE_DATAGRAM_BYTES,
    RESULT,
    RESULTS,
    ResultRow,
    Results,
    Snapshot,
    ToAgent,
    pack_large,
    pack_results,
    results_of,
)

MAX_ROWS = 256
MAX_PAYLOAD_BYTES = 48 * 1024
_WORDS_BYTES = 64
_PAYLOADS_AT = _WORDS_BYTES + MAX_ROWS * RESULT.size
PAGE_BYTES = _PAYLOADS_AT + MAX_PAYLOAD_BYTES

_BEGUN, _BEGUN_AT, _FINISHED, _BATCH, _ROWS = range(5)


def make_page() -> int:
    """Return the descriptor of a new page, for both sides to map."""
    descriptor = os.memfd_create("scaler-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE_BYTES)
    # User code shares this page: were it cut short, the agent would crash at its next read.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


class PageReader:
    """The agent's side."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)
        self._view = memoryview(self._map)
        self._words = self._view[:_WORDS_BYTES].cast("Q")

    def snapshot(self) -> Snapshot:
        words = self._words
        return Snapshot(words[_BEGUN], words[_BEGUN_AT] / 1e9, words[_FINISHED])

    def unsent(self) -> Results | None:
        """Return a copy of the results that are not sent yet; None when there are none, or while they are being sent.

        Raises ProtocolError when the page makes no sense.
        """
        words = self._words
        batch = words[_BATCH]
        rows = min(words[_ROWS], MAX_ROWS)
        if not rows:
            return None
        packed = bytes(self._view[_WORDS_BYTES : _WORDS_BYTES + rows * RESULT.size])
        payload_bytes = sum(row[7] for row in RESULT.iter_unpack(packed))
        payloads = bytes(self._view[_PAYLOADS_AT : _PAYLOADS_AT + min(payload_bytes, MAX_PAYLOAD_BYTES)])
        if words[_BATCH] != batch or words[_ROWS] < rows:
            return None
        return results_of(batch, memoryview(packed), memoryview(payloads))

    def close(self) -> None:
        self._words.release()
        self._view.release()
        self._map.close()


class PageWriter:
    """The processor's side. Writes are ordered so that what a word announces is there before the word is."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, PAGE_BYTES)
        self._view = memoryview(self._map)
        self._words = self._view[:_WORDS_BYTES].cast("Q")
        self._begun = 0
        self._finished = 0
        self._rows = 0
        self._at = 0
        self.batch = 0

    @property
    def rows(self) -> int:
        """Results that wait to be sent."""
        return self._rows

    def begin(self, now_ns: int) -> None:
        self._words[_BEGUN_AT] = now_ns
        self._begun += 1
        self._words[_BEGUN] = self._begun

    def finish(self) -> None:
        """Count the running task as finished, its result having left by another way than this page."""
        self._finished += 1
        self._words[_FINISHED] = self._finished

    def append(self, row: ResultRow, payload: bytes) -> bool:
        """Add the running task's result to the current batch. Returns False if it does not fit."""
        rows = self._rows
        at = self._at
        end = at + len(payload)
        if rows == MAX_ROWS or end > MAX_PAYLOAD_BYTES:
            return False
        RESULT.pack_into(self._view, _WORDS_BYTES + rows * RESULT.size, *row)
        self._view[_PAYLOADS_AT + at : _PAYLOADS_AT + end] = payload
        self._at = end
        self._rows = rows = rows + 1
        self._finished += 1
        words = self._words
        words[_ROWS] = rows
        words[_FINISHED] = self._finished
        return True

    def datagram(self) -> list[bytes | memoryview]:
        """Return the pieces of the RESULTS datagram of the current batch."""
        return [
            RESULTS.pack(ToAgent.RESULTS, self._rows, self.batch, self._at),
            self._view[_WORDS_BYTES : _WORDS_BYTES + self._rows * RESULT.size],
            self._view[_PAYLOADS_AT : _PAYLOADS_AT + self._at],
        ]

    def next_batch(self) -> None:
        """Begin the next batch: the current one, or a result of its own, has left."""
        words = self._words
        if self._rows:
            words[_ROWS] = 0
            self._rows = 0
            self._at = 0
        self.batch = (self.batch + 1) & 0xFFFFFFFF
        words[_BATCH] = self.batch


class ResultWriter:
    """Collects results in the shared page, and sends them. Belongs to the processor's main thread."""

    def __init__(self, page: PageWriter, results: socket.socket) -> None:
        self._page = page
        self._socket = results
        self.oldest_ns = 0
        """When the oldest result that is not sent was added; 0: there is none."""

    def add(self, row: ResultRow, payload: bytes, now_ns: int) -> None:
        """Add the result of the task that has just run."""
        if not self._page.append(row, payload):
            self.flush()
            if not self._page.append(row, payload):
                self._send_alone(row, payload)
                return
        if not self.oldest_ns:
            self.oldest_ns = now_ns

    def flush(self) -> None:
        """Send what was added."""
        if self.oldest_ns:
            self._socket.sendmsg(self._page.datagram())
            self._page.next_batch()
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

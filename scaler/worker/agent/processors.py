"""The core's hands: processors as sockets, shared pages and process descriptors."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from scaler.errors import ProtocolError
from scaler.worker.fork_server import ForkServer
from scaler.worker.frames import (
    GRANT,
    LARGE_DATAGRAM_BYTES,
    MAX_ATTACHED_FDS,
    TASK,
    Descriptors,
    Results,
    ToAgent,
    ToProcessor,
    unpack_large,
    unpack_results,
)
from scaler.worker.page import PageReader, Snapshot, make_page, send_datagram

SOCKET_BUFFER_BYTES = 1024 * 1024
"""What a task or result socket holds; more waits in the agent's queue, or makes the processor wait."""
MAX_READ_PER_TURN = 64
"""Datagrams of one processor in one turn of the loop: others get their turn too."""
LAST_WORDS_BYTES = 4096
"""Of what the interpreter wrote while it crashed, at most so much is shown."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_ATTACHED_FDS * array.array("i").itemsize)


@dataclass(frozen=True, slots=True)
class Control:
    """Anything a processor says but results. descriptors belong to the reader."""

    kind: ToAgent
    datagram: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Nonsense:
    """A processor said something that makes no sense."""

    text: str


Said = Results | Control | Nonsense


class _Ends:
    """What the agent holds of one processor. `unread` is its own reading end of what it wrote to the processor."""

    __slots__ = ("deferred", "definitions", "is_doomed", "page", "pid", "pidfd", "tasks", "unread", "words")

    def __init__(self, definitions: socket.socket) -> None:
        self.tasks, self.unread = _pair()
        self.definitions = definitions
        self.page = make_page()
        self.words = os.memfd_create("scaler-last-words", os.MFD_CLOEXEC)
        self.pid = 0
        self.pidfd = -1
        self.is_doomed = False
        self.deferred: list[Said] = []


class Processors:
    """See `worker.hands.Hands` for what each verb means."""

    def __init__(
        self, fork_server: ForkServer, loop: asyncio.AbstractEventLoop, on_readable: Callable[[int], None]
    ) -> None:
        """on_readable: called with a processor's number when `read` will have something."""
        self._fork_server = fork_server
        self._loop = loop
        self._on_readable = on_readable
        self._ends: dict[int, _Ends] = {}
        self._results: dict[int, socket.socket] = {}
        self._pages: dict[int, PageReader] = {}

    # -- Hands

    def spawn(self, number: int) -> None:
        definitions, their_definitions = _pair()
        ends = self._ends[number] = _Ends(definitions)
        ours, theirs = _pair()
        self._results[number] = ours
        self._pages[number] = PageReader(ends.page)
        with contextlib.suppress(OSError):  # the fork server is gone, which ends the agent as soon as it hears of it
            descriptors = Descriptors(
                ends.unread.fileno(), their_definitions.fileno(), theirs.fileno(), ends.page, ends.words
            )
            self._fork_server.spawn(number, descriptors)
        theirs.close()
        their_definitions.close()
        os.close(ends.page)
        self._loop.add_reader(ours, self._on_readable, number)

    def feed(self, number: int, task: bytes) -> bool:
        return _send(self._ends[number].tasks, task)

    def tell(self, number: int, datagram: bytes) -> bool:
        return _send(self._ends[number].definitions, datagram)

    def take_back(self, number: int) -> list[bytes]:
        ends = self._ends[number]
        taken: list[bytes] = []
        is_ending = False
        while True:
            try:
                datagram, attached, _, _ = ends.unread.recvmsg(
                    LARGE_DATAGRAM_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                break
            if attached:
                datagram = _read_file(datagram, _descriptors(attached))
            if datagram[0] == ToProcessor.TASK:
                taken.append(TASK.unpack_from(datagram)[3])
            else:
                is_ending = True
        if is_ending:
            self.end(number)
        return taken

    def collect(self, number: int) -> list[tuple[Results, bool]]:
        # The page first: batches that were sent before this look at it are in the socket now, so their order is known.
        unsent = self._pages[number].unsent()
        deferred = self._ends[number].deferred
        found: list[tuple[Results, bool]] = []
        for said in self._drain(number, None):
            if isinstance(said, Results):
                found.append((said, True))
            else:
                if not deferred:
                    self._loop.call_soon(self._on_readable, number)
                deferred.append(said)
        if unsent is not None:
            batches = [results.batch for results, _ in found]
            place = batches.index(unsent.batch) if unsent.batch in batches else len(found)
            found.insert(place, (unsent, False))
        return found

    def snapshot(self, number: int) -> Snapshot:
        return self._pages[number].snapshot()

    def kill(self, number: int) -> None:
        ends = self._ends[number]
        ends.is_doomed = True
        self._signal(ends, signal.SIGKILL)
        self._fork_server.wake()  # who reports the exit

    def end(self, number: int) -> None:
        _send(self._ends[number].tasks, bytes((ToProcessor.END,)))

    def grant(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._results[number].send(GRANT, socket.MSG_DONTWAIT)

    def pause(self, number: int, paused: bool) -> None:
        self._signal(self._ends[number], signal.SIGSTOP if paused else signal.SIGCONT)

    def release(self, number: int) -> None:
        ends = self._ends.pop(number)
        results = self._results.pop(number)
        self._loop.remove_reader(results)
        for said in ends.deferred:
            if isinstance(said, Control):
                for descriptor in said.descriptors:
                    os.close(descriptor)
        for end in (results, ends.tasks, ends.unread, ends.definitions):
            end.close()
        self._pages.pop(number).close()
        os.close(ends.words)
        if ends.pidfd >= 0:
            os.close(ends.pidfd)

    # -- for the shell

    def spawned(self, number: int, pid: int, pidfd: int) -> None:
        """Note the process that a processor is; from now on it can be signalled."""
        ends = self._ends[number]
        ends.pid = pid
        ends.pidfd = pidfd
        if ends.is_doomed:
            self._signal(ends, signal.SIGKILL)

    def read(self, number: int) -> list[Said]:
        """Return what a processor has said, up to a limit per turn."""
        ends = self._ends.get(number)
        if ends is None:
            return []
        deferred, ends.deferred = ends.deferred, []
        return deferred + self._drain(number, MAX_READ_PER_TURN)

    def last_words(self, number: int) -> str:
        """Return what the interpreter wrote while it crashed, if it did."""
        ends = self._ends.get(number)
        if ends is None:
            return ""
        return os.pread(ends.words, LAST_WORDS_BYTES, 0).decode("utf-8", "replace").strip()

    def pids(self) -> dict[int, int]:
        """Return the pid of every processor that has one, by number."""
        return {number: ends.pid for number, ends in self._ends.items() if ends.pid}

    def close(self) -> None:
        """End all processors, and free everything."""
        for ends in self._ends.values():
            self._signal(ends, signal.SIGKILL)
            if ends.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ends.pid, signal.SIGKILL)  # what its tasks have started, should the fork server be gone
        for number in list(self._ends):
            self.release(number)

    def _drain(self, number: int, limit: int | None) -> list[Said]:
        end = self._results[number]
        found: list[Said] = []
        while limit is None or len(found) < limit:
            try:
                datagram, attached, _, _ = end.recvmsg(LARGE_DATAGRAM_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                break
            if not datagram:
                # Its process is ending, which the fork server will report; until then this would be readable for ever.
                self._loop.remove_reader(end)
                self._fork_server.wake()
                break
            descriptors = _descriptors(attached) if attached else []
            try:
                if datagram[0] == ToAgent.LARGE:
                    datagram = _read_file(datagram, descriptors)
                    descriptors = []
                if datagram[0] == ToAgent.RESULTS:
                    found.append(unpack_results(datagram))
                    _close_all(descriptors)
                else:
                    found.append(Control(ToAgent(datagram[0]), datagram, tuple(descriptors)))
            except (ProtocolError, ValueError) as error:
                _close_all(descriptors)
                found.append(Nonsense(f"it sent what is no message ({error})"))
        return found

    @staticmethod
    def _signal(ends: _Ends, number: signal.Signals) -> None:
        if ends.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ends.pidfd, number)


def _send(end: socket.socket, datagram: bytes) -> bool:
    try:
        send_datagram(end, datagram, ToProcessor.LARGE, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True  # the processor is gone, which will be reported
    return True


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return pair


def _descriptors(attached: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for _, _, data in attached:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()


def _read_file(datagram: bytes, descriptors: list[int]) -> bytes:
    """Read the memory file of a LARGE datagram, and close it. Raises ProtocolError."""
    try:
        if len(descriptors) != 1:
            raise ProtocolError("a LARGE datagram comes with one descriptor")
        size = unpack_large(datagram)
        try:
            # Not mapped: its maker could cut it short meanwhile, which would end this process.
            whole = os.pread(descriptors[0], size, 0)
        except OSError as error:
            raise ProtocolError(f"a memory file of {size} bytes cannot be read: {error}") from error
        if len(whole) != size:
            raise ProtocolError(f"a memory file has {len(whole)} bytes and not {size}")
        return whole
    finally:
        _close_all(descriptors)

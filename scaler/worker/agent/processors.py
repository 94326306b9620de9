"""Processors as sockets, status pages and process descriptors: performs the commands of `pool.py`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence

from scaler.errors import ProtocolError, ScalerError
from scaler.ids import ID_BYTES, PEER_ID_BYTES
from scaler.processes import describe_exit
from scaler.protocol.messages import Relay, RelayClosed
from scaler.worker.agent.core import TaskExecutor
from scaler.worker.agent.events import (
    AgentInput,
    DispatchRefused,
    DispatchTasks,
    InvalidDatagramReceived,
    NestedTrafficSeen,
    ProcessorCommand,
    ProcessorExited,
    ProcessorSignalled,
    ProcessorVerb,
    ResultsReceived,
    TasksReclaimed,
)
from scaler.worker.agent.output import OutputPipes, PrintBuffer
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.relays import Relays
from scaler.worker.agent.shell import Agent
from scaler.worker.fork_server import ForkServer, Spawned
from scaler.worker.frames import (
    GRANT,
    LARGE_DATAGRAM_BYTES,
    TASK,
    Descriptors,
    Results,
    Snapshot,
    ToAgent,
    ToProcessor,
    unpack_id,
    unpack_printed,
    unpack_results,
)
from scaler.worker.page import ANCILLARY_BYTES, PageReader, descriptors_of, make_page, read_file, send_datagram

SOCKET_BUFFER_BYTES = 1024 * 1024
"""What a task or result socket holds; more waits in the agent's queue, or makes the processor wait."""
MAX_READ_PER_WAKEUP = 64
"""Datagrams of one processor in one iteration of the loop, so that others get their turn."""
CRASH_TEXT_BYTES = 4096
"""Of what the interpreter wrote while it crashed, at most this much is shown."""
_ATTACHED = {ToAgent.CHANNEL: 1, ToAgent.OUTPUT: 2}
"""How many descriptors come with a datagram; none with all others."""


class _Processor:
    """The agent's ends of one processor. `unread` is its own reading end of what it wrote to the processor."""

    def __init__(self) -> None:
        self.tasks, self.unread = _socket_pair()
        self.definitions, self.their_definitions = _socket_pair()
        self.results, self.their_results = _socket_pair()
        page = make_page()
        crash_text = os.memfd_create("scaler-crash-text", os.MFD_CLOEXEC)
        self.descriptors = Descriptors(
            self.unread.fileno(), self.their_definitions.fileno(), self.their_results.fileno(), page, crash_text
        )
        self.page = PageReader(page)
        self.pid = 0
        self.pidfd = -1
        self.is_killed = False
        self.unannounced: list[bytes] = []
        """Announcements that the socket had no room for."""

    def spawned(self) -> None:
        """The processor has its own copies: close what is its alone."""
        self.their_results.close()
        self.their_definitions.close()
        os.close(self.descriptors.page)

    def signal(self, number: signal.Signals) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def announce(self) -> bool:
        """Send announcements, the oldest first. Returns False when some have to wait."""
        while self.unannounced:
            if not _send(self.definitions, self.unannounced[0]):
                return False
            del self.unannounced[0]
        return True

    def close(self) -> None:
        for end in (self.results, self.tasks, self.unread, self.definitions):
            end.close()
        self.page.close()
        os.close(self.descriptors.crash_text)
        if self.pidfd >= 0:
            os.close(self.pidfd)


class ProcessorBackend:
    """A `AgentBackend`: all processors of an agent, with their nested clients and their output."""

    make_executor: type[TaskExecutor] = ProcessorPool

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self._processors: dict[int, _Processor] = {}
        self._verbs = {
            ProcessorVerb.SPAWN: self._spawn,
            ProcessorVerb.RECLAIM: self._reclaim,
            ProcessorVerb.KILL: self._kill,
            ProcessorVerb.END: self._end,
            ProcessorVerb.GRANT: self._grant,
            ProcessorVerb.PAUSE: lambda number: self._processors[number].signal(signal.SIGSTOP),
            ProcessorVerb.CONTINUE: lambda number: self._processors[number].signal(signal.SIGCONT),
            ProcessorVerb.RELEASE: self._release,
        }

    def start(self, agent: Agent) -> None:
        """Begin; the first processors are made while the agent connects."""
        self._agent = agent
        self._loop = asyncio.get_running_loop()
        self._relays = Relays(self._loop, agent)
        self._pipes = OutputPipes(self._loop, agent.send_output)
        self._prints = PrintBuffer(self._loop, agent.send_output)
        self._loop.add_reader(self._fork_server, self._on_fork_server)
        agent.connect()

    def perform(self, command: ProcessorCommand) -> AgentInput | None:
        """Perform a command; return its answer, if it has one. None of them fails because a processor is gone."""
        if isinstance(command, DispatchTasks):
            return self._dispatch(command)
        return self._verbs[command.verb](command.number)

    def session_opened(self) -> None:
        self._relays.close_all()

    def relay(self, message: Relay) -> None:
        number = self._relays.deliver(message.client, message.body)
        if number is None:
            self._agent.send(RelayClosed(message.client))
        else:
            self._agent.take_soon([NestedTrafficSeen(number)])

    def flush_output(self, tasks: Sequence[bytes]) -> None:
        if self._prints.gathered:
            self._prints.flush(tasks)

    def snapshots(self) -> Mapping[int, Snapshot]:
        return {number: each.page.snapshot() for number, each in self._processors.items()}

    def pids(self) -> Mapping[int, int] | None:
        return {number: each.pid for number, each in self._processors.items() if each.pid}

    async def close(self) -> None:
        """End all processors, and free everything."""
        self._prints.close()
        self._loop.remove_reader(self._fork_server)
        for each in self._processors.values():
            each.signal(signal.SIGKILL)
            if each.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(each.pid, signal.SIGKILL)  # what its tasks have started, should the fork server be gone
        for number in list(self._processors):
            self._release(number)
        self._fork_server.close()
        self._relays.close_all()
        self._pipes.close()

    # -- commands --------------------------------------------------------------------------------------------------

    def _dispatch(self, command: DispatchTasks) -> AgentInput | None:
        number, announcements, tasks = command
        processor = self._processors[number]
        if announcements or processor.unannounced:
            processor.unannounced += announcements
            if not processor.announce():
                return DispatchRefused(number, len(tasks)) if tasks else None
        for count, task in enumerate(tasks):
            if not _send(processor.tasks, task):
                return DispatchRefused(number, len(tasks) - count)
        return None

    def _spawn(self, number: int) -> None:
        processor = self._processors[number] = _Processor()
        with contextlib.suppress(OSError):  # the fork server is gone, which ends the agent as soon as it is seen
            self._fork_server.spawn(number, processor.descriptors)
        processor.spawned()
        self._loop.add_reader(processor.results, self._on_readable, number)

    def _reclaim(self, number: int) -> TasksReclaimed:
        unread = self._take_unread(number)
        # The page first: batches that were sent before it is read are in the socket now, so their order is known.
        page = self._processors[number].page
        error = ""
        try:
            unsent = page.unsent()
        except ProtocolError as problem:
            unsent, error = None, str(problem)
        results: list[tuple[Results, bool]] = []
        others: list[AgentInput] = []
        for item in self._read(number, None):
            if isinstance(item, ResultsReceived):
                results.append((item.results, True))
            else:
                others.append(item)
        if others:
            self._agent.take_soon(others)
        if unsent is not None:
            batches = [each.batch for each, _ in results]
            results.insert(batches.index(unsent.batch) if unsent.batch in batches else len(results), (unsent, False))
        return TasksReclaimed(number, unread, results, page.snapshot(), error)

    def _take_unread(self, number: int) -> list[bytes]:
        unread = self._processors[number].unread
        taken: list[bytes] = []
        is_ending = False
        while True:
            try:
                datagram, attached, _, _ = unread.recvmsg(LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if attached:
                datagram = read_file(datagram, descriptors_of(attached))
            if datagram[0] == ToProcessor.TASK:
                taken.append(TASK.unpack_from(datagram)[3])
            else:
                is_ending = True
        if is_ending:
            self._end(number)
        return taken

    def _kill(self, number: int) -> None:
        processor = self._processors[number]
        processor.is_killed = True
        processor.signal(signal.SIGKILL)
        self._fork_server.wake()  # it reports the exit

    def _end(self, number: int) -> None:
        _send(self._processors[number].tasks, bytes((ToProcessor.END,)))

    def _grant(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._processors[number].results.send(GRANT, socket.MSG_DONTWAIT)

    def _release(self, number: int) -> None:
        processor = self._processors.pop(number)
        self._loop.remove_reader(processor.results)
        processor.close()

    # -- what processors do ----------------------------------------------------------------------------------------

    def _on_fork_server(self) -> None:
        reports = self._fork_server.reports()
        if reports is None:
            self._agent.fail(ScalerError("the process that makes processors is gone"))
            return
        inputs: list[AgentInput] = []
        for report in reports:
            number = report.number
            processor = self._processors[number]
            if isinstance(report, Spawned):
                processor.pid, processor.pidfd = report.pid, report.pidfd
                if processor.is_killed:
                    processor.signal(signal.SIGKILL)
                continue
            inputs += self._read(number, None)
            inputs.append(self._reclaim(number))
            text = describe_exit(report.returncode)
            crash = os.pread(processor.descriptors.crash_text, CRASH_TEXT_BYTES, 0).decode("utf-8", "replace").strip()
            inputs.append(ProcessorExited(number, f"{text}\n{crash}" if crash else text))
        self._agent.take(inputs)

    def _on_readable(self, number: int) -> None:
        self._agent.take_soon(self._read(number, MAX_READ_PER_WAKEUP))

    def _read(self, number: int, limit: int | None) -> list[AgentInput]:
        """Read what a processor has sent: return what is for the core, and pass on the rest."""
        end = self._processors[number].results
        found: list[AgentInput] = []
        while limit is None or len(found) < limit:
            try:
                datagram, attached, _, _ = end.recvmsg(LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                break
            if not datagram:
                # Its process is ending, which the fork server will report; until then this would be readable for ever.
                self._loop.remove_reader(end)
                self._fork_server.wake()
                break
            descriptors = descriptors_of(attached) if attached else []
            try:
                if datagram[0] == ToAgent.LARGE:
                    datagram = read_file(datagram, descriptors)
                if datagram[0] == ToAgent.RESULTS:
                    results = unpack_results(datagram)
                    if self._pipes.pipes:
                        for row in results.rows:
                            self._pipes.drain(row[0])
                    found.append(ResultsReceived(number, results))
                else:
                    self._take_datagram(number, datagram, descriptors, found)
            except (ProtocolError, ValueError) as error:
                found.append(InvalidDatagramReceived(number, str(error)))
            for descriptor in descriptors:
                os.close(descriptor)
        return found

    def _take_datagram(self, number: int, datagram: bytes, descriptors: list[int], found: list[AgentInput]) -> None:
        """Take in a datagram that holds no results. Takes descriptors that are used out of the list."""
        kind = ToAgent(datagram[0])
        if len(descriptors) != _ATTACHED.get(kind, 0):
            raise ProtocolError(f"a {kind.name} datagram came with {len(descriptors)} descriptors")
        match kind:
            case ToAgent.READY | ToAgent.FAILED | ToAgent.BLOCKED | ToAgent.UNBLOCKED:
                found.append(ProcessorSignalled(number, kind, datagram[1:].decode("utf-8", "replace")))
            case ToAgent.CHANNEL:
                self._relays.open(unpack_id(datagram, PEER_ID_BYTES), number, descriptors.pop())
            case ToAgent.OUTPUT:
                task = unpack_id(datagram, ID_BYTES)
                self._pipes.open(task, tuple(descriptors))
                descriptors.clear()
            case ToAgent.PRINTED:
                self._prints.add(*unpack_printed(datagram))
            case _:
                raise ProtocolError("a memory file holds another one")


def _send(end: socket.socket, datagram: bytes) -> bool:
    try:
        send_datagram(end, datagram, ToProcessor.LARGE, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True  # the processor is gone, which will be reported
    return True


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return pair

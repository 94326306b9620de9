"""The agent of a host: drives processors through sockets, status pages, and process descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import resource
import select
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scaler.config.worker import WorkerConfig
from scaler.errors import ProtocolError, ScalerError
from scaler.grammar import counted
from scaler.plugins import part_of
from scaler.processes import describe_exit, send_signal
from scaler.protocol.messages import Output
from scaler.worker import frames
from scaler.worker.agent import events as e
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent, MakeConnector
from scaler.worker.fork_server import ForkServer, exec_fork_server
from scaler.worker.processor.capture import CHUNK_BYTES, MAX_OUTPUT_BYTES, OMITTED_TEXT

SOCKET_BUFFER_BYTES = 1024 * 1024
"""Buffer of a socket to or from a processor. Further data waits in the agent or blocks the processor."""
MAX_READ_PER_WAKEUP = 64
"""Maximum datagrams read from one processor per iteration of the event loop, for fairness."""
CRASH_TEXT_BYTES = 16 * 1024
KILL_SECONDS = 1.0
"""Seconds that an exiting agent waits for its processors to die before it accounts for their tasks."""
MAX_PIPES = 256
"""Maximum number of open pipes. Child processes may hold pipes open for a long time, so the oldest are closed."""
_READS_PER_WAKEUP = 16
DESCRIPTORS_PER_TASK = 8
"""File descriptors per suspended task: its processor's, its channel's, and a share of all other descriptors."""
_log = logging.getLogger(__name__)
_ATTACHED = {frames.ToAgent.CHANNEL: 1, frames.ToAgent.OUTPUT: 2}
"""Number of descriptors attached to a datagram; 0 for other kinds."""


@dataclass(slots=True)
class _Pipe:
    task: bytes
    is_stderr: bool
    passed: int = 0


class OutputPipes:
    """Forwards task output from pipes to the scheduler, for tasks with `stream_output`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Output], None]) -> None:
        self._loop = loop
        self._send = send
        self.pipes: dict[int, _Pipe] = {}

    def open(self, task: bytes, descriptors: tuple[int, ...]) -> None:
        """Take ownership of a task's stdout and stderr pipes."""
        for is_stderr, descriptor in enumerate(descriptors):
            if len(self.pipes) >= MAX_PIPES:
                self._close(next(iter(self.pipes)))
            os.set_blocking(descriptor, False)
            self.pipes[descriptor] = _Pipe(task, bool(is_stderr))
            self._loop.add_reader(descriptor, self._read, descriptor)

    def drain(self, task: bytes) -> None:
        for descriptor, pipe in list(self.pipes.items()):
            if pipe.task == task:
                self._read(descriptor)

    def close(self) -> None:
        for descriptor in list(self.pipes):
            self._close(descriptor)

    def _read(self, descriptor: int) -> None:
        pipe = self.pipes[descriptor]
        for _ in range(_READS_PER_WAKEUP):
            try:
                text = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not text:
                self._close(descriptor)
                return
            left = MAX_OUTPUT_BYTES - pipe.passed
            if left >= 0:  # 0: the limit was reached exactly; negative: the text was cut and marked
                pipe.passed += len(text)
                text = text if len(text) <= left else text[:left] + OMITTED_TEXT
                self._send(Output(pipe.task, pipe.is_stderr, text))

    def _close(self, descriptor: int) -> None:
        del self.pipes[descriptor]
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


class _Processor:
    """The agent's ends of one processor. `unread` is a second reading end of the processor's task socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fork_server: ForkServer, number: int) -> None:
        """Raises OSError if this process is out of file descriptors."""
        self.fork_server = fork_server
        # The processor gets copies of its ends from the fork server, so this process closes them here.
        with contextlib.ExitStack() as own, contextlib.ExitStack() as theirs:
            tasks, self.unread = _socket_pair(own, own)
            definitions, their_definitions = _socket_pair(own, theirs)
            self.results, their_results = _socket_pair(own, theirs)
            self.tasks = frames.Sender(loop, tasks)
            self.definitions = frames.Sender(loop, definitions)
            self.crash_text = os.memfd_create("scaler-crash-text", os.MFD_CLOEXEC)
            own.callback(os.close, self.crash_text)
            page = frames.make_page()
            theirs.callback(os.close, page)
            self.page = frames.PageReader(page)
            self.pid = 0
            self.ended = -1
            self.is_killed = False
            ends = self.unread.fileno(), their_definitions.fileno(), their_results.fileno()
            with contextlib.suppress(OSError):  # the fork server has exited, so the agent ends soon
                fork_server.spawn(number, frames.Descriptors(*ends, page, self.crash_text))
            own.pop_all()

    def signal(self, number: signal.Signals) -> None:
        if self.ended >= 0:
            with contextlib.suppress(ProcessLookupError):
                send_signal(self.pid, self.ended, number)

    def close(self) -> None:
        for end in (self.results, self.tasks, self.unread, self.definitions):
            end.close()
        os.close(self.crash_text)
        if self.ended >= 0:
            os.close(self.ended)


class ProcessorAgent(Agent):
    """An agent whose tasks run in processors of this host. Also handles their nested clients and output."""

    make_executor = ProcessorPool
    has_tasks_here = True

    def __init__(
        self,
        config: WorkerConfig,
        make_connector: MakeConnector,
        fork_server: ForkServer,
        show_degraded: Callable[[str], None] = lambda _text: None,
    ) -> None:
        possible = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_PER_TASK
        if possible < config.max_suspended_tasks:
            _log.warning("max_suspended_tasks is %d: open files are limited (ulimit -n)", possible)
            config = replace(config, max_suspended_tasks=possible)
        super().__init__(config, make_connector, show_degraded)
        self._fork_servers = {b"": fork_server}
        """Fork servers by environment. Servers of dropped environments exit later."""
        self._processors: dict[int, _Processor] = {}
        self.environment_module = ""
        """Module that prepares environments; see `exec_fork_server`. Empty: none."""
        self.on_environment: Callable[[bytes, ForkServer | None], object] = lambda _environment, _server: None
        """Called with the fork server that prepares an environment, and with None when its tasks are accepted again or
        fail."""
        self._pipes = OutputPipes(self._loop, self.send_output)
        for limit in ("memory_limit_bytes", "processor_memory_limit_bytes"):
            if getattr(config, limit):
                part_of("resources", "agent", limit)

    def start(self) -> None:
        self._loop.add_reader(self._fork_servers[b""], self._on_fork_server, b"", self._fork_servers[b""])
        self.connect()
        super().start()

    def _perform(self, command: e.ProcessorCommand) -> None:
        """Perform a command. An exited processor is not an error."""
        number = command.number
        processor = self._processors.get(number)
        if processor is None:  # the processor is new, or could not start
            if isinstance(command, e.ActOnProcessor) and command.verb is e.ProcessorVerb.SPAWN:
                self._spawn(number, command.environment)
            elif isinstance(command, e.UseEnvironment):
                self._use_environment(command.environment, command.definition)
            return
        if isinstance(command, e.DispatchTasks):
            if command.announcements:
                processor.definitions.send(command.announcements)
            if command.tasks:
                processor.tasks.send(command.tasks)
            return
        assert isinstance(command, e.ActOnProcessor), "unexpected command for a processor"
        match command.verb:
            case e.ProcessorVerb.RECLAIM:
                self.take_soon(*self._reclaimed(number))
            case e.ProcessorVerb.KILL:
                processor.is_killed = True
                processor.signal(signal.SIGKILL)
                processor.fork_server.wake()  # the fork server reports the exit
            case e.ProcessorVerb.END | e.ProcessorVerb.TERMINATE as verb:
                with contextlib.suppress(OSError):  # the processor has exited, which the fork server will report
                    processor.tasks.end.shutdown(socket.SHUT_WR)
                if verb is e.ProcessorVerb.TERMINATE:
                    processor.signal(signal.SIGTERM)
            case e.ProcessorVerb.GRANT:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    processor.results.send(frames.GRANT, socket.MSG_DONTWAIT)

    def running_task(self, number: int) -> bytes:
        processor = self._processors.get(number)
        if processor is None or not processor.pid:
            return b""
        return self.executor.statuses({number: processor.page.snapshot()}, 0.0)[number][2]

    def processors(self) -> Mapping[int, tuple[int, frames.PageReader]]:
        return {number: (each.pid, each.page) for number, each in self._processors.items() if each.pid}

    async def _end_tasks(self) -> None:
        for number in list(self._processors):
            self._end_group(number)
            self._release(number)
        for fork_server in self._fork_servers.values():
            self._loop.remove_reader(fork_server)
            fork_server.close()
        self._pipes.close()

    def _end_group(self, number: int) -> None:
        """Kill a processor and the child processes of its tasks, in case its fork server is dead."""
        processor = self._processors[number]
        processor.signal(signal.SIGKILL)
        if processor.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(processor.pid, signal.SIGKILL)

    def _last_inputs(self) -> list[e.AgentInput]:
        waiting = select.poll()
        alive = 0
        for each in self._processors.values():
            each.signal(signal.SIGKILL)
            if each.ended >= 0:
                waiting.register(each.ended, select.POLLIN)
                alive += 1
        deadline = time.monotonic() + KILL_SECONDS
        while alive and (left := deadline - time.monotonic()) > 0:
            for ended, _ in waiting.poll(left * 1000):
                waiting.unregister(ended)
                alive -= 1
        return [item for number in self._processors for item in (*self._read(number), *self._reclaimed(number))]

    def _spawn(self, number: int, environment: bytes) -> None:
        try:
            processor = self._processors[number] = _Processor(self._loop, self._fork_servers[environment], number)
        except KeyError:
            self.take_soon(e.ProcessorReported(number, e.ProcessorEvent.EXITED, e.SERVER_EXITED))
        except OSError as error:
            text = f"its worker cannot create its pipes: {error.strerror}"
            self.take_soon(e.ProcessorReported(number, e.ProcessorEvent.EXITED, text))
        else:
            self._loop.add_reader(processor.results.fileno(), self._on_readable, number)

    def _use_environment(self, environment: bytes, definition: bytes | None) -> None:
        if definition is None:
            if server := self._fork_servers.pop(environment, None):  # the server may have exited in this step
                server.end()
            return
        if environment not in self._fork_servers:
            try:
                server = exec_fork_server(self.environment_module, self.config, definition)
            except OSError as error:
                text = f"the fork server of its environment cannot start: {error.strerror}"
                self._loop.call_soon(self._environment_changed, environment, False, text)
                return
            self._fork_servers[environment] = server
            self._loop.add_reader(server, self._on_fork_server, environment, server)
        self.on_environment(environment, self._fork_servers[environment])

    def _reclaimed(self, number: int) -> list[e.AgentInput]:
        processor = self._processors[number]
        unread = self._take_unread(processor)
        found: list[e.AgentInput] = []
        # Read the page first: all earlier batches are then in the socket, so the order is known.
        try:
            unsent = processor.page.unsent()
        except ProtocolError as error:
            unsent = None
            found.append(e.ProcessorReported(number, e.ProcessorEvent.INVALID_DATAGRAM, str(error)))
        inputs = self._read(number)
        results = [(item.results, True) for item in inputs if isinstance(item, e.ResultsReceived)]
        if unsent is not None:
            batches = [each.batch for each, _ in results]
            results.insert(batches.index(unsent.batch) if unsent.batch in batches else len(results), (unsent, False))
        found.append(e.TasksReclaimed(number, unread, results, processor.page.snapshot()))
        return found + [item for item in inputs if not isinstance(item, e.ResultsReceived)]

    def _take_unread(self, processor: _Processor) -> list[bytes]:
        datagrams: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while datagram := frames.receive(processor.unread, socket.MSG_DONTWAIT)[0]:
                datagrams.append(datagram)
        datagrams += processor.tasks.take_back()
        return [values[3] for values in map(frames.unpack, datagrams)]

    def _release(self, number: int) -> None:
        processor = self._processors.pop(number)
        self._loop.remove_reader(processor.results)
        processor.close()

    # -- input from processors -------------------------------------------------------------------------------------

    def _on_fork_server(self, environment: bytes, server: ForkServer) -> None:
        try:
            reports = server.reports()
        except OSError as error:
            self.fail(ScalerError(f"this worker cannot adopt a processor that has started: {error.strerror}"))
            return
        if reports is None:
            if environment:
                self._forget_fork_server(environment, server)
            else:
                self.fail(ScalerError("the fork server has exited"))
            return
        for report in reports:
            number = report.number
            if not number:
                self._environment_changed(environment, True)
                continue
            processor = self._processors[number]
            if report.is_start:
                processor.pid, processor.ended = report.value, report.ended
                if processor.is_killed:
                    processor.signal(signal.SIGKILL)
                continue
            self.take_soon(*self._read(number), *self._reclaimed(number))
            event, text = e.ProcessorEvent.EXITED, describe_exit(report.value)
            if report.value == -signal.SIGKILL and not processor.is_killed:
                text += f", with at most {counted(report.peak_bytes, 'byte')} of resident memory"
                if evidence := next(filter(None, (why() for why in self.why_killed)), ""):
                    event, text = e.ProcessorEvent.OUT_OF_MEMORY, f"{text}: {evidence}"
            crash = os.pread(processor.crash_text, CRASH_TEXT_BYTES, 0).decode("utf-8", "replace").strip()
            self.take_soon(e.ProcessorReported(number, event, with_crash(text, crash)))
            self._release(number)

    def _forget_fork_server(self, environment: bytes, server: ForkServer) -> None:
        self._loop.remove_reader(server)
        for number in [number for number, each in self._processors.items() if each.fork_server is server]:
            self._end_group(number)
            self.take_soon(*self._read(number), *self._reclaimed(number))
            self.take_soon(e.ProcessorReported(number, e.ProcessorEvent.EXITED, e.SERVER_EXITED))
            self._release(number)
        text = server.reason() or "the fork server of its environment has exited"
        server.close()
        if self._fork_servers.get(environment) is server:
            del self._fork_servers[environment]
            self._environment_changed(environment, False, text)

    def _environment_changed(self, environment: bytes, is_ready: bool, text: str = "") -> None:
        self.take([e.EnvironmentChanged(environment, is_ready, text)])
        self.on_environment(environment, None)

    def _on_readable(self, number: int) -> None:
        found = self._read(number, MAX_READ_PER_WAKEUP)
        if len(self._processors) > 1 or self._connector is None:
            self.take_soon(*found)
        elif found:  # no other results to wait for
            self._pending += found
            self._connector.together(self.take)

    def _read(self, number: int, limit: int = sys.maxsize) -> list[e.AgentInput]:
        """Read a processor's datagrams. Returns inputs for the core and forwards the rest."""
        end = self._processors[number].results
        found: list[e.AgentInput] = []
        for _ in range(limit):
            descriptors: list[int] = []
            try:
                datagram, descriptors = frames.receive(end, socket.MSG_DONTWAIT)
                if not datagram:
                    # The process is exiting, which the fork server will report. The socket would remain readable until
                    # then.
                    self._loop.remove_reader(end)
                    self._processors[number].fork_server.wake()
                    break
                if datagram[0] == frames.ToAgent.RESULTS:
                    results = frames.unpack_results(datagram)
                    if self._pipes.pipes:
                        for row in results.rows:
                            self._pipes.drain(row[0])
                    found.append(e.ResultsReceived(number, results))
                else:
                    self._take_note(number, datagram, descriptors, found)
            except (BlockingIOError, ConnectionError):
                break
            except ProtocolError as error:
                found.append(e.ProcessorReported(number, e.ProcessorEvent.INVALID_DATAGRAM, str(error)))
            for descriptor in descriptors:
                os.close(descriptor)
        return found

    def _take_note(self, number: int, datagram: bytes, descriptors: list[int], found: list[e.AgentInput]) -> None:
        note = frames.unpack_note(datagram)
        if len(descriptors) != _ATTACHED.get(note.kind, 0):
            raise ProtocolError(f"datagram {note.kind.name} came with descriptors={len(descriptors)}")
        match note.kind:
            case frames.ToAgent.OUTPUT:
                self._pipes.open(note.identifier, tuple(descriptors))
                descriptors.clear()
            case kind if kind.name not in e.ProcessorEvent.__members__:
                if kind is frames.ToAgent.CHANNEL:
                    self._processors[number].fork_server.prepare_clients()
                if (take := self.on_note.get(kind)) is not None:
                    take(number, note, descriptors)
            case kind:
                if kind is frames.ToAgent.WAITS or (kind is frames.ToAgent.READY and self.executor.obstacle()):
                    self.heartbeat_soon()  # update the displayed wait, or clear the degraded reason
                text = note.text.decode("utf-8", "replace")
                found.append(e.ProcessorReported(number, e.ProcessorEvent[kind.name], text))


def _socket_pair(*closing: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end, stack in zip(pair, closing, strict=True):
        stack.callback(end.close)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return pair


_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_SIGNAL = re.compile(r"killed by signal \d+ \((SIG\w+)\)")
_OWN = (str(Path(__file__).parents[2]), "<frozen runpy>")
_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen ")


def with_crash(how: str, crash: str) -> str:
    """Return how a processor died: the location, then the user's frames. crash: faulthandler's text, or the reason for
    an exit."""
    frames = [match for match in _FRAME.finditer(crash) if not match["file"].startswith(_OWN)]
    if not frames:
        return f"{how}\n{crash}" if crash and _SIGNAL.search(how) else crash or how
    place = next((frame for frame in frames if not frame["file"].startswith(_LIBRARIES)), frames[0])
    signal = _SIGNAL.sub(r"\1", how)
    shown = [f"  {frame[0].strip()}" for frame in frames]
    return "\n".join([f"{signal} in {place['name']} ({Path(place['file']).name}:{place['line']})", *shown])

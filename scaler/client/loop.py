"""The client's background thread: one asyncio loop that sends tasks and resolves their futures.

User threads put inputs into the futures' inbox and wake the loop, which steps the session with the whole inbox. The
loop resolves all futures of a Finished under one acquisition of the lock, then calls callbacks without the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar, cast

from scaler import errors
from scaler.client import tasks as t
from scaler.client.calls import ClientCalls
from scaler.client.future import ScalerFuture, Unloaded
from scaler.client.futures import FutureTable, Profile, Resolved
from scaler.client.reachability import Contact
from scaler.client.results import StoredResults, Wanted
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.transfers import ObjectTransfers, Storage
from scaler.ids import IdFactory, new_peer_id, session_ids
from scaler.monitor.messages import Explain, Explained
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.questions import Questions
from scaler.output import STDERR, STDOUT, OutputStreams
from scaler.processes import give_memory_back
from scaler.protocol import messages as m
from scaler.serialization import ATOMS, parts_of

MAX_OUTBOX_BYTES = 256 * 1024 * 1024
"""Bytes of unacknowledged messages to the scheduler above which tasks wait in the session."""
MAINTENANCE_SECONDS = 1.0
REST_SECONDS = 30.0
"""Maintenance interval (seconds) while the program only waits, because a host may run a thousand such clients."""
TRIM_SECONDS = 10.0
"""Minimum interval (seconds) between returns of freed memory to the system, which take milliseconds per 100 MB."""
LOST_LEASES = 10.0
"""Number of lease periods without contact after which the client gives up."""
RETRY_SECONDS = 0.01
JOIN_SECONDS = 5.0
MIN_ASK_SECONDS = 0.01
MAX_ASK_SECONDS = 1.0
_SUCCESS = m.Outcome.SUCCESS
_GLOBAL = b"\x93"
"""STACK_GLOBAL: a pickle without this byte calls no user function, and loads fast."""

_log = logging.getLogger(__name__)

OnEvents = Callable[[list[ConnectorEvent]], None]
_Reply = TypeVar("_Reply", bound=m.Reply)


class ClientLoop:
    """One client's connections, futures, and thread. Public methods are thread-safe."""

    def __init__(  # noqa: PLR0913 (what differs between clients of sockets, tasks, and sessions)
        self,
        address: str,
        connect: Callable[[bytes, OnEvents], Connector],
        connect_storage: Callable[[m.Welcome, bytes], Storage],
        timeout_seconds: float,
        *,
        blocked: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        submitted: Callable[[Callable[[], bool]], object] | None = None,
        may_rest: Callable[[], bool] = lambda: False,
        name: str = "",
        session_id: bytes = b"",
        cache_owner: bytes = b"",
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Connect. Raises UnreachableError after the timeout, RefusedError if the scheduler refuses the client.

        connect, connect_storage: called in the client's loop with its peer id. blocked: see FutureTable. submitted: see
        SlotWatch. may_rest: whether the program is only waiting for its tasks. session_id: peer id of a durable
        session. cache_owner: prefix of the ids of cached results of the client's key. ended: called after the
        connection ends, perhaps repeatedly.
        """
        self.address = address
        self._name = name
        # The default loop of Windows cannot wait for ZeroMQ sockets.
        self._loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self.futures = FutureTable(
            session_ids(session_id) if session_id else IdFactory(new_peer_id()),
            wake=partial(self._loop.call_soon_threadsafe, self._iterate),
            upload=lambda parts: self.transfers.upload(parts),  # noqa: PLW0108 (transfers does not exist yet)
            blocked=blocked,
            why_late=self.why_late,
            explain=self.explain,
            timeout_seconds=timeout_seconds,
        )
        self.transfers = ObjectTransfers(self.futures, self._loop, self._call, connect_storage)
        self.cache_owner = cache_owner
        self.wanted: Wanted = {}
        self._connect = connect
        self._submitted, self._may_rest = submitted, may_rest
        self._rest: asyncio.TimerHandle | None = None
        """Timer of the next maintenance while resting. The next event shortens the delay to MAINTENANCE_SECONDS."""
        self._ended = ended
        self._is_durable = bool(session_id)
        self._ends_itself = False
        self._is_abandoned = False
        self._welcome: m.Welcome | None = None
        self._contact = Contact(address, self._loop.time())
        self._output = OutputStreams(as_text=True)
        self._has_printed = False
        self._questions = Questions(lambda question: self._call(self._ask_scheduler, question))
        self._connected: Future[None] = Future()
        self._connector: Connector | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._trimmed = 0
        """Number of releases at the time when freed memory was last returned to the system."""
        self._trim_at = 0.0
        self._results = StoredResults(self.futures, self.wanted, self._loop, self.transfers, self._answer)
        self.calls = ClientCalls(time.time_ns(), lambda: self._call(self._report))
        self.on_message: dict[type[m.Message], Callable[[m.Message], object]] = {}
        """Extensions' functions that process messages from the scheduler, in the client's thread."""
        self._thread = threading.Thread(target=self._run, name="scaler-client", daemon=True)
        self.futures.thread = self._thread
        self._thread.start()
        self._wait_connected(timeout_seconds)

    def _wait_connected(self, timeout_seconds: float) -> None:
        try:
            self._connected.result(timeout_seconds)
        except BaseException as error:
            why = self._connector.last_error if self._connector is not None else "no connection was made"
            self.close("the client could not connect")
            if not isinstance(error, TimeoutError):
                raise
            text = f"no scheduler answers at {self.address}: waited {timeout_seconds:g} s ({why})"
            raise errors.UnreachableError(f"{text}. Is it running at this address?") from None

    # -- from any thread

    @property
    def state(self) -> str:
        if self.futures.closed is not None:
            return self.futures.closed
        is_connected = self._connector is not None and self._connector.connected
        return "connected" if is_connected else "the connection is broken"

    @property
    def tables(self) -> str:
        return "" if self._welcome is None else self._welcome.tables

    def explain(self, future: ScalerFuture, seconds: float = 0.0) -> str:
        """Return why a task waits or how it ended. Raises UnreachableError."""
        task, session = cast("TaskFuture", future), self.futures.session
        self.futures.step()
        with self.futures.condition:
            if session.waits_for_upload(task):
                return session.why_unsent(task)
        answer = self.ask(Explain(future.task_id), Explained, seconds)
        with self.futures.condition:
            text = session.why_unsent(task) or answer.text
        origin = task.failed_first
        if origin is not None and origin.node is not None:  # the scheduler does not know graph keys
            shown = origin.task_id.hex()
            text = text.replace(f"({shown})", f"({shown}, {origin._label} of the graph)")
        return text

    def why_late(self, future: ScalerFuture, timeout_seconds: float) -> str:
        """Return why a task is late: the scheduler's answer if received within a tenth of the timeout, else the
        client's."""
        seconds = min(MAX_ASK_SECONDS, timeout_seconds / 10)
        if self._contact.broken_at is not None:
            return f"{self.address} does not answer"
        if seconds >= MIN_ASK_SECONDS:
            with contextlib.suppress(errors.ScalerError):
                return self.explain(future, seconds)
        return "it runs" if future.running() else "it has not been reported as running"

    @property
    def questions(self) -> Questions:
        """Raises UsageError in the thread that receives the answers."""
        self.futures.check_waitable()
        return self._questions

    def ask(self, question: m.Inquiry, reply: type[_Reply], seconds: float = 0.0) -> _Reply:
        """Return the scheduler's answer. Raises UnreachableError after `seconds`; 0: `timeout_seconds`."""
        seconds = seconds or self.futures.timeout_seconds
        with self.questions.asking(question) as answer:
            try:
                found = answer.result(seconds)
            except TimeoutError:
                text = f"the scheduler at {self.address} did not answer: waited {seconds:g} s"
                raise errors.UnreachableError(text) from None
        assert isinstance(found, reply)
        return found

    def clear(self) -> None:
        with self.futures.condition:
            self.futures.check_open()
            self.transfers.forget()
            self._results.invalidate()
            self.futures.put(t.ClientCleared())
        self.futures.step()

    def close(self, why: str) -> None:
        """End all futures with ClientDisconnectedError. A durable session first sends its tasks, within its timeout."""
        has_tasks = self._welcome is not None and self.futures.has_unfinished()
        try:
            if self._is_durable and has_tasks and threading.current_thread() is not self._thread:
                self._hand_over()
        finally:  # Ctrl-C ends the wait; the client closes regardless
            self._end(why)

    def _end(self, why: str) -> None:
        self.futures.close(why, errors.ClientDisconnectedError("the client was disconnected before the task ended"))
        self._questions.close(errors.ClientClosedError(why))
        self._call(self._loop.stop)
        if threading.current_thread() is self._thread:
            self._ends_itself = True
        else:
            self._thread.join(JOIN_SECONDS)
            self._ended()
        self._output.close()

    def _hand_over(self) -> None:
        try:
            with self.futures.condition:
                has_sent = self.futures.wait_for(lambda: not (self.futures.inbox or self.futures.session.has_unsent))
            if has_sent:
                self.ask(m.ListSessions(), m.SessionsListed)  # the answer confirms all earlier messages
                return
            why = f"not all tasks were sent within timeout_seconds={self.futures.timeout_seconds:g}"
        except errors.ScalerError as error:
            why = str(error)
        _log.warning("scaler: the durable session may lack the last submitted tasks: %s", why)

    def abandon(self) -> None:
        """End the thread once all tasks have ended. Called after the last submit."""
        self._is_abandoned = True

    def persist(self, stored: Sequence[t.RemoteReference]) -> None:
        self._call(self._results.persist, stored)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in the client's thread after a delay. Safe anywhere, even during garbage collection."""
        self._call(self._loop.call_later, seconds, function)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the call has no effect
            self._loop.call_soon_threadsafe(function, *args)

    # -- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.call_soon(self._begin)
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self.transfers.end())
            if self._connector is not None:
                self._connector.close("disconnected")
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self.futures.loop_ended()
            if self._ends_itself:
                self._ended()

    def _begin(self) -> None:
        try:
            self._connector = self._connect(self.futures.ids.owner, self._on_events)
        except errors.ScalerError as error:
            self._connected.set_exception(error)
            return
        self.futures.wake_thread = partial(self._loop.call_soon_threadsafe, self._connector.together, self._iterate)
        self._loop.call_later(MAINTENANCE_SECONDS, self._maintain)

    def _on_events(self, received: list[ConnectorEvent]) -> None:
        inputs: list[t.SessionInput] = []
        resolved: list[Resolved] = []
        for event in received:
            match event:
                case Received(message=m.Finished() as message):
                    inputs.append(message)
                    if self._has_printed:  # print output before resolving the result
                        self._has_printed = False
                        self._output.flush()
                    resolved += self._load(message)
                case Received(message=message):
                    self._received(message)
                case Welcomed(welcome):
                    self.futures.step(*inputs, resolved=resolved)  # a new session restarts its numbers
                    inputs, resolved = [], []
                    self._welcomed(welcome)
                case Resumed():
                    self._contact.back(self._loop.time())
                case Broken():
                    self._contact.broken(self._loop.time())
                case ConnectionRefused(refused) if not self._connected.done():
                    self._connected.set_exception(
                        errors.RefusedError(f"{self.address} refused this client: {refused.text}")
                    )
                case ConnectionRefused(refused):
                    why = f"the scheduler refused this client: {refused.text}"
                    self.futures.close(why, errors.SchedulerLostError(refused.text))
        self._iterate(inputs, resolved)

    def _iterate(self, inputs: Sequence[t.SessionInput] = (), resolved: Sequence[Resolved] = ()) -> None:
        """Step the session and send its messages. Without a connection, tasks wait in the session."""
        futures, connector = self.futures, self._connector
        futures.is_awake = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._loop.call_later(MAINTENANCE_SECONDS, self._maintain)
        if self._welcome is None or connector is None or not connector.connected or futures.closed is not None:
            futures.step(*inputs, resolved=resolved)
            return
        outbox = t.ConnectionReady(MAX_OUTBOX_BYTES - connector.outbox_bytes(), futures.max_pending_tasks)
        try:
            for message in futures.step(*inputs, outbox, resolved=resolved):
                connector.send(message)
        except errors.ClientClosedError as error:
            self._lose(str(error))
            return
        session = futures.session
        if session.unsent_bytes:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._iterate)
        if self._submitted is not None and session.pending:
            self._submitted(futures.has_unfinished)

    def _ask_scheduler(self, question: m.Inquiry) -> None:
        self._iterate()  # first send the tasks that the question may concern
        if self._connector is not None:
            self._connector.send(question)

    def _maintain(self) -> None:
        self._rest = None
        rests = self._may_rest()
        next_time = self._loop.call_later(REST_SECONDS if rests else MAINTENANCE_SECONDS, self._maintain)
        now = self._loop.time()
        self._iterate()
        self._rest = next_time if rests else None
        if self.futures.released != self._trimmed and now >= self._trim_at:
            self._trimmed, self._trim_at = self.futures.released, now + TRIM_SECONDS
            self._loop.run_in_executor(None, give_memory_back)
        self._report()
        if self._welcome is None:
            self._warn(now, f"gives up after timeout_seconds={self.futures.timeout_seconds:g}")
            return
        seconds = LOST_LEASES * self._welcome.lease_seconds
        if self.futures.has_unfinished() or self._questions:
            self._warn(now, f"tasks that need it fail after {seconds:g} s")
        if self._contact.broken_at is not None and now - self._contact.broken_at > seconds:
            self._lose(f"the scheduler at {self.address} was unreachable for more than {seconds:g} s")
        if self._is_abandoned and not self.futures.has_unfinished():
            self.close("the program dropped its last reference to the client")

    def _warn(self, now: float, outlook: str) -> None:
        if self._connector is not None:
            self._contact.warn(now, f"({self._connector.last_error}); {outlook}")

    def _lose(self, why: str) -> None:
        self.futures.step(t.ClientGaveUp(errors.SchedulerLostError(why), cancel=True))

    def _welcomed(self, welcome: m.Welcome) -> None:
        is_first, self._welcome = self._welcome is None, welcome
        self._contact.back(self._loop.time())
        self.futures.max_pending_tasks = welcome.max_pending_tasks
        self.transfers.welcomed(welcome)
        if is_first:
            self._connected.set_result(None)
            return
        self.futures.step(t.SchedulerRestarted(self.transfers.stand_ins()))
        self._loop.call_soon(self._results.tell_again)  # after the first messages of the session
        self._questions.ask_again()

    def _received(self, message: m.Message) -> None:
        match message:
            case m.Started(ids, requeued=requeued):
                self.futures.started(ids, has_started=not requeued)
            case m.Output(is_stderr=is_stderr, text=text):
                self._output.write(STDERR if is_stderr else STDOUT, text)
                self._has_printed = True
            case m.ObjectsMissing(ids):
                self._results.restore(ids)
            case m.Notice(text):
                _log.warning("scaler: %s", text)
            case _ if isinstance(message, m.Reply):
                self._questions.answered(message)
            case _ if type(message) in self.on_message:  # a newer scheduler may send other messages
                self.on_message[type(message)](message)

    def _load(self, message: m.Finished) -> list[Resolved]:
        resolved: list[Resolved] = []
        pending = cast("dict[bytes, TaskFuture]", self.futures.session.pending)
        wanted = self.wanted
        outcomes, payloads, durations = message.outcomes, message.payloads, message.duration_us
        has_profiles = bool(message.cpu_us)
        if self.futures.session.has_labels:
            with self.futures.condition:
                self.futures.session.ask_again(message)
        for index, identifier in enumerate(message.ids):
            payload = payloads[index]
            future = pending.get(identifier)
            template = future.template if future is not None else None
            if future is None or template is None:
                if m.is_stored(payload):  # the task was cancelled: release immediately
                    self._results.reference(payload)
                continue
            profile: Profile = durations[index]
            if has_profiles:
                profile = (durations[index], message.cpu_us[index], message.peak_bytes[index])
            if len(payload) == m.STORED_REFERENCE_BYTES and m.is_stored(payload):
                self._results.ended(future, outcomes[index], payload, profile, template.serializer)
                continue
            if wanted and (keep := wanted.pop(identifier, None)) is not None and outcomes[index] == _SUCCESS:
                self._loop.create_task(keep([*parts_of(payload)]))
            outcome, serializer = outcomes[index], template.serializer
            if outcome == _SUCCESS and (serializer is not None or _GLOBAL in payload):
                future.keep(payload := bytes(payload), serializer)
                load = partial(load_outcome, outcome, payload, serializer)
                resolved.append((future, Unloaded(load), None, profile))
                continue
            value, exception = load_outcome(outcome, payload, serializer)
            if type(value) not in ATOMS:
                future.keep(bytes(payload), None)
            resolved.append((future, value, exception, profile))
        return resolved

    def _report(self) -> None:
        if self._contact.broken_at is None and (reports := self.calls.reports()):
            self._answer(m.CallsReported(reports))

    def _answer(self, message: m.Message) -> None:
        if self._connector is not None:
            with contextlib.suppress(errors.ClientClosedError):
                self._connector.send(message)

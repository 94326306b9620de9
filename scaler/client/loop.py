"""The client's background thread: one asyncio loop that sends what was submitted and resolves what has ended.

Users' threads put tasks into the session and wake the loop, at most once per idle period. The loop drains all that is
there into as few messages as possible. When a Finished comes it loads the values first, then resolves all its futures
under one acquisition of the lock, then calls callbacks without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scaler.client.future import ScalerFuture
from scaler.client.future_table import FutureTable, Profile, Resolved
from scaler.client.objects import ClientObjects
from scaler.client.outcomes import load_ended
from scaler.client.questions import Answer, Question, Questions
from scaler.client.tasks import Held, Task, Upload
from scaler.errors import (
    ClientClosedError,
    ClientDisconnectedError,
    ProtectedError,
    RefusedError,
    ScalerError,
    SchedulerLostError,
    UnreachableError,
)
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.protocol.messages import (
    Explain,
    Explained,
    Finished,
    Message,
    Outcome,
    Output,
    ReadLog,
    ShutdownCluster,
    ShutdownReply,
    Started,
    TaskLog,
    Welcome,
    is_stored,
)
from scaler.serialization import Serializer, dump_value

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient

MAX_OUTBOX_BYTES = 256 * 1024 * 1024
"""What may be on its way to the scheduler; then tasks wait in the session."""
HOUSEKEEPING_SECONDS = 1.0
RETRY_SECONDS = 0.01
JOIN_SECONDS = 5.0

OnEvents = Callable[[list[ConnectorEvent]], None]


@dataclass(frozen=True, slots=True)
class ClientTransports:
    """How a client reaches the others. The first two are called in the client's loop."""

    connect: Callable[[bytes, OnEvents], Connector]
    """To the scheduler, given this client's peer id."""
    connect_storage: Callable[[str, bytes], StorageClient]
    """To the object storage, given its address and the peer id."""
    address: str
    """Of the scheduler, for texts."""
    waiting: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """A context for waiting on a future: a task that runs here lends its slot meanwhile."""
    submitted: Callable[[FutureTable], object] = id
    """Called when this client has unfinished tasks, and its task may come to wait for them otherwise."""


class ClientLoop:
    """One client's connection, futures and thread. Public methods are safe to use from any thread."""

    def __init__(self, peer: bytes, transports: ClientTransports, timeout_seconds: float) -> None:
        """Connect. Raises UnreachableError after the timeout, RefusedError when the scheduler does not accept it."""
        self.address = transports.address
        self.futures = FutureTable(peer, self._wake, transports.waiting, timeout_seconds)
        self._session = self.futures.session
        self._transports = transports
        self.objects = ClientObjects(self.futures, self._call, self._connect_storage)
        self._is_abandoned = False
        self._welcome: Welcome | None = None
        self._broken_at: float | None = None
        self._shutdown_reply: Future[ShutdownReply] | None = None
        self._questions = Questions(lambda question: self._call(self._say, question))
        self._connected: Future[None] = Future()
        self._connector: Connector | None = None
        self._is_retrying = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scaler-client", daemon=True)
        self.futures.thread = self._thread
        self._thread.start()
        try:
            self._connected.result(timeout_seconds)
        except TimeoutError:
            trouble = self._connector.last_error if self._connector is not None else "no connection was made"
            self.close("the client could not connect")
            raise UnreachableError(
                f"no scheduler answers at {self.address}: waited {timeout_seconds:g} s ({trouble}). "
                "Is it started, at this address?"
            ) from None
        except BaseException:
            self.close("the client could not connect")
            raise

    # -- from any thread

    @property
    def state(self) -> str:
        """In words for people: whether there is a connection, or why there never will be one again."""
        if self.futures.closed is not None:
            return self.futures.closed
        is_connected = self._connector is not None and self._connector.connected
        return "connected" if is_connected else "the connection is broken"

    def clear(self) -> None:
        """Cancel all unfinished tasks, and let go of all objects and stored results."""
        with self.futures.condition:
            self.futures.check_open()
            self.objects.forget()
            self.futures.end_all(self._session.clear, CancelledError)
        self.futures.wake()

    def shut_cluster_down(self) -> None:
        """Ask the scheduler to end the cluster. Raises ProtectedError when it refuses."""
        self.futures.check_open()
        reply: Future[ShutdownReply] = Future()
        self._shutdown_reply = reply
        self._call(self._say, ShutdownCluster())
        try:
            answer = reply.result(self.futures.timeout_seconds)
        except TimeoutError:
            raise UnreachableError(
                f"the scheduler at {self.address} did not answer: waited {self.futures.timeout_seconds:g} s"
            ) from None
        if not answer.accepted:
            raise ProtectedError(answer.text)

    def explain(self, future: ScalerFuture) -> str:
        """Return why a task waits, or what became of it. Raises UnreachableError."""
        with self.futures.condition:
            if self._session.is_held(future):
                return self._session.why_unsent(future)
        answer = self._ask(Explain(future.task_id), Explained)
        assert isinstance(answer, Explained)
        with self.futures.condition:
            return self._session.why_unsent(future) or answer.text

    def log(self, future: ScalerFuture) -> TaskLog:
        """Return what a task printed. Raises UnreachableError."""
        answer = self._ask(ReadLog(future.task_id), TaskLog)
        assert isinstance(answer, TaskLog)
        return answer

    def _ask(self, question: Question, kind: type[Answer]) -> Answer:
        self.futures.check_waitable()
        return self._questions.ask(question, kind, self.futures.timeout_seconds, self.address)

    def close(self, why: str) -> None:
        """End: unfinished futures end with ClientDisconnectedError. Harmless when repeated."""
        self.futures.close(why, lambda: ClientDisconnectedError("the client was disconnected before the task ended"))
        self._questions.close(why)
        self._call(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def abandon(self) -> None:
        """Nobody can submit any more: the thread ends when all tasks have ended."""
        self._is_abandoned = True

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in the client's thread after a while. Harmless from anywhere, also in garbage collection."""
        self._call(self._loop.call_later, seconds, function)

    def forked(self) -> None:
        """This process is a child of the one that the client belongs to: its thread is not here."""
        self.futures.forked()

    def _wake(self) -> None:
        self._call(self._turn)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
            self._loop.call_soon_threadsafe(function, *args)

    # -- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.call_soon(self._begin)
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self.objects.close())
            if self._connector is not None:
                self._connector.close("disconnected")
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _begin(self) -> None:
        try:
            self._connector = self._transports.connect(self.futures.ids.owner, self._on_events)
        except ScalerError as error:
            self._connected.set_exception(error)
            return
        self._loop.call_later(HOUSEKEEPING_SECONDS, self._keep_house)

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Received(message=message):
                    self._received(message)
                case Welcomed(welcome):
                    self._welcomed(welcome)
                case Resumed():
                    self._broken_at = None
                case Broken():
                    if self._broken_at is None:
                        self._broken_at = self._loop.time()
                case ConnectionRefused(refused):
                    self._turned(refused.text)
        self._turn()

    def _turn(self) -> None:
        self.futures.is_awake = False
        self._send()
        if self._session.pending:
            self._transports.submitted(self.futures)

    def _send(self) -> None:
        connector = self._connector
        if self._welcome is None or connector is None or not connector.connected or self.futures.closed is not None:
            return  # what waits, waits in the session, where submit sees its size
        session = self._session
        with self.futures.condition:
            messages = session.drain(MAX_OUTBOX_BYTES - connector.outbox_bytes())
            orphans, session.orphans = session.orphans, []
        try:
            for message in messages:
                connector.send(message)
        except ClientClosedError as error:
            self._lose(str(error))
            return
        if orphans:
            self.futures.drop(orphans, CancelledError())
        if session.unsent and not self._is_retrying:
            self._is_retrying = True
            self._loop.call_later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        self._turn()

    def _say(self, message: Message) -> None:
        self._turn()
        if self._connector is not None:
            self._connector.send(message)

    def _keep_house(self) -> None:
        """Every second: say what nothing else gave occasion to say, and notice that the scheduler is lost."""
        self._loop.call_later(HOUSEKEEPING_SECONDS, self._keep_house)
        self._turn()
        if self._welcome is None or self._connector is None:
            return
        if self._connector.connected:
            with self.futures.condition:
                seen = self._session.say_seen()
            if seen is not None:
                self._connector.send(seen)
        lease = self._welcome.lease_seconds
        if self._broken_at is not None and self._loop.time() - self._broken_at > lease:
            self._lose(f"the scheduler at {self.address} was gone for more than {lease:g} s")
        if self._is_abandoned and not self._session.pending and not self.futures.fetching:
            self.close("nobody can use the client any more")

    def _lose(self, why: str) -> None:
        self.futures.give_up(lambda: SchedulerLostError(why), cancel=True)

    def _turned(self, why: str) -> None:
        if not self._connected.done():
            self._connected.set_exception(RefusedError(f"{self.address} refused this client: {why}"))
            return
        self.futures.close(f"the scheduler refused this client: {why}", lambda: SchedulerLostError(why))

    def _welcomed(self, welcome: Welcome) -> None:
        is_first = self._welcome is None
        self._welcome = welcome
        self._broken_at = None
        self.futures.max_pending_tasks = welcome.max_pending_tasks
        if is_first:
            self._connected.set_result(None)
        else:
            with self.futures.condition:
                in_doubt = self._session.restart(self._stand_in)
            why = "the scheduler has forgotten this client; retries=0, and the task may have run"
            self.futures.drop(in_doubt, SchedulerLostError(why))
            self.futures.drop_refused()
            self._questions.say_again()

    def _stand_in(self, task: Task, serializer: Serializer | None) -> Upload | None:
        """Put the value of a task that has ended into the storage: its result is lost with the scheduler."""
        future = cast("ScalerFuture", task)
        if not future.done() or future.cancelled() or future.exception() is not None:
            return None
        return self.objects.put(dump_value(future.result(), serializer))

    def _received(self, message: Message) -> None:
        match message:
            case Finished():
                self._finished(message)
            case Started(ids):
                self.futures.started(ids)
            case Output(is_stderr=is_stderr, text=text):
                _show(is_stderr, text)
            case Explained() | TaskLog():
                self._questions.answered(message)
            case ShutdownReply():
                if self._shutdown_reply is not None and not self._shutdown_reply.done():
                    self._shutdown_reply.set_result(message)
            case _:
                pass  # a newer scheduler may say more than this client wants to know

    # -- results

    def _finished(self, message: Finished) -> None:
        resolved: list[Resolved] = []
        fetching: list[ScalerFuture] = []
        fetches: list[tuple[ScalerFuture, int, Profile, Held, Serializer | None]] = []
        pending = self._session.pending
        outcomes = message.outcomes
        payloads = message.payloads
        durations = message.duration_us
        has_profiles = bool(message.cpu_us)
        for index, identifier in enumerate(message.ids):
            payload = payloads[index]
            future = cast("ScalerFuture | None", pending.get(identifier))
            kind = future.kind if future is not None else None
            if future is None or kind is None:
                if is_stored(payload):  # of a cancelled task
                    self.objects.held(payload[1:17])
                continue
            profile: Profile = durations[index]
            if has_profiles and kind.spec.profiling:
                profile = (durations[index], message.cpu_us[index], message.peak_bytes[index])
            if is_stored(payload):
                held = self.objects.held(payload[1:17])
                if outcomes[index] == Outcome.SUCCESS:
                    future.keep_stored(held)
                fetching.append(future)
                fetches.append((future, outcomes[index], profile, held, kind.serializer))
                continue
            value, exception = load_ended(outcomes[index], payload, kind.serializer)
            resolved.append((future, value, exception, profile))
        self.futures.resolve(message.number, resolved, fetching, message.ids)
        for fetch in fetches:
            self.objects.fetch(*fetch)

    def _connect_storage(self) -> StorageClient:
        address = self._welcome.object_storage_address if self._welcome is not None else ""
        return self._transports.connect_storage(address, self.futures.ids.owner)


def _show(is_stderr: bool, text: bytes) -> None:
    """Write what a task wrote to where this process writes."""
    stream = sys.stderr if is_stderr else sys.stdout
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads: as with print at the end
            stream.write(text.decode("utf-8", "replace"))
            stream.flush()

"""The client's background thread: one asyncio loop that sends what was submitted and resolves what has ended.

Users' threads put inputs into the futures' inbox and wake the loop. The loop steps the session with the whole inbox and
sends as few messages as possible. When a Finished comes it loads the values first, then resolves all its futures under
one acquisition of the lock, then calls callbacks without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable, Profile, Resolved, load_outcome
from scaler.client.objects import ClientObjects
from scaler.client.session import ClientCleared, ClientGaveUp, ConnectionReady, SchedulerRestarted, SessionInput
from scaler.errors import (
    ClientClosedError,
    ClientDisconnectedError,
    ProtectedError,
    RefusedError,
    ScalerError,
    SchedulerLostError,
    UnreachableError,
)
from scaler.ids import new_peer_id
from scaler.net.connection import Broken, ConnectionRefused, Connector, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.questions import Question, Questions
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
from scaler.serialization import dump_value

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient

MAX_OUTBOX_BYTES = 256 * 1024 * 1024
"""Limit of what is on its way to the scheduler; beyond it, tasks wait in the session."""
MAINTENANCE_SECONDS = 1.0
RETRY_SECONDS = 0.01
JOIN_SECONDS = 5.0

OnEvents = Callable[[list[ConnectorEvent]], None]
_Reply = TypeVar("_Reply", Explained, TaskLog, ShutdownReply)


class ClientLoop:
    """One client's connection, futures and thread. Public methods are safe to use from any thread."""

    def __init__(
        self,
        address: str,
        connect: Callable[[bytes, OnEvents], Connector],
        connect_storage: Callable[[str, bytes], StorageClient],
        timeout_seconds: float,
        *,
        blocked: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        submitted: Callable[[Callable[[], bool]], object] | None = None,
    ) -> None:
        """Connect. Raises UnreachableError after the timeout, RefusedError when the scheduler does not accept it.

        connect: to the scheduler, given this client's peer id. connect_storage: given its address and the peer id. Both
        are called in the client's loop. blocked: see FutureOwner. submitted: see SlotWatch.
        """
        self.address = address
        self._loop = asyncio.new_event_loop()
        self.futures = FutureTable(
            new_peer_id(),
            wake=partial(self._loop.call_soon_threadsafe, self._iterate),
            upload=lambda parts: self.objects.upload(parts),  # noqa: PLW0108 (it needs the table to be made)
            blocked=blocked,
            timeout_seconds=timeout_seconds,
        )
        self.objects = ClientObjects(self.futures, self._call, connect_storage)
        self._connect = connect
        self._submitted = submitted
        self._is_abandoned = False
        self._welcome: Welcome | None = None
        self._broken_at: float | None = None
        self._questions = Questions(lambda question: self._call(self._ask_scheduler, question))
        self._connected: Future[None] = Future()
        self._connector: Connector | None = None
        self._is_retrying = False
        self._thread = threading.Thread(target=self._run, name="scaler-client", daemon=True)
        self.futures.thread = self._thread
        self._thread.start()
        try:
            self._connected.result(timeout_seconds)
        except TimeoutError:
            why = self._connector.last_error if self._connector is not None else "no connection was made"
            self.close("the client could not connect")
            raise UnreachableError(
                f"no scheduler answers at {self.address}: waited {timeout_seconds:g} s ({why}). "
                "Is it started, at this address?"
            ) from None
        except BaseException:
            self.close("the client could not connect")
            raise

    # -- from any thread

    @property
    def state(self) -> str:
        """The display text of whether there is a connection, or why there will never be one again."""
        if self.futures.closed is not None:
            return self.futures.closed
        is_connected = self._connector is not None and self._connector.connected
        return "connected" if is_connected else "the connection is broken"

    def clear(self) -> None:
        """Cancel all unfinished tasks, and release all objects and stored results."""
        with self.futures.condition:
            self.futures.check_open()
            self.objects.forget()
            self.futures.put(ClientCleared())
        self.futures.step()

    def shut_cluster_down(self) -> None:
        """End scheduler and workers. Raises ProtectedError when the scheduler refuses, UnreachableError."""
        self.futures.check_open()
        answer = self._ask(ShutdownCluster(), ShutdownReply)
        if not answer.accepted:
            raise ProtectedError(answer.text)

    def explain(self, future: ScalerFuture) -> str:
        """Return why a task waits, or what became of it. Raises UnreachableError."""
        session = self.futures.session
        self.futures.step()
        with self.futures.condition:
            if session.waits_for_upload(future):
                return session.why_unsent(future)
        answer = self._ask(Explain(future.task_id), Explained)
        with self.futures.condition:
            return session.why_unsent(future) or answer.text

    def log(self, future: ScalerFuture) -> TaskLog:
        """Return what a task printed. Raises UnreachableError."""
        return self._ask(ReadLog(future.task_id), TaskLog)

    def _ask(self, question: Question, reply: type[_Reply]) -> _Reply:
        self.futures.check_waitable()
        seconds = self.futures.timeout_seconds
        with self._questions.asking(question) as answer:
            try:
                found = answer.result(seconds)
            except TimeoutError:
                text = f"the scheduler at {self.address} did not answer: waited {seconds:g} s"
                raise UnreachableError(text) from None
        assert isinstance(found, reply)
        return found

    def close(self, why: str) -> None:
        """End: unfinished futures end with ClientDisconnectedError. Harmless when repeated."""
        self.futures.close(why, ClientDisconnectedError("the client was disconnected before the task ended"))
        self._questions.close(ClientClosedError(why))
        self._call(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def abandon(self) -> None:
        """No more submits will come: the thread ends when all tasks have ended."""
        self._is_abandoned = True

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in the client's thread after a while. Harmless from anywhere, also in garbage collection."""
        self._call(self._loop.call_later, seconds, function)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and what was asked of it is of no use any more
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
            self._connector = self._connect(self.futures.ids.owner, self._on_events)
        except ScalerError as error:
            self._connected.set_exception(error)
            return
        self._loop.call_later(MAINTENANCE_SECONDS, self._maintain)

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        inputs: list[SessionInput] = []
        resolved: list[Resolved] = []
        for event in events:
            match event:
                case Received(message=Finished() as message):
                    inputs.append(message)
                    resolved += self._load(message)
                case Received(message=message):
                    self._received(message)
                case Welcomed(welcome):
                    self.futures.step(*inputs, resolved=resolved)  # the numbers of a new session begin again
                    inputs, resolved = [], []
                    self._welcomed(welcome)
                case Resumed():
                    self._broken_at = None
                case Broken():
                    if self._broken_at is None:
                        self._broken_at = self._loop.time()
                case ConnectionRefused(refused) if not self._connected.done():
                    self._connected.set_exception(RefusedError(f"{self.address} refused this client: {refused.text}"))
                case ConnectionRefused(refused):
                    why = f"the scheduler refused this client: {refused.text}"
                    self.futures.close(why, SchedulerLostError(refused.text))
        self._iterate(inputs, resolved)

    def _iterate(self, inputs: Sequence[SessionInput] = (), resolved: Sequence[Resolved] = ()) -> None:
        """Step the session, with what the connection takes, if there is one, and send what it returns.

        Without one, what waits, waits in the session, where submit sees its size.
        """
        futures, connector = self.futures, self._connector
        futures.is_awake = False
        if self._welcome is None or connector is None or not connector.connected or futures.closed is not None:
            futures.step(*inputs, resolved=resolved)
            return
        outbox = ConnectionReady(MAX_OUTBOX_BYTES - connector.outbox_bytes())
        try:
            for message in futures.step(*inputs, outbox, resolved=resolved):
                connector.send(message)
        except ClientClosedError as error:
            self._lose(str(error))
            return
        session = futures.session
        if session.unsent_bytes and not self._is_retrying:
            self._is_retrying = True
            self._loop.call_later(RETRY_SECONDS, self._retry)
        if self._submitted is not None and session.pending:
            self._submitted(futures.has_unfinished)

    def _retry(self) -> None:
        self._is_retrying = False
        self._iterate()

    def _ask_scheduler(self, question: Question) -> None:
        self._iterate()  # first the tasks that it may be about
        if self._connector is not None:
            self._connector.send(question)

    def _maintain(self) -> None:
        """Every second: send what no other event sends, and notice that the scheduler is lost."""
        self._loop.call_later(MAINTENANCE_SECONDS, self._maintain)
        self._iterate()
        if self._welcome is None:
            return
        lease = self._welcome.lease_seconds
        if self._broken_at is not None and self._loop.time() - self._broken_at > lease:
            self._lose(f"the scheduler at {self.address} was gone for more than {lease:g} s")
        if self._is_abandoned and not self.futures.has_unfinished():
            self.close("the program no longer refers to the client")

    def _lose(self, why: str) -> None:
        self.futures.step(ClientGaveUp(SchedulerLostError(why), cancel=True))

    def _welcomed(self, welcome: Welcome) -> None:
        is_first = self._welcome is None
        self._welcome = welcome
        self._broken_at = None
        self.futures.max_pending_tasks = welcome.max_pending_tasks
        self.objects.storage_address = welcome.object_storage_address
        if is_first:
            self._connected.set_result(None)
            return
        with self.futures.condition:
            lost = self.futures.session.lost_values()
        stand_ins = {}
        for task, serializer in lost:
            future = cast("ScalerFuture", task)
            if future.done() and not future.cancelled() and future.exception() is None:
                stand_ins[task, serializer] = self.objects.put(dump_value(future.result(), serializer))
        self.futures.step(SchedulerRestarted(stand_ins))
        self._questions.ask_again()

    def _received(self, message: Message) -> None:
        match message:
            case Started(ids):
                self.futures.started(ids)
            case Output(is_stderr=is_stderr, text=text):
                _show(is_stderr, text)
            case Explained() | TaskLog() | ShutdownReply():
                self._questions.answered(message)
            case _:
                pass  # a newer scheduler may send more than this client knows

    def _load(self, message: Finished) -> list[Resolved]:
        """Return the futures that a Finished resolves, with their values; begin to fetch stored ones."""
        resolved: list[Resolved] = []
        pending = self.futures.session.pending
        outcomes, payloads, durations = message.outcomes, message.payloads, message.duration_us
        has_profiles = bool(message.cpu_us)
        for index, identifier in enumerate(message.ids):
            payload = payloads[index]
            future = cast("ScalerFuture | None", pending.get(identifier))
            template = future.template if future is not None else None
            if future is None or template is None:
                if is_stored(payload):  # of a cancelled task: released at once
                    self.objects.stored(payload[1:17])
                continue
            profile: Profile = durations[index]
            if has_profiles and template.spec.profiling:
                profile = (durations[index], message.cpu_us[index], message.peak_bytes[index])
            if is_stored(payload):
                stored = self.objects.stored(payload[1:17])
                if outcomes[index] == Outcome.SUCCESS and not future.done():
                    future.keep_stored(stored)
                fetch = self.objects.fetch(future, outcomes[index], profile, stored, template.serializer)
                self._loop.create_task(fetch)
                continue
            value, exception = load_outcome(outcomes[index], payload, template.serializer)
            resolved.append((future, value, exception, profile))
        return resolved


def _show(is_stderr: bool, text: bytes) -> None:
    """Write a task's output to this process's own."""
    stream = sys.stderr if is_stderr else sys.stdout
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe without a reader: as with print at the end
            stream.write(text.decode("utf-8", "replace"))
            stream.flush()

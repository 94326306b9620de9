"""The client: connection, sent objects, durable sessions, and shutdown."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from types import TracebackType
from typing import Any

from scaler.client.connect import is_inside_task, processor, say_unfinished, this_thread, uploaded_code
from scaler.client.extended import ExtendedQuestions
from scaler.client.future import ScalerFuture
from scaler.client.gathering import AsCompleted, gather, show_progress
from scaler.client.loop import ClientLoop
from scaler.client.options import MAX_SECONDS, Environment, Options, checked_label, requirements_of
from scaler.client.task_calls import DISCONNECTED, PublicCalls, TemplateTable, hiding_frames_of_methods
from scaler.client.tasks import ObjectPinned, ObjectReference
from scaler.errors import ProtectedError, UsageError
from scaler.plugins import part_of
from scaler.protocol.messages import ShutdownCluster, ShutdownReply
from scaler.serialization import Serializer, bind_serializer, dump_value, size_of
from scaler.serialization.arguments import Collection, Reduced

DEFAULT_TIMEOUT_SECONDS = 60.0


@hiding_frames_of_methods()
class Client(ExtendedQuestions, PublicCalls):
    """A connection to a scheduler. Threads may share a client; processes may not.

    Inside a task, `Client()` connects through the task's worker, and its tasks are children of that task. Elsewhere,
    `Client()` connects to the cluster that SCALER_ADDRESS names. Without that variable, it starts a local cluster,
    which ends with the client. A client that is passed to a task becomes the task's own client.

    Args:
        address: address of the scheduler, or name of a running cluster of this user. With a standby scheduler, both
            addresses, separated by a comma.
        profiling: default of the option `profiling`.
        timeout_seconds: maximum wait for the scheduler, the object storage, and capacity at a limit.
        serializer: replaces the built-in serializer.
        stream_output: default of the option `stream_output`.
        name: name of this client in monitors.
        credentials: file written by `scaler keys add`. Default: SCALER_CREDENTIALS. Clusters of the same user on this
            machine need none.
        insecure_no_auth: connect without authentication and encryption. Default: SCALER_INSECURE_NO_AUTH.
        session: name of a durable session. It keeps its tasks and results when the client ends, and the next client
            with this name and key continues it. One client at a time uses a session.
        compression: compression of traffic between hosts: "auto" (where it saves time), "on", or "off". Default:
            SCALER_COMPRESSION, or "auto".
        processes: if False, `submit` runs the call in this thread before it returns, so that breakpoints work. There is
            no cluster then, and retries, time limits, environments, capabilities, and resources have no effect.
        environment: default of the option `environment`. Inside a task, the default is the task's environment.
        n_workers: workers of the local cluster. Default: one for each CPU that this process or its container may use.

    Raises:
        UnreachableError: No scheduler answers.
        RefusedError: The scheduler refuses this client.
        UsageError: An argument is invalid.
        ComponentError: The local cluster cannot start.

    Example:
        ```python
        with Client() as client:
            future = client.submit(pow, 2, 10)
            print(future.result())                       # 1024
            print(client.map(abs, [-1, -2]))             # [1, 2]
        ```
    """

    _how_to_send = "pass it to submit as an argument, or inside one, and the task gets its own client"

    def __init__(  # noqa: PLR0913 (keyword arguments with defaults)
        self,
        address: str | None = None,
        profiling: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        serializer: Serializer | type[Serializer] | None = None,
        stream_output: bool = False,
        name: str = "",
        credentials: str | None = None,
        insecure_no_auth: bool | None = None,
        *,
        session: str | None = None,
        compression: str | None = None,
        processes: bool = True,
        n_workers: int | None = None,
        environment: Environment | None = None,
    ) -> None:
        _check(timeout_seconds, name, session)
        open_session = None if session is None else part_of("durability", "session", "session")
        self._name = name
        self._serializer = None if serializer is None else bind_serializer(serializer)
        self._is_inside_task = is_inside_task()
        self._is_in_process = not processes or (address is None and this_thread.tasks > 0)
        self._is_nested = address is None and self._is_inside_task and not self._is_in_process
        packed = requirements_of(environment, inherits=self._is_nested)
        self._options = Options(profiling=profiling, stream_output=stream_output, environment=packed)
        if n_workers is not None and (self._is_nested or self._is_in_process):
            text = "applies only to a cluster that the client starts, but this client starts none"
            raise UsageError(f"n_workers={n_workers} {text}")
        if self._is_nested:
            self._loop: ClientLoop = part_of("nested", "loop", "a client inside a task")(None, session, timeout_seconds)
        elif self._is_in_process:
            self._loop = part_of("in_process", "loop", "processes=False")(address, session, timeout_seconds)
        else:
            access = credentials, insecure_no_auth, compression
            open_cluster: Callable[..., ClientLoop] = import_module("scaler.client.clusters").open_cluster
            self._loop = open_cluster(address, name, timeout_seconds, access, session or "", n_workers)
            weakref.finalize(self, self._loop.abandon).atexit = False
        self._futures = self._loop.futures
        self._templates = TemplateTable(self._futures, self._serializer, uploaded_code() if self._is_nested else b"")
        self._session = None if open_session is None else open_session(session, self._loop, self._serializer)
        self._references: weakref.WeakSet[ObjectReference] = weakref.WeakSet()
        self._is_closed = False
        task = processor() if self._is_nested else None
        for call in () if task is None else task.on_client:
            call(self._futures)

    def __repr__(self) -> str:
        state = "disconnected" if self._is_closed else self._loop.state
        return f"<Client {self.identity.hex()} of {self._loop.address}, {state}>"

    @property
    def identity(self) -> bytes:
        """The id of this client: the prefix of its task ids. Clients inside one processor share it."""
        return self._futures.ids.owner

    # -- tasks

    def send_object(self, obj: Any, name: str | None = None) -> ObjectReference:
        """Send an object once, and use it in any number of tasks. The cluster keeps it until `clear` or `disconnect`.

        Args:
            obj: the object.
            name: name of the object in monitors.

        Returns:
            A reference, which is passed to tasks in place of the object.

        Raises:
            SerializationError: The object cannot be pickled.
            LimitError: The object storage is full.
        """
        reference = self._send_object(obj, name)
        with self._futures.condition:
            self._futures.put(ObjectPinned(reference._upload))
        self._references.add(reference)
        return reference

    def _send_object(self, obj: Any, name: str | None = None) -> ObjectReference:
        """Send an object that is released once no reference to it is left, here or in tasks."""
        self._check_open()
        what = f"object {name!r}" if name else "the object"
        parts = dump_value(obj, self._serializer, what)
        upload = self._futures.upload(parts)
        if not upload.is_stored:
            self._loop.transfers.wait_uploaded(upload)
        return ObjectReference(self._futures, upload, name or type(obj).__name__, size_of(parts))

    # -- many futures

    def gather(self, futures: Any, *, return_exceptions: bool = False) -> Any:
        """Wait for futures in nested lists, tuples, sets, and dicts, and return their values in the same shape.

        Args:
            futures: a future, or a collection of futures and other values.
            return_exceptions: return exceptions in place of values instead of raising the first one.
        """
        return gather(futures, return_exceptions=return_exceptions)

    def as_completed(self, futures: Iterable[ScalerFuture] = (), *, timeout: float | None = None) -> AsCompleted:
        """Iterate over futures in the order of completion. The iterator's `add` appends futures during the iteration.

        Args:
            futures: the initial futures.
            timeout: seconds until `next` raises TimeoutError.
        """
        return AsCompleted(self._futures, futures, timeout)

    def progress(self, futures: Iterable[ScalerFuture], *, name: str = "tasks") -> None:
        """Wait for futures; a tqdm bar on stderr or in a notebook counts finished and failed tasks."""
        show_progress(self._futures, futures, name)

    # -- shutdown

    def clear(self) -> None:
        """Cancel all unfinished tasks and release all sent objects. The client stays open."""
        self._check_open()
        self._loop.clear()
        self._templates.clear()
        self._references.clear()

    def disconnect(self) -> None:
        """Close this client and drop its unfinished tasks. The cluster keeps running. Idempotent.

        Cancels futures of `get`, and fails other futures with ClientDisconnectedError, unless they belong to a session.
        """
        self._is_closed = True
        if not self._is_nested:
            if self._session is None:
                for future in self._futures.unfinished():
                    if future.node is not None:
                        future.cancel()
            self._loop.close(DISCONNECTED)

    def shutdown(self) -> None:
        """Shut down the scheduler and its workers, then this client.

        Raises:
            ProtectedError: The scheduler is protected, which is the default.
        """
        self._check_open()
        answer = self._loop.ask(ShutdownCluster(), ShutdownReply)
        if not answer.accepted:
            raise ProtectedError(answer.text)
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, _exception: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if type_ is None:  # the exception is more informative than the warning
            say_unfinished(self._loop)
        self.disconnect()

    # -- internals

    def _reduce_into(self, _collection: Collection, /) -> Reduced:
        """Pickle as a call that creates a client inside the task."""
        self._check_open()
        profiling, stream_output = self._options.profiling, self._options.stream_output
        return Client, (None, profiling, DEFAULT_TIMEOUT_SECONDS, self._serializer, stream_output)


def _check(timeout_seconds: object, name: object, session: object) -> None:
    seconds = timeout_seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"timeout_seconds is {seconds!r}, but must be a number above 0 and at most {MAX_SECONDS:g}")
    if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
        raise UsageError(f"name is {name!r}, but must be a string without unpaired surrogates")
    if session is not None:
        checked_label("session", session)


_shared: dict[tuple[int, str | None], Client] = {}
"""By process and address, because a forked child needs its own client."""
_shared_lock = threading.Lock()


def shared_client(address: str | None = None) -> Client:
    """Return the client that libraries in this process share for a cluster. The first call creates it."""
    if address is None and is_inside_task():
        return Client()  # clients of a processor share their connection
    key = os.getpid(), address
    with _shared_lock:
        client = _shared.get(key)
        if client is None or client._futures.closed is not None:
            client = _shared[key] = Client(address)
        return client

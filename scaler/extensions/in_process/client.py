"""`Client(processes=False)`: runs each call in the submitting thread, before `submit` returns.

Functions, arguments, and results are pickled as usual, so values that cannot be sent to a worker also fail here.
"""

from __future__ import annotations

import asyncio
import time
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import CoroutineType
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from scaler.client import tasks
from scaler.client.calls import ClientCalls
from scaler.client.connect import this_thread
from scaler.client.future import ScalerFuture, error_of
from scaler.client.futures import FutureTable, Profile
from scaler.client.loop import ClientLoop
from scaler.client.task_future import TaskFuture, load_outcome
from scaler.client.tasks import ClientCleared
from scaler.errors import ClientClosedError, ClientDisconnectedError, UsageError
from scaler.ids import IdFactory, new_peer_id
from scaler.protocol.messages import Inquiry, Reply, ShutdownCluster, ShutdownReply, is_stored, stored_reference
from scaler.serialization import Parts, Serializer, dump_value, load_function, load_value, parts_of, size_of, to_payload
from scaler.serialization.arguments import load_arguments
from scaler.serialization.exception_graph import copy_of
from scaler.worker.processor.calling import Meter, failure_of, finish

_Reply = TypeVar("_Reply", bound=Reply)
_HERE = "it runs in this process during submit"


def open_loop(address: str | None, session: str | None, timeout_seconds: float) -> ClientLoop:
    if address is not None or session is not None:
        raise UsageError("with processes=False, tasks run in this process: omit the address and the session")
    return InProcessLoop(timeout_seconds)


class InProcessTable(FutureTable):
    run_task: Callable[[TaskFuture], None]

    def add(self, futures: Sequence[TaskFuture]) -> bool:
        if self.closed is not None:
            raise ClientClosedError(self.closed)
        for future in futures:
            self.run_task(future)
        self.releases.clear()  # nothing to release here
        return True


class InProcessLoop(ClientLoop):
    def __init__(self, timeout_seconds: float) -> None:
        self.address = "this process"
        self.futures = InProcessTable(
            IdFactory(new_peer_id()),
            wake=lambda: None,
            upload=self.upload,
            blocked=nullcontext,
            why_late=lambda _future, _seconds: _HERE,
            explain=lambda _future: _HERE,
            timeout_seconds=timeout_seconds,
        )
        self.futures.run_task = self._run_task
        self.calls = ClientCalls(1)
        self._objects: WeakKeyDictionary[tasks.RemoteReference, Parts] = WeakKeyDictionary()

    @property
    def state(self) -> str:
        return self.futures.closed or "without processes"

    def explain(self, future: ScalerFuture, seconds: float = 0.0) -> str:  # noqa: ARG002 (answers at once)
        return f"it ran in this process and took {future.profiling_info().duration_s:,.6f} s"

    def ask(self, question: Inquiry, reply: type[_Reply], seconds: float = 0.0) -> _Reply:  # noqa: ARG002
        """Accept a shutdown without effect. Raises UsageError for any other question."""
        if isinstance(question, ShutdownCluster):
            return cast("_Reply", ShutdownReply(accepted=True, text=""))
        raise UsageError("a client with processes=False has no scheduler")

    def clear(self) -> None:
        with self.futures.condition:
            self.futures.check_open()
            self.futures.put(ClientCleared())
        self.futures.step()

    def close(self, why: str) -> None:
        self.futures.close(why, ClientDisconnectedError("the client was disconnected before the task ended"))

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Drop calls that flush or cancel tasks: none is pending."""

    def upload(self, parts: Parts) -> tasks.ObjectUpload:
        identifier = self.futures.ids.object()
        payload = stored_reference(identifier, size_of(parts))
        upload = tasks.ObjectUpload(identifier, self.futures.releases, payload, is_stored=True)
        self._objects[upload] = [bytes(part) for part in parts]
        return upload

    # -- tasks

    def _run_task(self, future: TaskFuture) -> None:
        template = future.template
        assert template is not None, "the future was just created"
        inputs = [each for each in future.references if isinstance(each, TaskFuture)]
        failure = next(filter(None, map(error_of, inputs)), None)
        profile: Profile = 0
        value, error = None, None
        if failure is None:
            value, error, profile = self._outcome(future, template, future.payload, future.references)
        else:
            error = copy_of(failure)
        with self.futures.condition:
            future.settle(value, error, profile)
        future._run_callbacks()
        self.calls.reports()  # clears the reports, which have no other reader

    def _outcome(
        self, future: TaskFuture, template: tasks.TaskTemplate, payload: bytes, references: Sequence[tasks.Reference]
    ) -> tuple[object, BaseException | None, Profile]:
        """Run a task. Returns its value, exception, and profile. Raises KeyboardInterrupt, and a debugger's BdbQuit."""
        serializer = template.serializer
        meter = Meter()
        began = time.perf_counter_ns()
        this_thread.tasks += 1
        code = template.functions[0]
        try:
            parts = parts_of(code.payload) if code.upload is None else self._objects[code.upload]
            function = load_function(parts, serializer)
            parts = (
                self._objects[cast("tasks.ObjectUpload", references[-1])] if is_stored(payload) else parts_of(payload)
            )
            args, kwargs = load_arguments(parts, lambda index: self._value(references[index], serializer), serializer)
            with meter if template.spec.profiling else nullcontext():
                value = _finish(function(*args, **kwargs))
            payload = to_payload(dump_value(value, serializer))
            future.keep(payload, serializer)
            value, error = load_value(parts_of(bytearray(payload)), serializer), None  # makes arrays writable
        except (KeyboardInterrupt, BdbQuit):  # meant for the program
            raise
        except BaseException as raised:  # noqa: BLE001 (whatever a task raises is its result)
            value, error = load_outcome(*failure_of(raised), serializer)
        finally:
            this_thread.tasks -= 1
        duration_us = (time.perf_counter_ns() - began) // 1000
        return value, error, (duration_us, meter.cpu_us, meter.peak_bytes) if template.spec.profiling else duration_us

    def _value(self, reference: tasks.Reference, serializer: Serializer | None) -> Any:
        if isinstance(reference, tasks.ObjectReference):
            return load_value(self._objects[reference._upload], serializer)
        return cast("TaskFuture", reference).copy()


def _finish(value: Any) -> Any:
    """Run a coroutine to completion, in another thread if this thread runs an event loop, as in notebooks."""
    if type(value) is not CoroutineType:
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return finish(value)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(finish, value).result()

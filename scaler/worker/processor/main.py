"""The processor: one process that runs user code, one task after the other, on its main thread.

It reads datagrams from its task socket and answers with results; see `frames.py`. Nothing that a task raises ends it.
It ends when the agent says so or when user code ends it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import socket
import sys
import time
import traceback
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from scaler.config.worker import WorkerConfig
from scaler.errors import ProtocolError
from scaler.ids import new_peer_id, result_id
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Role
from scaler.serialization import dump_value, load_arguments, size_of, to_payload
from scaler.worker.frames import (
    LARGE_DATAGRAM_BYTES,
    TASK,
    Descriptors,
    ToAgent,
    ToProcessor,
    unpack_announcement,
    unpack_inputs,
)
from scaler.worker.page import ANCILLARY_BYTES, PageWriter, descriptors_of, read_file
from scaler.worker.processor import context
from scaler.worker.processor.calling import failure_of, finish, run_preload
from scaler.worker.processor.capture import TeeStream, captured_output
from scaler.worker.processor.functions import FunctionCache, LoadedSpec, StoredObjects
from scaler.worker.processor.resources import GarbagePolicy, Meter

if TYPE_CHECKING:
    from scaler.object_storage.client import BlockingStorage

FLUSH_NS = 1_000_000
"""Results wait at most this long for others, unless a task runs; and not at all for a task that takes as long."""
_WEIGHT = 0.25
_NONE_PAYLOAD = pickle.dumps(None, 5)
_PICKLE = 0x80


def run_processor(descriptors: Descriptors, config: WorkerConfig) -> int:
    """Be a processor until the agent says END. Returns the exit code of the process."""
    faulthandler.enable(descriptors.crash_text, all_threads=False)
    tasks = socket.socket(fileno=descriptors.tasks)
    definitions = socket.socket(fileno=descriptors.definitions)
    results = socket.socket(fileno=descriptors.results)
    page = PageWriter(descriptors.page, results)
    os.close(descriptors.page)
    if config.preload is not None:
        try:
            run_preload(config.preload)
        except BaseException:  # noqa: BLE001 (the agent reports whatever the operator's hook raises)
            text = f"preload {config.preload} failed:\n{traceback.format_exc(limit=-20)}"
            results.send(bytes((ToAgent.FAILED,)) + text.encode("utf-8", "replace")[: LARGE_DATAGRAM_BYTES - 1])
            return 1
    try:
        results.send(bytes((ToAgent.READY,)))
        _Processor(tasks, definitions, results, page, config).loop()
    except ConnectionError:
        return 1  # the agent is gone, and its fork server ends with it
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
    return 0


def _connect(address: str) -> BlockingStorage:
    from scaler.object_storage.client import BlockingStorage  # noqa: PLC0415 (most processors never need it)

    return BlockingStorage(address, new_peer_id(), Role.WORKER)


class _Processor:
    def __init__(
        self,
        tasks: socket.socket,
        definitions: socket.socket,
        results: socket.socket,
        page: PageWriter,
        config: WorkerConfig,
    ) -> None:
        self._tasks = tasks
        self._definitions = definitions
        self._control = results
        self._results = page
        self._objects = StoredObjects(_connect)
        self._functions = FunctionCache(self._objects)
        self._context = context.ProcessorContext(results, self._results.flush)
        self._garbage = GarbagePolicy(
            config.garbage_collect_interval_seconds,
            config.trim_memory_threshold_bytes,
            self._objects.clear,
            time.monotonic_ns(),
        )
        self._poll = select.poll()
        self._poll.register(tasks, select.POLLIN)
        context.enter(self._context)
        self._printing = self._context.printing
        TeeStream.forward = self._printing.write

    def loop(self) -> None:
        """Work until the agent says END."""
        read = self._tasks.recvmsg
        task_kind = ToProcessor.TASK.value
        run = self._run
        while True:
            try:
                datagram, attached, _, _ = read(LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._results.flush()
                datagram, attached = self._wait()
            if attached:
                datagram = read_file(datagram, descriptors_of(attached))
            if not datagram or datagram[0] != task_kind:
                return
            run(datagram)

    def _wait(self) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Wait for a datagram, and tend to memory meanwhile."""
        pause = self._garbage.pause_ms(time.monotonic_ns())
        if pause is not None and not self._poll.poll(pause):
            self._garbage.idle(time.monotonic_ns())
        datagram, attached, _, _ = self._tasks.recvmsg(LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES)
        return datagram, attached

    def _learn(self, number: int) -> LoadedSpec:
        """Read announcements until this spec is known: the agent sends them before the first task that needs them."""
        specs = self._functions.specs
        while number not in specs:
            try:
                datagram, attached, _, _ = self._definitions.recvmsg(
                    LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                raise ProtocolError(f"the agent sent a task of spec {number}, which it never announced") from None
            self._take_announcement(read_file(datagram, descriptors_of(attached)) if attached else datagram)
        return specs[number]

    def _take_announcement(self, datagram: bytes) -> None:
        match ToProcessor(datagram[0]):
            case ToProcessor.SPEC:
                spec = LoadedSpec(*unpack_announcement(datagram))
                self._functions.specs[spec.number] = spec
            case ToProcessor.DEFINITION:
                self._functions.define(*unpack_announcement(datagram))
            case ToProcessor.FORGET:
                self._functions.forget(*unpack_announcement(datagram))
            case ToProcessor.STORAGE:
                (address,) = unpack_announcement(datagram)
                self._objects.move(address)
                self._context.object_storage_address = address
            case ToProcessor.TASK | ToProcessor.END | ToProcessor.LARGE as kind:
                raise ProtocolError(f"a {kind.name} datagram came on the definition socket")

    def _run(self, datagram: bytes) -> None:
        """Run one task, and add its result."""
        _, attempt, number, task, length, count = TASK.unpack_from(datagram)
        spec = self._functions.specs.get(number) or self._learn(number)
        results = self._results
        began_ns = time.monotonic_ns()
        if results.oldest_ns and (
            began_ns - results.oldest_ns >= FLUSH_NS
            or not 0 < spec.mean_ns < FLUSH_NS
            or spec.once
        ):  # fmt: skip
            results.flush()
        results.begin(began_ns)
        self._context.task_id = task
        meter = None
        try:
            if spec.profiling or spec.stream_output:
                meter = Meter()
                value = self._call_watched(meter, task, spec, datagram, length, count)
            else:
                value = self._call(spec, datagram, length, count)
            ended_ns = time.monotonic_ns()
            outcome = 0
            payload = _NONE_PAYLOAD if value is None and spec.serializer is None else b""
            if not payload:
                parts = dump_value(value, spec.serializer)
                del value
                if size_of(parts) <= INLINE_LIMIT_BYTES:
                    payload = to_payload(parts)
                else:
                    payload = self._objects.put(result_id(task, attempt), parts)
                    del parts
        except BaseException as error:  # noqa: BLE001 (whatever a task raises is its result)
            ended_ns = time.monotonic_ns()
            outcome, payload = failure_of(error, __file__, partial(self._functions.is_to_retry, spec))
        if self._printing.has_partial_line:
            self._printing.flush()
        duration_ns = ended_ns - began_ns
        mean_ns = spec.mean_ns
        spec.mean_ns = mean_ns + _WEIGHT * (duration_ns - mean_ns) if mean_ns else duration_ns
        results.add(
            (
                task,
                attempt,
                outcome,
                spec.profiling,
                min(duration_ns // 1000, 0xFFFFFFFF),
                0 if meter is None else meter.cpu_us,
                0 if meter is None else meter.peak_bytes,
                len(payload),
            ),
            payload,
            ended_ns,
        )
        if spec.once or spec.stream_output or self._context.is_suspended:
            results.flush()
        self._context.end_task()
        self._garbage.after_task(ended_ns)

    def _call_watched(
        self, meter: Meter, task: bytes, spec: LoadedSpec, datagram: bytes, length: int, count: int
    ) -> Any:
        """Call under a meter and with captured output, as the spec asks."""
        try:
            with contextlib.ExitStack() as stack:
                if spec.stream_output:
                    stack.enter_context(captured_output(self._control, task))
                    self._printing.is_captured = True
                if spec.profiling:
                    stack.enter_context(meter)
                return self._call(spec, datagram, length, count)
        finally:
            self._printing.is_captured = False

    def _call(self, spec: LoadedSpec, datagram: bytes, length: int, count: int) -> Any:
        function = spec.function
        if function is None:
            function = self._functions.load(spec)
        payload = memoryview(datagram)[TASK.size : TASK.size + length]
        if not count and spec.serializer is None and length and payload[0] == _PICKLE:
            # The common case without detours: no references, and the arguments are one pickle.
            try:
                arguments = pickle.loads(payload)  # noqa: S301 (running users' code is what a processor is for)
            except Exception:  # noqa: BLE001 (the slow way does the same, and knows how to report it)
                arguments = None
            if type(arguments) is tuple:
                result = function(*arguments)
                return finish(result) if type(result) is CoroutineType else result
        inputs = self._functions.inputs(unpack_inputs(datagram, TASK.size + length, count), spec.serializer)
        args, kwargs = load_arguments(self._objects.parts(payload, is_own=True), inputs, spec.serializer)
        return finish(function(*args, **kwargs))

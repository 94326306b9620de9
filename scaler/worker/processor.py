"""The processor: one process that runs user code, one task after the other, on its main thread.

It reads datagrams from its task socket and answers with results; see `frames.py`. Nothing that a task raises ends it.
It ends when the agent says so or when user code ends it.
"""

from __future__ import annotations

import array
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
from typing import Any

from scaler.errors import ProtocolError
from scaler.ids import new_peer_id, result_id
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Role
from scaler.serialization import dump_value, load_arguments, size_of, to_payload
from scaler.worker import context
from scaler.worker.capture import CapturedOutput, Meter
from scaler.worker.coroutines import finish
from scaler.worker.failures import failure_of
from scaler.worker.frames import (
    LARGE_DATAGRAM_BYTES,
    MAX_ATTACHED_FDS,
    TASK,
    ToAgent,
    ToProcessor,
    unpack_definition,
    unpack_forget,
    unpack_inputs,
    unpack_large,
    unpack_spec,
)
from scaler.worker.nursery import Descriptors, ProcessorSettings
from scaler.worker.page import PageWriter
from scaler.worker.printing import ToldStream
from scaler.worker.results import ResultWriter
from scaler.worker.upkeep import Upkeep
from scaler.worker.values import Objects, Prepared, Shelf, Storage
from scaler.worker.warm_up import run_preload

FLUSH_NS = 1_000_000
"""Results wait at most so long for others, unless a task runs; and not at all for a task that takes as long."""
_WEIGHT = 0.25
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_ATTACHED_FDS * array.array("i").itemsize)
_NONE_PAYLOAD = pickle.dumps(None, 5)
_PICKLE = 0x80


def run_processor(descriptors: Descriptors, settings: ProcessorSettings) -> int:
    """Be a processor until the agent says END. Returns the exit code of the process."""
    faulthandler.enable(descriptors.words, all_threads=False)
    tasks = socket.socket(fileno=descriptors.tasks)
    definitions = socket.socket(fileno=descriptors.definitions)
    results = socket.socket(fileno=descriptors.results)
    page = PageWriter(descriptors.page)
    os.close(descriptors.page)
    if settings.preload is not None:
        try:
            run_preload(settings.preload)
        except BaseException:  # noqa: BLE001 (whatever the operator's hook raises is what the agent must say)
            text = f"preload {settings.preload} failed:\n{traceback.format_exc(limit=-20)}"
            results.send(bytes((ToAgent.FAILED,)) + text.encode("utf-8", "replace")[: LARGE_DATAGRAM_BYTES - 1])
            return 1
    try:
        results.send(bytes((ToAgent.READY,)))
        _Processor(tasks, definitions, results, page, settings).loop()
    except ConnectionError:
        return 1  # the agent is gone, and nobody is left to be told
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
    return 0


def _connect(address: str) -> Storage:
    from scaler.object_storage.client import BlockingStorage  # noqa: PLC0415 (most processors never need it)

    storage: Storage = BlockingStorage(address, new_peer_id(), Role.WORKER)
    return storage


class _Processor:
    def __init__(
        self,
        tasks: socket.socket,
        definitions: socket.socket,
        results: socket.socket,
        page: PageWriter,
        settings: ProcessorSettings,
    ) -> None:
        self._tasks = tasks
        self._definitions = definitions
        self._control = results
        self._page = page
        self._results = ResultWriter(page, results)
        self._objects = Objects(_connect)
        self._shelf = Shelf(self._objects)
        self._context = context.ProcessorContext(results, self._results)
        self._upkeep = Upkeep(
            settings.garbage_collect_interval_seconds,
            settings.trim_memory_threshold_bytes,
            self._objects.clear,
            time.monotonic_ns(),
        )
        self._poll = select.poll()
        self._poll.register(tasks, select.POLLIN)
        context.enter(self._context)
        self._printing = self._context.printing
        ToldStream.tell_text = self._printing.tell

    def loop(self) -> None:
        """Work until the agent says END."""
        read = self._tasks.recvmsg
        task_kind = ToProcessor.TASK.value
        run = self._run
        while True:
            try:
                datagram, attached, _, _ = read(LARGE_DATAGRAM_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._results.flush()
                datagram, attached = self._wait()
            if attached:
                datagram = _read_large(datagram, attached)
            if not datagram or datagram[0] != task_kind:
                return
            run(datagram)

    def _wait(self) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Wait for a datagram, and look after memory meanwhile."""
        pause = self._upkeep.pause_ms(time.monotonic_ns())
        if pause is not None and not self._poll.poll(pause):
            self._upkeep.idle(time.monotonic_ns())
        datagram, attached, _, _ = self._tasks.recvmsg(LARGE_DATAGRAM_BYTES, _ANCILLARY_BYTES)
        return datagram, attached

    def _learn(self, number: int) -> Prepared:
        """Read definitions until this spec is known: the agent says everything before the first task that needs it."""
        specs = self._shelf.specs
        while number not in specs:
            try:
                datagram, attached, _, _ = self._definitions.recvmsg(
                    LARGE_DATAGRAM_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                raise ProtocolError(f"the agent sent a task of spec {number}, which it never described") from None
            self._told(_read_large(datagram, attached) if attached else datagram)
        return specs[number]

    def _told(self, datagram: bytes) -> None:
        match ToProcessor(datagram[0]):
            case ToProcessor.SPEC:
                self._shelf.add(unpack_spec(datagram))
            case ToProcessor.DEFINITION:
                self._shelf.define(*unpack_definition(datagram))
            case ToProcessor.FORGET:
                self._shelf.forget(*unpack_forget(datagram))
            case ToProcessor.STORAGE:
                address = datagram[1:].decode()
                self._objects.move(address)
                self._context.object_storage_address = address
            case ToProcessor.TASK | ToProcessor.END | ToProcessor.LARGE as kind:
                raise ProtocolError(f"a {kind.name} datagram came on the definition socket")

    def _run(self, datagram: bytes) -> None:
        """Run one task, and add its result."""
        _, attempt, number, task, length, count = TASK.unpack_from(datagram)
        prepared = self._shelf.specs.get(number) or self._learn(number)
        results = self._results
        began_ns = time.monotonic_ns()
        if results.oldest_ns and (
            began_ns - results.oldest_ns >= FLUSH_NS
            or not 0 < prepared.mean_ns < FLUSH_NS
            or prepared.once
        ):  # fmt: skip
            results.flush()
        self._page.begin(began_ns)
        self._context.begin_task(task)
        meter = None
        try:
            if prepared.profiling or prepared.stream_output:
                meter = Meter()
                value = self._call_watched(meter, task, prepared, datagram, length, count)
            else:
                value = self._call(prepared, datagram, length, count)
            ended_ns = time.monotonic_ns()
            outcome = 0
            payload = _NONE_PAYLOAD if value is None and prepared.serializer is None else b""
            if not payload:
                parts = dump_value(value, prepared.serializer)
                del value
                if size_of(parts) <= INLINE_LIMIT_BYTES:
                    payload = to_payload(parts)
                else:
                    payload = self._objects.put(result_id(task, attempt), parts)
                    del parts
        except BaseException as error:  # noqa: BLE001 (whatever a task raises is its result)
            ended_ns = time.monotonic_ns()
            outcome, payload = failure_of(error, partial(self._shelf.is_to_retry, prepared), __file__)
        if self._printing.holds:
            self._printing.flush()
        duration_ns = ended_ns - began_ns
        mean_ns = prepared.mean_ns
        prepared.mean_ns = mean_ns + _WEIGHT * (duration_ns - mean_ns) if mean_ns else duration_ns
        results.add(
            (
                task,
                attempt,
                outcome,
                prepared.profiling,
                min(duration_ns // 1000, 0xFFFFFFFF),
                0 if meter is None else meter.cpu_us,
                0 if meter is None else meter.peak_bytes,
                len(payload),
            ),
            payload,
            ended_ns,
        )
        if prepared.once or prepared.stream_output or self._context.is_suspended:
            results.flush()
        self._context.end_task()
        self._upkeep.after_task(ended_ns)

    def _call_watched(
        self, meter: Meter, task: bytes, prepared: Prepared, datagram: bytes, length: int, count: int
    ) -> Any:
        """Call with what profiling and stream_output ask for."""
        try:
            with contextlib.ExitStack() as stack:
                if prepared.stream_output:
                    stack.enter_context(CapturedOutput(self._control, task))
                    self._printing.is_captured = True
                if prepared.profiling:
                    stack.enter_context(meter)
                return self._call(prepared, datagram, length, count)
        finally:
            self._printing.is_captured = False

    def _call(self, prepared: Prepared, datagram: bytes, length: int, count: int) -> Any:
        function = prepared.function
        if function is None:
            function = self._shelf.prepare(prepared)
        payload = memoryview(datagram)[TASK.size : TASK.size + length]
        if not count and prepared.serializer is None and length and payload[0] == _PICKLE:
            # The common case without detours: no references, and the arguments are one pickle.
            try:
                arguments = pickle.loads(payload)  # noqa: S301 (running users' code is what a processor is for)
            except Exception:  # noqa: BLE001 (the slow way does the same, and knows how to report it)
                arguments = None
            if type(arguments) is tuple:
                return finish(function(*arguments))
        inputs = self._shelf.inputs(unpack_inputs(datagram, TASK.size + length, count), prepared.serializer)
        args, kwargs = load_arguments(self._objects.parts(payload, is_own=True), inputs, prepared.serializer)
        return finish(function(*args, **kwargs))


def _read_large(datagram: bytes, attached: list[tuple[int, int, bytes]]) -> bytes:
    """Read the memory file that came with a LARGE datagram."""
    descriptors = array.array("i")
    for _, _, data in attached:
        descriptors.frombytes(data)
    size = unpack_large(datagram)
    try:
        whole = os.pread(descriptors[0], size, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if len(whole) != size:
        raise ProtocolError("a memory file is shorter than announced")
    return whole

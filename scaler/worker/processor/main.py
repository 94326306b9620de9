"""The processor: runs user code, one task at a time, on its main thread. Reads datagrams from its task socket and
sends results; see `frames.py`. Task exceptions do not end the process."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.errors import ProtocolError
from scaler.ids import result_id
from scaler.processes import give_memory_back
from scaler.protocol.messages import INLINE_LIMIT_BYTES
from scaler.serialization import ATOMS, Buffer, ManyCalls, Parts, dump_value, load_value, size_of, to_payload
from scaler.serialization.arguments import load_arguments
from scaler.serialization.snapshot import loading
from scaler.worker.frames import Descriptors, Note, PageWriter, ToAgent, ToProcessor, pack_note, receive, send, unpack
from scaler.worker.processor import context
from scaler.worker.processor.calling import Meter, failure_of, finish, run_preload
from scaler.worker.processor.capture import PrintForwarder, TeedStreams, captured_output
from scaler.worker.processor.functions import FunctionCache, LoadedSpec, StoreConnection, StoredObjects

FLUSH_NS = 1_000_000
"""Maximum time that results are batched while no task runs. Results are sent before a longer task."""
MAX_RECORD_CHARACTERS = 2_000
CHECK_NS = 100_000_000
"""Minimum interval between checks of resident memory."""
COLLECT_NS = 30_000_000_000
"""Interval between garbage collections."""
TRIM_BYTES = 1024**3
"""Resident memory above which free memory is returned to the system."""
_WEIGHT = 0.25
_ZEROS = (0, 0)
_PICKLE = 0x80
_UNMEASURED = Meter()
_STATM = Path("/proc/self/statm")
Connect = Callable[[WorkerConfig, str, bool], StoreConnection]
ShowRecords = Callable[[WorkerConfig, Callable[[], bytes], Callable[[str, str, str], None]], None]
StartPart = Callable[[context.ProcessorContext, Callable[[Note], None]], object]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def run_processor(
    descriptors: Descriptors,
    config: WorkerConfig,
    connect: Connect,
    show_records: ShowRecords,
    parts: Iterable[StartPart],
) -> int:
    """Run a processor until the agent closes the task socket. Returns the exit code. connect: connects to a store,
    possibly the host's. show_records: shows the log records of tasks. parts: parts of extensions; see
    `scaler.plugins.Extension`."""
    faulthandler.enable(descriptors.crash_text, all_threads=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed processor loses buffered output
    results = socket.socket(fileno=descriptors.results)
    page = PageWriter(descriptors.page, results)
    os.close(descriptors.page)
    show_records(config, context.running_task, partial(_report_record, results))
    if config.preload is not None:
        try:
            run_preload(config.preload)
        except BaseException:  # noqa: BLE001 (the agent reports any error of the hook)
            text = f"preload {config.preload} failed:\n{traceback.format_exc(limit=-20)}"
            os.write(descriptors.crash_text, text.encode("utf-8", "replace"))
            return 1
    try:
        results.send(pack_note(Note(ToAgent.READY)))
        processor = _Processor(descriptors, results, page, config, partial(connect, config))
        for start in parts:
            start(processor.context, partial(_offer, results))
        processor.loop()
        for end in processor.context.on_end:
            end()
    except ConnectionError:
        return 1  # the agent is dead, and its fork server dies with it
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
    return 0


def _offer(control: socket.socket, note: Note) -> None:
    """Send a note unless the agent is busy or dead, so that the task never waits."""
    with contextlib.suppress(OSError):
        send(control, pack_note(note), socket.MSG_DONTWAIT)


def _report_record(control: socket.socket, *level_name_and_message: str) -> None:
    text = "\n".join(level_name_and_message)[:MAX_RECORD_CHARACTERS]
    _offer(control, Note(ToAgent.LOGGED, text.encode("utf-8", "replace")))


class GarbagePolicy:
    """Collects garbage periodically, and returns large amounts of free memory to the system."""

    def __init__(self, free: Callable[[], None], now_ns: int) -> None:
        """free: drops caches."""
        self._free = free
        self._collected_ns = self.checked_ns = now_ns
        self._trim_above = 0
        self.pause_ns: int | None = None
        """Idle time before the next call of `idle`; None: no call before the next task."""

    def idle(self, now_ns: int) -> None:
        """Collect garbage, and return memory that no task needs."""
        self._trim()
        self._collected_ns = now_ns
        self.pause_ns = None

    def check(self, now_ns: int) -> None:
        self.checked_ns = now_ns
        if now_ns - self._collected_ns >= COLLECT_NS:
            self._collected_ns = now_ns
            gc.collect()
        resident = resident_bytes()
        # Trim again only after further growth, because trimming cannot free memory that is in use.
        if resident > max(TRIM_BYTES, self._trim_above):
            self._trim()
            self._trim_above = resident_bytes() + TRIM_BYTES // 8
        elif resident < TRIM_BYTES:
            self._trim_above = 0

    def _trim(self) -> None:
        self._free()
        gc.collect()
        give_memory_back()


def resident_bytes() -> int:
    return int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES


def _calls_of(error: BaseException) -> tuple[int, int]:
    return error.calls if isinstance(error, ManyCalls) else _ZEROS


def _must_flush(oldest_ns: int, spec: LoadedSpec, now_ns: int) -> bool:
    return spec.once or not 0 < spec.mean_ns < FLUSH_NS or now_ns - oldest_ns >= FLUSH_NS


class _Processor:
    def __init__(
        self,
        descriptors: Descriptors,
        control: socket.socket,
        results: PageWriter,
        config: WorkerConfig,
        connect: Callable[[str, bool], StoreConnection],
    ) -> None:
        self._tasks = socket.socket(fileno=descriptors.tasks)
        self._definitions = socket.socket(fileno=descriptors.definitions)
        self._control = control
        self._results = results
        self.context = context.ProcessorContext(control, results.flush, config)
        context.enter(self.context)
        self._objects = StoredObjects(connect, self.context.report_wait, self._read_all)
        self._functions = FunctionCache(self._objects, self._report_differences, self.context.wrappers)
        self.context.uploaded_code = self._functions.uploaded_code
        self._announcements: dict[int, Callable[..., None]] = {
            ToProcessor.SPEC: self._functions.add_spec,
            ToProcessor.DEFINITION: self._functions.definitions.__setitem__,
            ToProcessor.FORGET: self._functions.forget,
            ToProcessor.STORAGE: self._use_storage,
        }
        self._garbage = GarbagePolicy(self._drop_caches, time.monotonic_ns())
        self._poll = select.poll()
        self._poll.register(self._tasks, select.POLLIN)
        self._printing = PrintForwarder(lambda: self.context.task_id, control.send)
        self._tee = TeedStreams(self._printing.write)
        self.context.tee = self._tee.add
        self._is_spoilt = False
        """A task has changed this process, which must not run another task."""

    def loop(self) -> None:
        tasks = self._tasks
        run = self._run
        with self._tee:
            while not self._is_spoilt:
                try:
                    datagram, _ = receive(tasks, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._results.flush()
                    while (pause_ns := self._garbage.pause_ns) is not None and not self._poll.poll(pause_ns / 1e6):
                        self._garbage.idle(time.monotonic_ns())
                    datagram, _ = receive(tasks)
                if not datagram:
                    return
                values = unpack(datagram)
                if values[0] == ToProcessor.TASK:
                    run(values)
                else:
                    os.environ["CUDA_VISIBLE_DEVICES"] = values[-1]  # restored after the task
                    run(values[:-1])
            self._results.flush()

    def _learn(self, number: int) -> LoadedSpec:
        specs = self._functions.specs
        while number not in specs:  # announced before the first task of the spec
            if not self._read_announcement():
                raise ProtocolError(f"the agent sent a task of spec {number}, which it never announced")
        return specs[number]

    def _undo(self, error: BaseException | None) -> None:
        text = self.context.state.undo(error)
        self._is_spoilt = True
        self._control.send(pack_note(Note(ToAgent.WORN, text.encode())))

    def _read_announcement(self) -> bool:
        try:
            datagram, _ = receive(self._definitions, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        kind, *values = unpack(datagram)
        self._announcements[kind](*values)
        return True

    def _read_all(self) -> None:
        while self._read_announcement():
            pass

    def _drop_caches(self) -> None:
        self._read_all()  # includes forget messages
        self._objects.clear()

    def _report_differences(self, function: str, text: str) -> None:
        note = f"{function}\n{text}".encode("utf-8", "replace")
        self._control.send(pack_note(Note(ToAgent.PACKAGES_DIFFER, note, self.context.task_id)))

    def _use_storage(self, store_address: str, object_storage_address: str) -> None:
        self._objects.move(store_address, is_host_store=store_address != object_storage_address)
        self.context.object_storage_address = object_storage_address  # for clients in tasks

    def _run(self, values: tuple[Any, ...]) -> None:  # noqa: PLR0915 (more calls would cost each task)
        """Run the task of a TASK datagram and add its result."""
        _, attempt, number, task, arguments, inputs = values
        spec = self._functions.specs.get(number) or self._learn(number)
        results, context, garbage = self._results, self.context, self._garbage
        state = context.state
        began_ns = time.monotonic_ns()
        if results.oldest_ns and _must_flush(results.oldest_ns, spec, began_ns):
            results.flush()
        results.begin(began_ns)
        context.function = spec.name
        context.task_id = task
        while context.on_task:
            context.on_task.pop()()
        meter = _UNMEASURED
        try:
            if spec.is_observed:
                meter = Meter()
                value = self._call_observed(spec, task, arguments, inputs, meter)
            else:
                value = self._call(spec, arguments, inputs)
            ended_ns = time.monotonic_ns()
            if state.is_spoilt:
                self._undo(None)
            outcome = 0
            calls = value.calls if isinstance(value, ManyCalls) else _ZEROS
            is_plain = type(value) in ATOMS and spec.serializer is None
            parts: Parts = [pickle.dumps(value, 5)] if is_plain else dump_value(value, spec.serializer)
            del value
            payload = self._payload_of(spec, task, attempt, parts)
            del parts
        except BaseException as error:  # noqa: BLE001 (any exception of a task is its result)
            ended_ns = time.monotonic_ns()
            if state.is_spoilt:
                self._undo(error)
            outcome, payload = failure_of(error, spec.is_to_retry)
            calls = _calls_of(error)
        if self._has_changed(state):
            state.restore()
        if self._printing.has_partial_line:
            self._printing.flush()
        duration_ns, mean_ns = ended_ns - began_ns, spec.mean_ns
        spec.mean_ns = mean_ns + _WEIGHT * (duration_ns - mean_ns) if mean_ns else duration_ns
        costs = spec.profiling, duration_ns // 1000, meter.cpu_us, meter.peak_bytes
        got = self._objects.take_costs() if self._objects.got_ns else _ZEROS
        results.add((task, attempt, outcome, *costs, began_ns, *got, *calls, len(payload)), payload, ended_ns)
        if spec.is_sent_at_once or context.is_suspended:
            results.flush()
        context.task_id = b""
        if context.has_waited:
            context.end_waits()
        garbage.pause_ns = COLLECT_NS
        if ended_ns - garbage.checked_ns >= CHECK_NS:
            garbage.check(ended_ns)

    def _payload_of(self, spec: LoadedSpec, task: bytes, attempt: int, parts: Parts) -> Buffer:
        if len(parts) == 1 and len(parts[0]) <= INLINE_LIMIT_BYTES and spec.serializer is None:
            return parts[0]  # a pickle is its own payload
        is_small = size_of(parts) <= INLINE_LIMIT_BYTES
        return to_payload(parts) if is_small else self._objects.put(result_id(task, attempt), parts)

    def _has_changed(self, state: context.ProcessState) -> bool:
        stdin, stdout, stderr = state.streams
        is_same = sys.stdout is stdout and sys.stderr is stderr and sys.stdin is stdin
        return state.is_changed or not is_same or stdout.closed or stderr.closed

    def _call_observed(
        self, spec: LoadedSpec, task: bytes, arguments: bytes, inputs: Sequence[bytes], meter: Meter
    ) -> Any:
        with (
            captured_output(self._printing, self._control, task) if spec.stream_output else contextlib.nullcontext(),
            meter if spec.profiling else contextlib.nullcontext(),
        ):
            return self._call(spec, arguments, inputs)

    def _call(self, spec: LoadedSpec, arguments: bytes, inputs: Sequence[bytes]) -> Any:
        loading.number += 1
        loading.is_active = True
        try:
            function = self._functions.load(spec) if spec.function is None else spec.function.get()
            args: Any = None
            kwargs: dict[str, Any] = {}
            if not inputs and spec.serializer is None and arguments and arguments[0] == _PICKLE:
                # Fast path: no references, and the arguments are a single pickle.
                try:
                    args = pickle.loads(arguments)  # noqa: S301 (processors run user code)
                except Exception:  # noqa: BLE001 (the slow way does the same, and knows how to report it)
                    args = None
            if type(args) is not tuple:
                args, kwargs = self._load_arguments(spec, arguments, inputs)
        finally:
            loading.is_active = False
        result = function(*args, **kwargs)
        return finish(result) if type(result) is CoroutineType else result

    def _load_arguments(
        self, spec: LoadedSpec, arguments: bytes, inputs: Sequence[bytes]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def value(index: int) -> Any:
            payload = inputs[index]
            if spec.serializer is None and payload and payload[0] == _PICKLE:  # fast path, as above
                with contextlib.suppress(Exception):
                    return pickle.loads(payload)  # noqa: S301 (see above)
            return load_value(self._objects.parts(payload), spec.serializer, f"input {index}")

        return load_arguments(self._objects.parts(arguments, is_own=True), value, spec.serializer)


FRAMES_BELOW_TASK = frozenset({_Processor._run.__code__, _Processor._call.__code__})  # noqa: SLF001
"""Code below the user's function on a processor's stack."""

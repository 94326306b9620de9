"""Executors for testing offload agents, in memory and in processes on this machine.

`python -m scaler.testing.executors` is the remote end of `ProcessExecutor`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from scaler.offload.call import Call, CallFailed, CallFinished, CallKey, CallStarted, ExecutorError, Report, pack_call
from scaler.offload.job import run_call
from scaler.processes import describe_exit
from scaler.protocol.messages import Outcome
from scaler.testing.soamapi.instance import start_connected
from scaler.worker.processor import context
from scaler.worker_manager.offload import OffloadConfig

CONNECTION_VARIABLE = "SCALER_TESTING_EXECUTOR_FD"


class MemoryExecutor:
    """An `Executor` that keeps calls until a test decides their fate. Thread-safe."""

    def __init__(self) -> None:
        self.report: Callable[[Report], None] = lambda _: None
        self.batches: list[list[CallKey]] = []
        """The keys of every `run`."""
        self.cancelled: list[CallKey] = []
        self.refusals: deque[ExecutorError] = deque()
        """Errors of the next calls of `run`. The executor still runs the calls that an error lists as accepted."""
        self.start_error: BaseException | None = None
        self.gate = threading.Event()
        """`run` blocks unless this event is set."""
        self.gate.set()
        self.is_started = False
        self.is_closed = False
        self.calls: dict[CallKey, Call] = {}
        self._changed = threading.Condition()

    def start(self, report: Callable[[Report], None]) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.report = report
        self.is_started = True

    def run(self, calls: Sequence[Call]) -> None:
        with self._changed:
            self.batches.append([call.key for call in calls])
            self._changed.notify_all()
        self.gate.wait()
        error = self.refusals.popleft() if self.refusals else None
        with self._changed:
            for call in calls:
                if error is None or call.key in error.taken:
                    self.calls[call.key] = call
            self._changed.notify_all()
        if error is not None:
            raise error

    def cancel(self, keys: Sequence[CallKey]) -> None:
        with self._changed:
            self.cancelled.extend(keys)
            for key in keys:
                self.calls.pop(key, None)
            self._changed.notify_all()

    def close(self) -> None:
        self.is_closed = True

    def finish(self, key: CallKey) -> bytes:
        """Run a call in this thread, report the result, and return it."""
        refusal = context.refusal
        data = run_call(pack_call(self.calls.pop(key)))
        context.refusal = refusal  # a job ends with its call, but this process continues
        self.report(CallFinished(*key, data))
        return data

    def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait for a condition that `run` or `cancel` changes. Raises AssertionError after `seconds`."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), "the condition was not met"


class ProcessExecutor:
    """An `Executor` that runs calls in processes of this machine, one call at a time in each.

    Settings: `processes` is the number of processes, and `refusals` is the number of initial calls of `run` that are
    refused. Cancelling a call kills its process.
    """

    def __init__(self, config: OffloadConfig) -> None:
        count = config.executor_settings.get("processes", 1)
        refusals = config.executor_settings.get("refusals", 0)
        assert isinstance(count, int)
        assert isinstance(refusals, int)
        self._refusals = refusals
        self._count = count
        self._changed = threading.Condition()
        self._calls: dict[CallKey, Call] = {}
        self._running: dict[CallKey, subprocess.Popen[bytes]] = {}
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def start(self, report: Callable[[Report], None]) -> None:
        self._threads = [threading.Thread(target=self._work, args=(report,)) for _ in range(self._count)]
        for thread in self._threads:
            thread.start()

    def run(self, calls: Sequence[Call]) -> None:
        if self._refusals:
            self._refusals -= 1
            raise ExecutorError("the service is busy")
        with self._changed:
            self._calls.update((call.key, call) for call in calls)
            self._changed.notify_all()

    def cancel(self, keys: Sequence[CallKey]) -> None:
        with self._changed:
            for key in keys:
                self._calls.pop(key, None)
                if key in self._running:
                    self._running.pop(key).kill()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._calls.clear()
            for process in self._running.values():
                process.kill()
            self._running.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, report: Callable[[Report], None]) -> None:
        """Thread target: run calls in successive processes."""
        with contextlib.ExitStack() as cleanup:
            process: _CallProcess | None = None
            while (call := self._next()) is not None:
                process = process or cleanup.enter_context(_CallProcess())
                with self._changed:
                    if self._is_closed:
                        return
                    self._running[call.key] = process.process
                report(CallStarted(*call.key))
                answer = process.ask(pack_call(call))
                with self._changed:
                    is_awaited = self._running.pop(call.key, None) is not None
                if answer is not None:
                    report(CallFinished(*call.key, answer))
                    continue
                how = describe_exit(process.process.wait())
                process = None
                if is_awaited:
                    report(CallFailed(*call.key, Outcome.PROCESSOR_DIED, f"the job's process died: {how}"))

    def _next(self) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_closed)
            return None if self._is_closed else self._calls.pop(next(iter(self._calls)))


class _CallProcess(contextlib.AbstractContextManager["_CallProcess"]):
    """A process that runs packed calls, one at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "scaler.testing.executors"]
        self.process, self._connection = start_connected(command, CONNECTION_VARIABLE)

    def ask(self, data: bytes) -> bytes | None:
        """Run a packed call. Return None if the process died."""
        with contextlib.suppress(EOFError, ConnectionError):
            self._connection.send_bytes(data)
            return self._connection.recv_bytes()
        return None

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._connection.close()


if __name__ == "__main__":
    # Run calls from the inherited connection until the other end closes.
    with Connection(int(os.environ.pop(CONNECTION_VARIABLE))) as calls, contextlib.suppress(EOFError):
        while True:
            calls.send_bytes(run_call(calls.recv_bytes()))

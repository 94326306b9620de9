"""A task's stdout and stderr on their way to its client, and what a task costs."""

from __future__ import annotations

import array
import contextlib
import io
import os
import resource
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

from scaler.worker.frames import pack_output

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"
MAX_OUTPUT_BYTES = 1024 * 1024
"""Of each stream of a task, so much is passed on; the rest is read and dropped."""


class CapturedOutput:
    """While in this context, what the process writes to descriptors 1 and 2 goes to the agent, as this task's.

    The reading ends of two pipes go to the agent. It reads them until they are closed, so what a child process of the
    task writes later still arrives, and a pipe that is full makes the task wait: nothing is kept here.
    """

    def __init__(self, control: socket.socket, task_id: bytes) -> None:
        self._control = control
        self._task_id = task_id
        self._kept: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        flush_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        readers = array.array("i", [reader for reader, _ in ends])
        self._control.sendmsg([pack_output(self._task_id)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, readers)])
        for descriptor, (reader, writer) in zip((1, 2), ends, strict=True):
            self._kept.append((os.dup(descriptor), descriptor))
            os.dup2(writer, descriptor)
            os.close(writer)
            os.close(reader)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flush_streams()
        for kept, descriptor in self._kept:
            os.dup2(kept, descriptor)
            os.close(kept)


class Meter:
    """While in this context, measures CPU time and the peak of resident memory of this process."""

    cpu_us = 0
    peak_bytes = 0

    def __enter__(self) -> Meter:
        self._resets = _reset_peak()
        self._cpu_ns = time.process_time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cpu_us = (time.process_time_ns() - self._cpu_ns) // 1000
        self.peak_bytes = _peak_bytes(self._resets)


def _reset_peak() -> bool:
    """Have the kernel measure the peak from now on; False where that is not allowed."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, "ascii")
    except OSError:
        return False
    return True


def _peak_bytes(was_reset: bool) -> int:
    if was_reset:
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flush_streams() -> None:
    """Have what the interpreter holds back of its output written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # user code may have replaced or closed it
            stream.flush()

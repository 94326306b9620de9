"""Samples a processor's main thread about ten times a second while a task runs. A sample's weight is the time since
the previous one, so a C call that holds the GIL is fully charged to its Python frame."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` creates an enumeration member for each signal
import _thread
import contextlib
import gc
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

from scaler.stack_profile import LEFT_OUT, StackProfile, label, short_file, within_depth
from scaler.worker.frames import Note, ToAgent
from scaler.worker.processor.context import ProcessorContext
from scaler.worker.processor.main import FRAMES_BELOW_TASK

FIRST_REPORT_SECONDS = 1.0
LAST_REPORT_SECONDS = 5.0
"""First and longest pause between reports while tasks run. The pause doubles after each report."""
LONG_TASK_US = 2_000_000
"""Minimum duration of a task whose samples are reported separately from its function's."""
ASLEEP_AFTER_SECONDS = 0.5
"""Idle time after which the thread sleeps until the next task."""
LAST_WAIT_REPORT_SECONDS = 80.0
"""Longest pause between reports of a task that waits for other tasks. A host may have a thousand such tasks."""
MAX_WALKED = 500
SWITCH_SECONDS = 0.0001
"""Switch interval while the task has a single thread. With Python's default of 5 ms, calls that release the GIL
(such as reading a file) would be charged to the code before them."""
NO_FRAME = "scaler (arguments and result)"
"""Label for time during which no user function runs."""

_OWN_THREADS = 1
_RawStack = tuple[tuple[CodeType, int], ...]
_Counts = dict[_RawStack, list[int]]


def sample_tasks(context: ProcessorContext, send: Callable[[Note], None]) -> None:
    """Start sampling the calling thread, unless the interval is 0."""
    if context.config.profile_interval_seconds:
        sampler = Sampler(context, send)
        context.on_resume.append(sampler.wake)
        _thread.start_new_thread(sampler.run, ())


class Sampler:
    """Samples the thread that created this object, from a thread that is invisible to `threading`."""

    def __init__(self, context: ProcessorContext, send: Callable[[Note], None]) -> None:
        self._interval_seconds = context.config.profile_interval_seconds
        self._context = context
        self._send = send
        self._main = threading.get_ident()
        self._is_asleep = False
        """The thread waits for `_awake`, which the next task releases."""
        self._awake = _thread.allocate_lock()
        self._awake.acquire()
        self._switch_seconds = sys.getswitchinterval()
        self._task = b""
        self._function = ""
        self._of_task: _Counts = {}
        self._is_long = False
        """Some samples of this task were reported separately, so the remaining samples are also reported separately."""
        self._of_functions: dict[str, tuple[bytes, _Counts]] = {}

    def run(self) -> None:
        # Signals to the process must interrupt the main thread.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        self._set_switching(_OWN_THREADS)
        context = self._context
        pause = FIRST_REPORT_SECONDS
        before = busy_at = time.monotonic()
        report_at = before + pause
        while True:
            time.sleep(self._interval_seconds * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
            now = time.monotonic()
            last_pause = LAST_REPORT_SECONDS
            if context.task_id:
                counted = self._sample(int((now - before) * 1e6))
                if counted is not None and context.is_suspended:
                    last_pause = LAST_WAIT_REPORT_SECONDS
                    pause = max(pause, LAST_REPORT_SECONDS)
                    self._is_asleep = True  # before reading is_suspended: `wake` is called after it is cleared
                    if context.is_suspended:
                        self._awake.acquire(timeout=max(report_at - now, LAST_REPORT_SECONDS))
                    self._is_asleep = False
                    began, now = now, time.monotonic()
                    counted[0] += int((now - began) * 1e6)
                busy_at = now
            elif now - busy_at > ASLEEP_AFTER_SECONDS:
                self._report(is_idle=True)
                self._is_asleep = True
                context.on_task.append(self.wake)  # before reading task_id: the next task sets task_id first
                if not context.task_id or not self._is_asleep:
                    self._awake.acquire()
                self._is_asleep = False
                now = busy_at = time.monotonic()
                pause = FIRST_REPORT_SECONDS
                report_at = now + pause
            if now >= report_at:
                self._report()
                pause = min(2 * pause, last_pause)
                report_at = now + pause
            before = now

    def wake(self) -> None:
        if not self._is_asleep:
            return
        self._is_asleep = False
        with contextlib.suppress(RuntimeError):  # not locked if a late wakeup of an earlier sleep has released it
            self._awake.release()

    def _sample(self, microseconds: int) -> list[int] | None:
        """Add a sample of the running task. Returns the microseconds and sample count of its stack."""
        frame = main_frame(self._main)
        self._set_switching(_thread._count())  # noqa: SLF001 (`threading` does not know this thread)
        task, function = self._context.task_id, self._context.function
        if frame is None or not task:
            return None
        stack: list[tuple[CodeType, int]] = []
        current: FrameType | None = frame
        while current is not None and len(stack) < MAX_WALKED:
            code = current.f_code
            if code in FRAMES_BELOW_TASK:
                break
            stack.append((code, current.f_lineno or 0))
            current = current.f_back
        del frame, current  # the frames keep the task's variables alive
        if task != self._task:
            self._leave_task()
            self._task, self._function = task, function
        counted = self._of_task.setdefault(tuple(stack), [0, 0])
        counted[0] += microseconds
        counted[1] += 1
        return counted

    def _set_switching(self, threads: int) -> None:
        """Use a short switch interval, or the task's own while it has several threads."""
        present = sys.getswitchinterval()
        if abs(present - SWITCH_SECONDS) > SWITCH_SECONDS / 2:
            self._switch_seconds = present
        wanted = SWITCH_SECONDS if threads <= _OWN_THREADS else self._switch_seconds
        if wanted != present:
            sys.setswitchinterval(wanted)

    def _leave_task(self) -> None:
        """Report the last task's samples separately if the task was long; otherwise, add them to its function's
        samples."""
        counts, self._of_task = self._of_task, {}
        is_long, self._is_long = self._is_long, False
        if not counts:
            return
        if is_long or sum(microseconds for microseconds, _ in counts.values()) >= LONG_TASK_US:
            self._send_counts(self._task, self._function, counts, is_single=True)
            return
        _, known = self._of_functions.get(self._function, (b"", {}))
        for stack, (microseconds, samples) in counts.items():
            counted = known.setdefault(stack, [0, 0])
            counted[0] += microseconds
            counted[1] += samples
        self._of_functions[self._function] = self._task, known

    def _report(self, *, is_idle: bool = False) -> None:
        if is_idle:
            self._leave_task()
            self._task = b""
        elif sum(microseconds for microseconds, _ in self._of_task.values()) >= LONG_TASK_US // 4:
            self._is_long = True
            counts, self._of_task = self._of_task, {}
            self._send_counts(self._task, self._function, counts, is_single=True)
        functions, self._of_functions = self._of_functions, {}
        for function, (task, counts) in functions.items():
            self._send_counts(task, function, counts, is_single=False)

    def _send_counts(self, task: bytes, function: str, counts: _Counts, *, is_single: bool) -> None:
        found = StackProfile()
        for raw, (microseconds, samples) in counts.items():
            found.add(labelled(raw), microseconds, samples)
        document = {"name": function, "single": is_single, **found.document()}
        text = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
        self._send(Note(ToAgent.PROFILED, text, task))


def labelled(raw: _RawStack) -> tuple[str, ...]:
    """Return the labels of a stack, outermost frame first. raw: innermost frame first."""
    labels = [label(f"{code.co_qualname} ({short_file(code.co_filename)}:{line})") for code, line in reversed(raw)]
    labels = labels or [NO_FRAME]
    return within_depth([LEFT_OUT, *labels] if len(raw) == MAX_WALKED else labels)


def main_frame(thread: int) -> FrameType | None:
    """Return the innermost frame of a thread; None if it has ended. Disables garbage collection: CPython 3.11 holds
    an interpreter lock while creating frame objects, and a finalizer that needs the same lock would deadlock."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # The result includes this frame. Assigned to a variable, it would form a cycle that keeps tasks' values alive.
        return sys._current_frames().get(thread)  # noqa: SLF001 (the only way to see another thread's frame)
    finally:
        if was_enabled:
            gc.enable()

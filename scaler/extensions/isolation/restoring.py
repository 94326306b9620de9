"""Restores process state that a task has changed, before the next task.

Covers the working directory, umask, environment variables, signal handlers, masks, and timers, descriptors 0 to 2, the
standard streams, locale, warning filters, the recursion limit, and the default socket timeout. Wrapped functions record
changes as they are made, so a task without changes costs only a check of the streams. Changes made while importing a
module are kept, because no later task imports it again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes ten times longer, to name signals
import contextlib
import fcntl
import locale
import os
import resource
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any, Literal, Never

from scaler.process_state import lossy_stream
from scaler.worker.frames import Note
from scaler.worker.processor.capture import flush_streams
from scaler.worker.processor.context import ProcessorContext, ProcessState


def isolate(context: ProcessorContext, _send: Callable[[Note], None]) -> None:
    context.state = StateRestorer(context.tee)


_FIRST_COPY = 64
"""Lowest number for copies of standard descriptors. User code may rely on lower numbers."""

Restore = tuple[object, Callable[[], object]]
"""A key of changed state, and a function that restores it."""


class StateRestorer(ProcessState):
    """Records changes as they are made. A forked copy of the processor exits with its task; otherwise the copy would
    receive tasks through the inherited sockets."""

    def __init__(self, tee: Callable[[bool, Any], object]) -> None:
        """tee: forwards the text of a new stream; receives is_stderr and the stream."""
        super().__init__()
        self._pid = os.getpid()
        self._limits: dict[int, tuple[int, int]] = {}
        self._undo: dict[object, Callable[[], object]] = {}
        self._tee = tee
        first = min(_FIRST_COPY, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, first) for number in range(3)]
        os.register_at_fork(after_in_child=partial(setattr, self, "is_spoilt", True))
        self._note(resource, "setrlimit", self._limit)
        self._note(resource, "prlimit", lambda pid, *limit: pid in (0, self._pid) and self._limit(*limit))
        self._note(os, "chdir", self._directory)
        self._note(os, "fchdir", self._directory)
        self._note(os, "umask", partial(_exchanged, os.umask, 0o777))
        self._note(os, "putenv", _variable)
        self._note(os, "unsetenv", _variable)
        self._note(os, "close", self._standard_descriptor)
        self._note(os, "closerange", self._standard_descriptor)
        self._note(os, "dup2", lambda _, number=0, *__: self._standard_descriptor(number))
        self._note(signal, "signal", _handler)
        self._note(signal, "pthread_sigmask", partial(_mask, signal.pthread_sigmask))
        self._note(signal, "set_wakeup_fd", partial(_exchanged, signal.set_wakeup_fd, -1))
        self._note(signal, "alarm", lambda *_: _timer(signal.ITIMER_REAL))
        self._note(signal, "setitimer", lambda which=signal.ITIMER_REAL, *_: _timer(which))
        self._note(sys, "setrecursionlimit", partial(_value, sys.setrecursionlimit, sys.getrecursionlimit))
        self._note(socket, "setdefaulttimeout", partial(_value, socket.setdefaulttimeout, socket.getdefaulttimeout))
        for name in ("filterwarnings", "simplefilter", "resetwarnings"):
            self._note(warnings, name, _filters)
        all_of_locale = partial(locale.setlocale, locale.LC_ALL)
        self._note(locale, "setlocale", partial(_value, all_of_locale, all_of_locale))

    def undo(self, error: BaseException | None) -> str:
        """Restore limits as far as permitted. Exits in a forked copy."""
        if os.getpid() != self._pid:
            _end_copy(error)
        self.is_spoilt = False
        names = {number: name for name, number in vars(resource).items() if name.startswith("RLIMIT_")}
        for which, (soft, _) in self._limits.items():
            hard = resource.getrlimit(which)[1]
            finite = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit.__wrapped__(which, (min(finite, default=resource.RLIM_INFINITY), hard))  # type: ignore[attr-defined]
        changed = ", ".join(names.get(which, str(which)) for which in self._limits)
        return f"a task has changed its limits ({changed})"

    def restore(self) -> None:
        undo, self._undo = self._undo, {}
        # Timers first: a running timer could call a removed handler or kill the process.
        timers = [key for key in undo if isinstance(key, tuple) and key[0] == "timer"]
        for key in [*timers, *(key for key in reversed(undo) if key not in timers)]:
            with contextlib.suppress(Exception):
                undo[key]()
        self._undo.clear()  # the restoration itself called wrapped functions
        self.is_changed = False
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = self.streams[number]
            if stream is None or stream.closed:
                stream = self.streams[number] = lossy_stream(number)
                self._tee(number == 2, stream)
            setattr(sys, name, stream)
        sys.stdin = self.streams[0]

    def _note(self, module: ModuleType, name: str, before: Callable[..., Restore | Literal[False] | None]) -> None:
        """Wrap a function of a module to record its changes. The function can still be pickled by name.

        before: receives the arguments of a call."""
        change = getattr(module, name)

        @wraps(change)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if not _is_importing():
                with contextlib.suppress(Exception):  # the call itself raises an error for invalid arguments
                    if (found := before(*args, **kwargs)) and found[0] not in self._undo:
                        self._undo[found[0]] = found[1]
                        self.is_changed = True
            return change(*args, **kwargs)

        for place in {module, sys.modules.get(change.__module__ or "", module)}:
            if getattr(place, name, None) is change:
                setattr(place, name, noting)

    def _limit(self, which: int, *limits: object) -> Literal[False]:
        if limits:
            self._limits.setdefault(which, resource.getrlimit(which))
            self.is_spoilt = True
        return False

    def _directory(self, *_: object) -> Restore | None:
        if "directory" in self._undo:
            return None
        # A descriptor, because the directory may be moved or removed.
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

        def restore() -> None:
            os.fchdir(here)
            os.close(here)

        return "directory", restore

    def _standard_descriptor(self, first: int, *_: int) -> Restore | None:
        return ("descriptors", lambda: [*map(os.dup2, self._copies, range(3))]) if first <= 2 else None


def _end_copy(error: BaseException | None) -> Never:
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else error.code is not None
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    flush_streams()
    sys.stderr.flush()
    os._exit(code)


def _value(change: Callable[[Any], object], get: Callable[[], object], *_: object, **__: object) -> Restore:
    return change, partial(change, get())


def _exchanged(change: Callable[[Any], Any], neutral: int, *_: object, **__: object) -> Restore:
    """Like `_value`, for a function that returns the previous value."""
    before = change(neutral)
    change(before)
    return change, partial(change, before)


def _is_importing() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001 (there is no other way to walk a stack cheaply)
    while (caller := frame.f_back) is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = caller
    return False


def _variable(name: str | bytes, *_: object) -> Restore:
    # os.environ still has the previous value.
    name = os.fsencode(name)
    value = os.environb.get(name)
    if value is None:
        return ("variable", name), lambda: os.environb.pop(name, None)
    return ("variable", name), partial(os.environb.__setitem__, name, value)


def _handler(number: int, *_: object) -> Restore | None:
    before = _signal.getsignal(number)
    if before is None:
        return None
    change = _signal.signal

    def restore() -> None:
        if _signal.getsignal(number) is not before:  # asyncio.run usually restores its handler itself
            change(number, before)

    return ("signal", number), restore


def _mask(change: Callable[..., Any], *_: object) -> Restore | None:
    # Masks are per thread. `current_thread` would register a thread unknown to `threading`.
    if threading.get_ident() != threading.main_thread().ident:
        return None
    return "mask", partial(change, signal.SIG_SETMASK, change(signal.SIG_BLOCK, ()))


def _timer(which: int) -> Restore:
    return ("timer", which), partial(signal.setitimer, which, 0)


def _filters(*_: object, **__: object) -> Restore:
    before = list(warnings.filters)

    def restore() -> None:
        if warnings.filters != before:
            warnings.resetwarnings()  # invalidates the cache of filters
            warnings.filters[:] = before  # type: ignore[index]

    return "filters", restore

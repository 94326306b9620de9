"""Resets the inherited process state: signals, standard streams, working directory. A program may block SIGCHLD, ignore
SIGTERM, or close its stdin, and a script's `&` ignores SIGINT. Child processes inherit these settings."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys

_KEPT = frozenset({signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP})  # Python ignores the first two, and `nohup` the last


def begin_afresh() -> None:
    """Set the initial state of services and workers. Call from the main thread."""
    restore_signals()
    open_standard_descriptors()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None or stream is getattr(sys, f"__{name}__"):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
            setattr(sys, name, lossy_stream(descriptor))
    leave_removed_directory()


def restore_signals() -> None:
    """Reset ignored signals, except signals ignored by `nohup`, then unblock all signals."""
    for number in signal.valid_signals():
        if number not in _KEPT and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # last, because unblocking discards a pending ignored signal


def open_standard_descriptors() -> None:
    """Open closed descriptors 0 to 2 on the null device, so that no other file or socket gets the number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)


def leave_removed_directory() -> None:
    """Change from a removed working directory, in which programs fail to start, to the root directory."""
    try:
        os.getcwd()  # noqa: PTH109 (the same call, without an import)
    except FileNotFoundError:
        os.chdir("/")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be missing
            sys.stderr.write("scaler: the working directory was removed; using /\n")


def lossy_stream(descriptor: int) -> io.TextIOWrapper:
    """Return a text stream for stdout or stderr that drops unwritable data (full disk, closed pipe)."""
    original = sys.__stdout__ if descriptor == 1 else sys.__stderr__
    return io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False)),  # type: ignore[type-var]
        encoding=None if original is None else original.encoding,
        errors=("strict" if descriptor == 1 else "backslashreplace") if original is None else original.errors,
        line_buffering=descriptor != 1 or os.isatty(descriptor),
    )


class _LossyFile(io.FileIO):
    def write(self, data: io.BufferedIOBase | bytes, /) -> int:  # type: ignore[override]
        view = memoryview(data)  # type: ignore[arg-type]
        try:
            while (count := super().write(view)) is None:  # another process made the file non-blocking
                waiting = select.poll()
                waiting.register(self, select.POLLOUT)
                waiting.poll()
        except OSError:
            return view.nbytes
        return count

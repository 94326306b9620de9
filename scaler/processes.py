"""Processes as the system sees them: how they end with their parent, and how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Have this process get a signal when the thread that made it ends, which a parent's death includes.

    For processes whose parent makes them in its main thread. When the parent, parent_pid, is gone already, the signal
    comes at once. Outside Linux this does nothing. Raises OSError when the system refuses.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # The parent may have died before the kernel knew of our wish; then it will never send the signal.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)


def describe_exit(returncode: int) -> str:
    """Say how a process ended, from a return code as in `subprocess` (negative: minus the signal)."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = f" ({signal.Signals(-returncode).name})"
    except ValueError:
        name = ""
    return f"killed by signal {-returncode}{name}"

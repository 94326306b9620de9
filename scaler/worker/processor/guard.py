"""Protects later tasks from forked copies of the processor and from lowered resource limits."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, Never

from scaler.worker.processor.capture import flush_streams


class ProcessGuard:
    """Detects changes when they are made. A forked copy of the processor exits with its task; otherwise the copy, which
    has the sockets, would receive tasks."""

    def __init__(self) -> None:
        self.is_changed = False
        """The running task has changed a limit, or this process is a forked copy."""
        self._pid = os.getpid()
        self._limits: dict[int, tuple[int, int]] = {}
        os.register_at_fork(after_in_child=self._note)
        for name, place in (("setrlimit", 0), ("prlimit", 1)):
            setattr(resource, name, self._noting(getattr(resource, name), place))

    def undo(self, error: BaseException | None) -> str:
        """Restore limits as far as permitted. Returns the reason to replace this processor. Exits in a forked copy."""
        if os.getpid() != self._pid:
            _end_copy(error)
        self.is_changed = False
        names = {number: name for name, number in vars(resource).items() if name.startswith("RLIMIT_")}
        for which, (soft, _) in self._limits.items():
            hard = resource.getrlimit(which)[1]
            finite = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit.__wrapped__(which, (min(finite, default=resource.RLIM_INFINITY), hard))  # type: ignore[attr-defined]
        changed = ", ".join(names.get(which, str(which)) for which in self._limits)
        return f"a task has changed its limits ({changed})"

    def _note(self) -> None:
        self.is_changed = True

    def _noting(self, change: Callable[..., Any], place: int) -> Callable[..., Any]:
        @wraps(change)
        def noting(*args: Any) -> Any:
            is_own = not place or (args and args[0] in (0, self._pid))
            if is_own and len(args) == place + 2:
                with contextlib.suppress(ValueError, TypeError, OSError):  # the call itself raises the error again
                    self._limits.setdefault(args[place], resource.getrlimit(args[place]))
                    self.is_changed = True
            return change(*args)

        return noting


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

"""What a task's Python code prints, kept until the task has ended: for tasks whose results travel as one piece.

It goes to where it would go anyway, too. Tasks in several threads of a process are told apart by their thread; what
other threads print belongs to the task that runs alone, and to none of several.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TextIO, cast

from scaler.head_tail import HeadTailBuffer

KEPT_BYTES = 12 * 1024
"""Of the beginning and of the end of each stream: the scheduler keeps no less, and nothing is cut twice."""
_lock = threading.Lock()
_active: dict[int, PrintedOutput] = {}
"""Tasks that run, by the thread that runs them."""
_tees: dict[str, _Tee] = {}
"""The last ones, by the names of their streams: `print` of Python 3.11 crashes when its stream goes while it prints."""


class PrintedOutput:
    """While in this context, what Python code prints is kept here: the beginning and the end of it."""

    def __init__(self) -> None:
        self._buffers = (HeadTailBuffer(KEPT_BYTES, KEPT_BYTES), HeadTailBuffer(KEPT_BYTES, KEPT_BYTES))

    @property
    def stdout(self) -> bytes:
        return self._buffers[0].text()

    @property
    def stderr(self) -> bytes:
        return self._buffers[1].text()

    def add(self, is_stderr: bool, text: str) -> None:
        """Keep what was printed."""
        self._buffers[is_stderr].add(text.encode("utf-8", "backslashreplace"))

    def __enter__(self) -> PrintedOutput:
        with _lock:
            _active[threading.get_ident()] = self
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and not isinstance(stream, _Tee):
                    if name not in _tees or _tees[name].stream is not stream:
                        _tees[name] = _Tee(cast("TextIO", stream), name == "stderr")
                    setattr(sys, name, _tees[name])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            del _active[threading.get_ident()]
            if _active:
                return
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if isinstance(stream, _Tee):
                    setattr(sys, name, stream.stream)


class _Tee:
    """Stands for a text stream: passes everything on to it, and keeps what is written for the task that writes."""

    def __init__(self, stream: TextIO, is_stderr: bool) -> None:
        self.stream = stream
        self._is_stderr = is_stderr

    def write(self, text: str, /) -> int:
        count = self.stream.write(text)
        task = _active.get(threading.get_ident())
        if task is None and len(running := list(_active.values())) == 1:  # others may begin and end meanwhile
            (task,) = running
        if task is not None:
            task.add(self._is_stderr, text)
        return count

    def writelines(self, lines: Iterable[str], /) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

"""The shell around every component: logging, event loop, signals, readiness, and exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping

from scaler import logs
from scaler.config.setting import LoggingConfig
from scaler.errors import ScalerError, UsageError
from scaler.extras import require
from scaler.output import OutputRelay
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, STOP_SIGNALS, end_of, handling_signals
from scaler.texts import escaped

EXIT_FAILURE = 1
EXIT_USAGE = 2  # invalid settings: a restart does not help
ORPHAN_GRACE_SECONDS = 8.0  # time limit for an orderly exit after the parent has ended

_BUG = "This is a bug in scaler; please report it with the lines above."

_log = logging.getLogger(__name__)


class Component:
    def __init__(self, name: str) -> None:
        self.name = name
        self.stop = asyncio.Event()  # set by SIGINT, SIGTERM, SIGHUP, or the end of the parent
        # Removed from the environment, so that child processes do not inherit them.
        ready_fd = os.environ.pop(READY_FD_VARIABLE, None)
        self._ready_fd = None if ready_fd is None else int(ready_fd)
        if self._ready_fd is not None:
            os.set_inheritable(self._ready_fd, False)
        self._parent_pid = os.environ.pop(PARENT_PID_VARIABLE, None)
        self.has_parent = self._parent_pid is not None  # started by another Scaler process; this process ends with it

    def ready(self, addresses: Mapping[str, str]) -> None:
        text = "".join(f", {purpose} {address}" for purpose, address in addresses.items())
        # A parent that reads the pipe logs the readiness itself.
        _log.log(logging.INFO if self._ready_fd is None else logging.DEBUG, "ready%s", text)
        if self._ready_fd is None:
            return
        line = json.dumps({"component": self.name, "pid": os.getpid(), "addresses": dict(addresses)})
        try:
            with os.fdopen(self._ready_fd, "w") as pipe:
                pipe.write(line + "\n")
        except BrokenPipeError:
            _log.warning("readiness not reported: the parent has closed the pipe")
        self._ready_fd = None

    def watch_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set `stop` when the process in SCALER_PARENT_PID ends, and exit a few seconds later in any case."""
        if self._parent_pid is None:
            return
        descriptor = end_of(int(self._parent_pid))

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            _log.warning("stopping: the parent process has ended")
            self.stop.set()
            loop.call_later(ORPHAN_GRACE_SECONDS, os._exit, EXIT_FAILURE)

        loop.add_reader(descriptor, ended)


Main = Callable[[Component], Awaitable[int]]
_SERVERS = ("scheduler", "object_storage_server")  # event loops that must not block on a log file


def run_component(name: str, config: LoggingConfig, main: Main, event_loop: str = "builtin") -> int:
    """Run a component until its main coroutine returns; return the exit code. A `UsageError` becomes one line on stderr
    and code 2, any other `ScalerError` one line and code 1. Any other exception is a bug in Scaler and is raised with a
    note."""
    try:
        if sys.platform != "win32":
            from scaler.process_state import begin_afresh  # noqa: PLC0415 (Windows has no such signals)

            begin_afresh()
        logs.set_up(name, config, in_thread=name in _SERVERS)
        raise_open_files_limit()
        with OutputRelay(), asyncio.Runner(debug=False, loop_factory=_loop_factory(event_loop)) as runner:
            return runner.run(_run(name, main))
    except ScalerError as error:
        return report(name, error)
    except BaseException as error:
        note_bug(error)
        raise


def report(name: str, error: ScalerError) -> int:
    sys.stderr.write(f"{name}: {escaped(str(error))}\n")
    sys.stderr.flush()
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


def note_bug(error: BaseException) -> None:
    if isinstance(error, Exception) and _BUG not in getattr(error, "__notes__", ()):
        error.add_note(_BUG)


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit, because every connection needs a descriptor."""
    import resource  # noqa: PLC0415 (not on Windows, which has clients and monitors)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # a hard limit above fs.nr_open is refused
            _log.warning("cannot raise the limit of open files above %d: %s", soft, error)


async def _run(name: str, main: Main) -> int:
    loop = asyncio.get_running_loop()
    component = Component(name)

    def interrupt(number: int, count: int) -> None:
        # A service manager signals all processes of a service, and then the parent signals this one. The parent kills
        # this process if it takes too long.
        if count > 1 and not component.has_parent:
            os._exit(128 + number)
        loop.call_soon_threadsafe(component.stop.set)

    # Not loop.add_signal_handler: the second signal must end even a process whose loop is stuck.
    with handling_signals(STOP_SIGNALS, interrupt):
        component.watch_parent(loop)
        return await main(component)


def _loop_factory(event_loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if event_loop == "builtin":
        return None
    require("uvloop", "event_loop = 'uvloop'")
    import uvloop  # noqa: PLC0415 (only processes that use it load it)

    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return loop

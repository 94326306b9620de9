"""One agent process, and what its parent can see of it without asking it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, describe_exit
from scaler.protocol.messages import UnitState

LAST_WORDS_BYTES = 64 * 1024


class AgentProcess:
    """Starts the agent: a command that finds its document in SCALER_WORKER_CONFIG. Raises OSError when the system does
    not let it.

    The agent is in a session of its own: a terminal's Ctrl-C goes to the manager alone, which then ends its agents in
    order, and a kill reaches all that an agent has started. Call `close` in the end.
    """

    __slots__ = (
        "_process", "_ready_fd", "_words", "exit_text", "mark", "pidfd", "slots", "started_at", "state", "stop_at",
        "unit_id",
    )  # fmt: skip

    def __init__(self, command: Sequence[str], config: WorkerConfig, now: float) -> None:
        ready_fd, agents_end = os.pipe()
        # A file, not a pipe: who writes to it never waits for the reader.
        self._words = os.memfd_create("scaler-last-words", os.MFD_CLOEXEC)
        environment = {
            **os.environ,
            WORKER_CONFIG_VARIABLE: config.to_json(),
            PARENT_PID_VARIABLE: str(os.getpid()),
            READY_FD_VARIABLE: str(agents_end),
            LAST_WORDS_FD_VARIABLE: str(self._words),
        }
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(agents_end, self._words),
                start_new_session=True,
            )
        except OSError:
            os.close(ready_fd)
            os.close(self._words)
            raise
        finally:
            os.close(agents_end)
        os.set_blocking(ready_fd, False)
        self._ready_fd: int | None = ready_fd
        self.pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.unit_id = config.unit_id
        self.mark = f"{WORKER_CONFIG_VARIABLE}={environment[WORKER_CONFIG_VARIABLE]}"
        """What its environment has, and that of all that it starts, and no other's."""
        self.slots = config.slots
        self.started_at = now
        self.stop_at: float | None = None
        """When it was asked to end."""
        self.state = UnitState.PENDING
        self.exit_text = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when its state changes."""
        return [fd for fd in (self.pidfd, self._ready_fd) if fd is not None]

    def look(self) -> UnitState:
        """Return the state as it is now, and find out how it ended."""
        if self.state in (UnitState.FAILED, UnitState.STOPPED):
            return self.state
        if self._has_ended():
            self._reap()
            in_order = self.stop_at is not None or self._process.returncode == 0
            self.state = UnitState.STOPPED if in_order else UnitState.FAILED
        elif self.stop_at is not None:
            self.state = UnitState.STOPPING
        elif self._is_ready():
            self.state = UnitState.RUNNING
        return self.state

    def trouble(self) -> str:
        """Return what the agent says that keeps it from its work, on one line; empty when nothing does."""
        return self._last_words()

    def ask_to_end(self, now: float) -> None:
        """Send SIGTERM: the agent gives back what has not started, and ends."""
        if self.stop_at is None:
            self.stop_at = now
            # Not Popen.terminate: it would reap a process that has just ended, behind the back of `look`.
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it has started, and wait until it is gone."""
        if self.exit_text:
            return
        self._kill_group()
        self._reap()
        self.state = UnitState.STOPPED if self.stop_at is not None else UnitState.FAILED

    def close(self) -> None:
        """Free the descriptors. Epoll forgets them with that."""
        for fd in self.descriptors:
            os.close(fd)
        os.close(self._words)
        self.pidfd = self._ready_fd = None

    def _has_ended(self) -> bool:
        # Without reaping it: as long as it is a zombie, no other process can get its group's number.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _reap(self) -> None:
        self._kill_group()
        returncode = self._process.wait()
        # The signal that asks it to end may come when it has almost ended by itself.
        asked = self.stop_at is not None and returncode in (0, -signal.SIGTERM)
        self.exit_text = (
            "stopped" if asked else ": ".join(filter(None, (describe_exit(returncode), self._last_words())))
        )

    def _last_words(self) -> str:
        """Return what the agent said last, on one line; empty when it said nothing."""
        text = os.pread(self._words, LAST_WORDS_BYTES, 0).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # Of a traceback, the last line says what happened.
        return lines[0] if len(lines) == 1 else ": ".join(line.removesuffix(":") for line in (*lines[:1], *lines[-1:]))

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _is_ready(self) -> bool:
        if self._ready_fd is None:
            return True
        try:
            os.read(self._ready_fd, 4096)
        except BlockingIOError:
            return False
        os.close(self._ready_fd)
        self._ready_fd = None
        return True

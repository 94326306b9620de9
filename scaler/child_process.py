"""A child process in its own session, which reports readiness and ends with this process. Ctrl-C in a terminal does not
reach the child, so this process stops its children in order."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from scaler.interpreter import inherited_environment
from scaler.process_state import open_standard_descriptors
from scaler.processes import PARENT_PID_VARIABLE, READY_FD_VARIABLE, end_of, send_signal

MAX_READY_BYTES = 64 * 1024  # maximum size of the readiness line


class ChildProcess:
    """A running child. `ended` becomes readable when the process ends; `ready_pipe` is readable until its readiness
    line is read."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """environment: added to this process's. output: stdout and stderr for `subprocess.Popen`. Raises OSError."""
        open_standard_descriptors()  # the pipe must not get the numbers 0 to 2
        ready_fd, childs_end = os.pipe2(os.O_CLOEXEC)
        own = {READY_FD_VARIABLE: str(childs_end), PARENT_PID_VARIABLE: str(os.getpid())}
        # The child inherits the mask, so a SIGTERM that this program ignores stays pending until the child restores
        # signals. A user's command does not restore signals, so SIGTERM is blocked only if this program ignores it.
        is_ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if is_ignored else ())
        try:
            self.popen = subprocess.Popen(
                command,
                bufsize=0,
                env={**inherited_environment(), **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(childs_end, *pass_fds),
            )
        except OSError:
            os.close(ready_fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(childs_end)
        os.set_blocking(ready_fd, False)
        self.pid = self.popen.pid
        try:
            self.ended = end_of(self.pid)
        except OSError:
            os.close(ready_fd)
            self.kill()
            self.popen.wait()
            raise
        self.ready_pipe = io.FileIO(ready_fd)  # closed at the end of its data
        self._ready_line = b""
        self.addresses: Mapping[str, str] | None = None  # listening addresses by purpose; None until ready

    def read_ready(self) -> None:
        data = self.ready_pipe.read(MAX_READY_BYTES)
        if data is None:
            return
        self._ready_line += data
        if self._ready_line.endswith(b"\n"):
            self.addresses = json.loads(self._ready_line)["addresses"]
        if not data or b"\n" in data or len(self._ready_line) > MAX_READY_BYTES:
            self.ready_pipe.close()

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def terminate(self) -> None:
        """Send SIGTERM to the process only, which stops its own children."""
        send_signal(self.pid, self.ended, signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Wait for the end, kill the rest of the process group, close everything, and return the exit code as in
        `subprocess`. None if the code is unknown, because the program ignores SIGCHLD or waits for any child."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self.popen.wait()
            return None
        else:
            self.kill()  # while the zombie reserves the number of the group
            return self.popen.wait()
        finally:
            os.close(self.ended)
            self.ready_pipe.close()
